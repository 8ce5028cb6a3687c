"""Logging in a Python worker: every line names its job, stage and bundle, and a few travel with the task's report.

Owns the worker's root handlers (its stderr, which is the executor's log, and the lines for reports), and which of the
SDK's log lines are dropped because they are reported elsewhere. Must not run on the driver.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from typing_extensions import override

from arcbeam.model import texts
from arcbeam.model.rows import LogLine
from arcbeam.sizes import threshold

_QUIET = ("apache_beam", "py4j", "pyspark")
_FORMAT = "%(asctime)s %(levelname)s [%(arcbeam)s] %(name)s: %(message)s"
_LINES: Final = threshold(10)
"""Lines of a stage in a task's report; warnings and errors have as many of their own."""
_OF_ALL: Final = threshold(1000)
"""Lines of a stage in the reports of all its tasks, about."""
_CHARACTERS: Final = 500
"""Of a line there."""


class _Where:
    """What the worker runs now; it runs one task at a time.

    `bundles` has an `instruction`, which is the open bundle's id, and counts `elements`. `began` is when it began, by
    the monotonic clock, and `took` how long it ran; None: it still runs.
    """

    job = ""
    stage = ""
    bundles: Any = None
    began = 0.0
    took: float | None = None


class TaskFilter(logging.Filter):
    """Adds `arcbeam`, "job stage bundle", to records, and drops what the job's error contains anyway."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record.msg, "_tagged_with_step", False):
            return False  # the user's exception: the driver receives it with its traceback
        if record.name == "root" and str(record.msg).startswith("apitools not found"):
            return False  # about an optional package; logged once by the driver's own import
        if record.name.startswith("apache_beam.") and str(record.msg).startswith("ImportError: "):
            return False  # likewise, when a module of the SDK is imported
        bundle = getattr(_Where.bundles, "instruction", "")
        record.arcbeam = " ".join(filter(None, (_Where.job, _Where.stage, bundle))) or "-"
        return True


class TaskLines(logging.Handler):
    """Keeps the first lines that the running task logs in each stage. A worker runs one task at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        self._stage: Callable[[], str] | None = None
        self._most = 0
        self._lines: dict[tuple[str, bool], list[LogLine]] = {}
        self._left_out: Counter[str] = Counter()

    def begin(self, stage: Callable[[], str], tasks: int = 1) -> None:
        """A task begins.

        Args:
            stage: returns the stage that runs; "" while none does.
            tasks: the number of tasks that run the same stages.
        """
        self.end()
        self._stage, self._most = stage, max(1, min(_LINES, _OF_ALL // tasks))

    def end(self) -> None:
        """The task has ended: forget what was not taken."""
        self._stage = None
        self._lines, self._left_out = {}, Counter()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        running = self._stage
        if running is None:
            return
        stage = running()
        lines = self._lines.setdefault((stage, record.levelno >= logging.WARNING), [])
        if len(lines) >= self._most:
            self._left_out[stage] += 1
            return
        try:
            text = self.format(record).removeprefix("root: ")
        except Exception:  # of user code, which is in the executor's log
            text = f"{record.name}: a line that cannot be formatted"
        lines.append(LogLine(round(record.created * 1e6), record.levelname, texts.fit(text, _CHARACTERS)))

    def taken(self, stage: str) -> list[LogLine]:
        """Return the lines of a stage in order of time, and forget them."""
        self.acquire()
        try:
            lines = sorted((*self._lines.pop((stage, False), ()), *self._lines.pop((stage, True), ())))
            left_out = self._left_out.pop(stage, 0)
        finally:
            self.release()
        if left_out:
            lines.append(LogLine(lines[-1].time, "INFO", f"{left_out:,} more lines are in the executor's log"))
        return lines

    def stages(self) -> list[str]:
        """Return the stages that have lines."""
        return list(dict.fromkeys(stage for stage, _ in self._lines))


task_lines: Final = TaskLines()
"""Those of this process."""


def at(job: str, stage: str, bundles: Any = None) -> None:
    """Set what the worker runs from this call on."""
    if (job, stage) != (_Where.job, _Where.stage):
        _Where.began, _Where.took = time.monotonic(), None
    _Where.job, _Where.stage, _Where.bundles = job, stage, bundles


def elements() -> int:
    """Return how many elements the running task has read so far."""
    return int(getattr(_Where.bundles, "elements", 0))


def ended() -> float:
    """Fix how long the running task has run, and return it: what follows is Spark's. Its report has the same."""
    _Where.took = seconds()
    return _Where.took


def seconds() -> float:
    """Return how long the running task has run so far; 0.0: it has not begun, because it waits for its input."""
    if _Where.took is not None:
        return _Where.took
    return time.monotonic() - _Where.began if _Where.stage else 0.0


def install(level: str = "INFO", overrides: Mapping[str, str] | None = None) -> None:
    """Make the worker's stderr the output of the root logger, beside the lines of its task. Idempotent; sets all levels
    again.

    Args:
        level: the root logger's level, by name. The SDK's and Spark's own loggers have level WARNING.
        overrides: levels of other loggers, by name.
    """
    root = logging.getLogger()
    ours = [h for h in root.handlers if any(isinstance(f, TaskFilter) for f in h.filters)]
    if not ours:
        for other in [h for h in root.handlers if type(h) is logging.StreamHandler]:
            root.removeHandler(other)
        stderr = logging.StreamHandler(sys.stderr)
        stderr.setFormatter(logging.Formatter(_FORMAT))
        for handler in (stderr, task_lines):
            handler.addFilter(TaskFilter())
            root.addHandler(handler)
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name, chosen in (overrides or {}).items():
        logging.getLogger(name).setLevel(chosen)
