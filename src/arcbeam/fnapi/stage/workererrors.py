"""What an SDK worker's error is to the user: a text becomes one of arcbeam's errors.

Owns how the texts of SDKs are read. Must not know how the error leaves the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.errors import UserCodeError
from arcbeam.fnapi.descriptors import SOURCE
from arcbeam.model import texts

_GO_STEP = re.compile(r"^DoFn\[UID:[^,]*, PID:(.*?), Name: .*\] failed:$", re.MULTILINE)
_GO_PANIC = re.compile(r"^panic: (.*?) goroutine \d+ \[[^\n]*\]:\n(.*)", re.MULTILINE | re.DOTALL)
_GO_FRAME = re.compile(r"^(?:[^\s(]*/)?([\w.-]+?)\.(?:\(\*)?(\w+)", re.MULTILINE)
"""Package and type of a method, or package and function. Lines with places in files are indented."""
_GO_DOFN = re.compile(r"[\w.-]+\.\w+")
_PYTHON_STEP = re.compile(r"\[while running '(.*?)'\]", re.DOTALL)


_LABELLED = common_urns.displayData.LABELLED.urn
_JAVA = re.compile(r"[\w.$]+(?:: .*?)?\n\tat ", re.DOTALL)
_JAVA_CAUSE = re.compile(r"\A(.*?)(?=\n\t)|^Caused by: (.*?)(?=\n\t)", re.MULTILINE | re.DOTALL)
_JAVA_WRAPPER = "org.apache.beam.sdk.util.UserCodeException: "
_JAVA_CALL = re.compile(r"^\tat (?:\S*/)?(\S+?)\$DoFnInvoker\$\w+\.(\w+)\(", re.MULTILINE)
"""Class of a DoFn and the method that is called. Java has a class of its own for each DoFn, which calls it."""


@dataclass(frozen=True, slots=True)
class Named:
    """A transform in a `ProcessBundleDescriptor`.

    Attributes:
        name: the transform's.
        dofn: class of its DoFn, if the SDK shows it; "" elsewhere.
        inputs: ids of its input collections.
        outputs: ids of its output collections.
    """

    name: str
    dofn: str = ""
    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()


def names_in(descriptor: Any) -> dict[str, Named]:
    """Return the transforms in a `ProcessBundleDescriptor`, by id."""
    return {
        id: Named(t.unique_name, _dofn_of(t), frozenset(t.inputs.values()), frozenset(t.outputs.values()))
        for id, t in descriptor.transforms.items()
    }


def _dofn_of(transform: Any) -> str:
    for data in transform.display_data:
        if data.urn == _LABELLED:
            shown = runner_pb.LabelledPayload.FromString(data.payload)
            if shown.key == "fn":
                return str(shown.string_value)
    return ""


def error_in(text: str, step: str, names: Mapping[str, Named]) -> UserCodeError:
    """Return the error that a worker has reported for an instruction.

    Args:
        text: the worker's text. In Python, a traceback whose last lines are the exception. In Go, the bundle's plan
            and then the error of a DoFn, or a panic with its stack. In Java, an exception, its stack, and its causes.
        step: the name of the stage's first transform, for a text that names none.
        names: see `names_in`.
    """
    in_go = list(_GO_STEP.finditer(text))
    if in_go:
        failed = in_go[-1]
        what, before = text[failed.end() :].strip(), text[: failed.end()].strip()
        named = names[failed[1]].name if failed[1] in names else failed[1]
        return UserCodeError(texts.fit(named), texts.fit(what), texts.fit(before))
    panic = _GO_PANIC.search(text)
    if panic:
        what, before = f"panic: {panic[1]}", text[: panic.start()] + panic[2]
        return UserCodeError(texts.fit(_in_stack(panic[2], names) or step), texts.fit(what), texts.fit(before.strip()))
    if _JAVA.match(text):
        causes = [first or cause for first, cause in _JAVA_CAUSE.findall(text)]
        wrapped = [n for n, each in enumerate(causes[:-1]) if each.startswith(_JAVA_WRAPPER)]
        what = causes[wrapped[-1] + 1 if wrapped else 0]
        return UserCodeError(texts.fit(_in_java_stack(text, names) or step), texts.fit(what), texts.fit(text.strip()))
    steps = _PYTHON_STEP.findall(text)
    lines = _PYTHON_STEP.sub("", text).rstrip().splitlines()
    # Frames are indented. The exception follows them, and may have any lines.
    last = max((n for n, line in enumerate(lines) if line.startswith("Traceback ")), default=len(lines))
    begin = next((n for n in range(last + 1, len(lines)) if not lines[n].startswith(" ")), 0)
    what, before = "\n".join(lines[begin:]), "\n".join(lines[:begin])
    return UserCodeError(texts.fit(steps[-1] if steps else step), texts.fit(what.strip()), texts.fit(before))


def _in_stack(stack: str, names: Mapping[str, Named]) -> str:
    """Return the transform whose DoFn is innermost in a Go stack, or several if they have the same DoFn; "": none is.

    Go names a transform by package and type of its DoFn, and gives the second one of a name an ending: "'1".
    """
    by_dofn: dict[str, list[str]] = {}
    for name in sorted(each.name for each in names.values()):
        for part in reversed(name.split("/")):
            if _GO_DOFN.fullmatch(dofn := part.partition("'")[0]):
                by_dofn.setdefault(dofn, []).append(name)
                break
    found = (by_dofn[dofn] for dofn in _frames(stack) if dofn in by_dofn)
    return " or ".join(next(found, []))


def _frames(stack: str) -> Iterator[str]:
    return (f"{frame[1]}.{frame[2]}" for frame in _GO_FRAME.finditer(stack))


def _in_java_stack(text: str, names: Mapping[str, Named]) -> str:
    """Return the transform whose DoFn is innermost in a Java stack, or several if it cannot be known; "": none.

    The DoFns in a stack call each other, so they are followed from the source of the stage.
    """
    # A cause has only the frames that are not in its effect's stack.
    calls = max((_JAVA_CALL.findall(part) for part in re.split("^Caused by: ", text, flags=re.MULTILINE)), key=len)
    if not calls:
        return ""
    found = [each for each in names.values() if each.dofn == calls[0][0]]
    _, first = calls[-1]
    reached = names[SOURCE].outputs if first == "invokeProcessElement" and SOURCE in names else None
    for dofn, _ in reversed(calls):
        inputs = None if reached is None else _passed_on(reached, names.values())
        called = [
            each
            for each in names.values()
            if each.dofn == dofn and (inputs is None or not inputs.isdisjoint(each.inputs))
        ]
        reached = frozenset().union(*(each.outputs for each in called))
    return " or ".join(sorted(each.name for each in called or found))


def _passed_on(collections: frozenset[str], transforms: Iterable[Named]) -> frozenset[str]:
    """Return collections, and those that transforms without a DoFn make from them."""
    without = [each for each in transforms if not each.dofn]
    while True:
        more = collections.union(*(each.outputs for each in without if not each.inputs.isdisjoint(collections)))
        if more == collections:
            return collections
        collections = more
