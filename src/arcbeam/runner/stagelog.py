"""What a job's tasks have logged last, by stage.

Owns how many lines are kept. They inform people: the executors' logs have all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from arcbeam.model.rows import LogLine
from arcbeam.secrets import redacted

_URGENT: Final = frozenset({"WARNING", "ERROR", "CRITICAL"})
_OF_STAGE: Final = 20
"""Lines that are kept of a stage; warnings and errors have as many of their own."""
_OF_JOB: Final = 300
"""Lines that are shown: the job's folder has them, and is written often."""


class _Line(NamedTuple):
    line: LogLine
    stage: str
    worker: str


class StageLog:
    """The newest lines of each stage. Callable from several threads.

    Args:
        names: the names of stages for people, if they differ.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names, self._lock = names, threading.Lock()
        self._lines: dict[tuple[str, bool], deque[_Line]] = {}

    def add(self, stage: str, worker: str, lines: Sequence[LogLine]) -> None:
        """Add lines of a task."""
        name = self._names.get(stage, stage)
        with self._lock:
            for line in lines:
                kept = self._lines.setdefault((name, line.level in _URGENT), deque(maxlen=_OF_STAGE))
                kept.append(_Line(line._replace(text=redacted(line.text)), name, worker))

    def newest(self) -> list[dict[str, Any]]:
        """Return the lines as JSON values, oldest first: `time`, `level`, `stage`, `worker` and `text`."""
        with self._lock:
            lines = sorted(line for of in self._lines.values() for line in of)
        return [{**each.line._asdict(), "stage": each.stage, "worker": each.worker} for each in lines[-_OF_JOB:]]
