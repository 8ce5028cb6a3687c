"""The output of a worker's process: which of its lines are part of the message when the process ends.

Owns that choice. The lines are the last ones, and before them the ones that name the cause: a crash report may be long.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

_LINES: Final = 8
"""Last lines, and lines of a crash report, that are kept."""
_HEAD, _TAIL = 80, 220
"""Characters of a long line that are kept: causes are at a line's end."""
_CRASH = re.compile(r"(?:panic|fatal error|Fatal Python error|runtime|SIG[A-Z]+): ")
"""How the crash reports of Go and Python begin. Their other lines are frames of stacks."""
_OPTIONS = re.compile(r"Provision info:(.*)")
"""What Beam's boot programs get from the runner: all options of the pipeline, on the same line or on the next one."""

_NOISE = re.compile(r"INFO:|Error Setting Rlimit")
"""What healthy workers write, too."""


class OutputTail:
    """The lines of a process's output that say why it ended. Used by one thread; another one may read."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, str]] = deque(maxlen=_LINES)
        self._crash: list[tuple[int, str]] = []
        self._count = 0
        self._skips = False

    def add(self, line: str) -> None:
        """Take the next line."""
        if self._skips:
            self._skips = False
            return
        if options := _OPTIONS.search(line):
            self._skips = not options[1].strip()
            return
        if not line.strip() or _NOISE.match(line):
            return
        kept = self._count, _short(line)
        self._count += 1
        if self._crash or _CRASH.match(line):
            self._crash = [*self._crash, kept][:_LINES]
        self._last.append(kept)

    def lines(self) -> tuple[str, ...]:
        """Return the lines, earliest first."""
        return tuple(line for _, line in sorted({*self._crash, *list(self._last)}))


def _short(line: str) -> str:
    return line if len(line) <= _HEAD + _TAIL else f"{line[:_HEAD]} … {line[-_TAIL:]}"
