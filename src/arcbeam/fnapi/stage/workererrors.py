"""What an SDK worker's error is to the user: a text becomes one of arcbeam's errors.

Owns how the texts of SDKs are read. Must not know how the error leaves the task.
"""

from __future__ import annotations

import re

from arcbeam.errors import UserCodeError
from arcbeam.model import texts

_PYTHON_STEP = re.compile(r"\[while running '(.*?)'\]", re.DOTALL)


def error_in(text: str, step: str) -> UserCodeError:
    """Return the error that a worker has reported for an instruction.

    Args:
        text: the worker's text: in Python, a traceback whose last lines are the exception.
        step: the name of the stage's first transform, for a text that names none.
    """
    named = _PYTHON_STEP.findall(text)
    lines = _PYTHON_STEP.sub("", text).rstrip().splitlines()
    # Frames are indented. The exception follows them, and may have any lines.
    last = max((n for n, line in enumerate(lines) if line.startswith("Traceback ")), default=len(lines))
    begin = next((n for n in range(last + 1, len(lines)) if not lines[n].startswith(" ")), 0)
    what, before = "\n".join(lines[begin:]), "\n".join(lines[:begin])
    return UserCodeError(texts.fit(named[-1] if named else step), texts.fit(what.strip()), texts.fit(before))
