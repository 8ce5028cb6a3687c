"""What an SDK worker's error is to the user: a text becomes one of arcbeam's errors.

Owns how the texts of SDKs are read. Must not know how the error leaves the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from arcbeam.errors import UserCodeError
from arcbeam.model import texts

_GO_STEP = re.compile(r"^DoFn\[UID:[^,]*, PID:(.*?), Name: .*\] failed:$", re.MULTILINE)
_GO_PANIC = re.compile(r"^panic: (.*?) goroutine \d+ \[[^\n]*\]:\n(.*)", re.MULTILINE | re.DOTALL)
_GO_FRAME = re.compile(r"^(?:[^\s(]*/)?([\w.-]+?)\.(?:\(\*)?(\w+)", re.MULTILINE)
"""Package and type of a method, or package and function. Lines with places in files are indented."""
_GO_DOFN = re.compile(r"[\w.-]+\.\w+")
_PYTHON_STEP = re.compile(r"\[while running '(.*?)'\]", re.DOTALL)


def names_in(descriptor: Any) -> dict[str, str]:
    """Return the names of the transforms in a `ProcessBundleDescriptor`, by id."""
    return {id: transform.unique_name for id, transform in descriptor.transforms.items()}


def error_in(text: str, step: str, names: Mapping[str, str]) -> UserCodeError:
    """Return the error that a worker has reported for an instruction.

    Args:
        text: the worker's text. In Python, a traceback whose last lines are the exception. In Go, the bundle's plan
            and then the error of a DoFn, or a panic with its stack.
        step: the name of the stage's first transform, for a text that names none.
        names: see `names_in`.
    """
    in_go = list(_GO_STEP.finditer(text))
    if in_go:
        failed = in_go[-1]
        what, before = text[failed.end() :].strip(), text[: failed.end()].strip()
        return UserCodeError(texts.fit(names.get(failed[1], failed[1])), texts.fit(what), texts.fit(before))
    panic = _GO_PANIC.search(text)
    if panic:
        what, before = f"panic: {panic[1]}", text[: panic.start()] + panic[2]
        return UserCodeError(texts.fit(_in_stack(panic[2], names) or step), texts.fit(what), texts.fit(before.strip()))
    named = _PYTHON_STEP.findall(text)
    lines = _PYTHON_STEP.sub("", text).rstrip().splitlines()
    # Frames are indented. The exception follows them, and may have any lines.
    last = max((n for n, line in enumerate(lines) if line.startswith("Traceback ")), default=len(lines))
    begin = next((n for n in range(last + 1, len(lines)) if not lines[n].startswith(" ")), 0)
    what, before = "\n".join(lines[begin:]), "\n".join(lines[:begin])
    return UserCodeError(texts.fit(named[-1] if named else step), texts.fit(what.strip()), texts.fit(before))


def _in_stack(stack: str, names: Mapping[str, str]) -> str:
    """Return the transform whose DoFn is innermost in a Go stack, or several if they have the same DoFn; "": none is.

    Go names a transform by package and type of its DoFn, and gives the second one of a name an ending: "'1".
    """
    by_dofn: dict[str, list[str]] = {}
    for name in sorted(names.values()):
        for part in reversed(name.split("/")):
            if _GO_DOFN.fullmatch(dofn := part.partition("'")[0]):
                by_dofn.setdefault(dofn, []).append(name)
                break
    found = (by_dofn[dofn] for dofn in _frames(stack) if dofn in by_dofn)
    return " or ".join(next(found, []))


def _frames(stack: str) -> Iterator[str]:
    return (f"{frame[1]}.{frame[2]}" for frame in _GO_FRAME.finditer(stack))
