"""What an SDK worker's error is to the user: a text becomes one of arcbeam's errors.

Owns how the texts of SDKs are read. Must not know how the error leaves the task.
"""

from __future__ import annotations

import re

from arcbeam.errors import UserCodeError
from arcbeam.model import texts

_GO_STEP = re.compile(r"^DoFn\[UID:[^,]*, PID:(.*?), Name: .*\] failed:$", re.MULTILINE)
_PYTHON_STEP = re.compile(r"\[while running '(.*?)'\]", re.DOTALL)


def error_in(text: str, step: str) -> UserCodeError:
    """Return the error that a worker has reported for an instruction.

    Args:
        text: the worker's text. In Python, a traceback whose last lines are the exception. In Go, the bundle's plan
            and then the error of a DoFn.
        step: the name of the stage's first transform, for a text that names none.
    """
    in_go = list(_GO_STEP.finditer(text))
    if in_go:
        failed = in_go[-1]
        what, before = text[failed.end() :].strip(), text[: failed.end()].strip()
        return UserCodeError(texts.fit(failed[1]), texts.fit(what), texts.fit(before))
    named = _PYTHON_STEP.findall(text)
    lines = _PYTHON_STEP.sub("", text).rstrip().splitlines()
    # Frames are indented. The exception follows them, and may have any lines.
    last = max((n for n, line in enumerate(lines) if line.startswith("Traceback ")), default=len(lines))
    begin = next((n for n in range(last + 1, len(lines)) if not lines[n].startswith(" ")), 0)
    what, before = "\n".join(lines[begin:]), "\n".join(lines[:begin])
    return UserCodeError(texts.fit(named[-1] if named else step), texts.fit(what.strip()), texts.fit(before))
