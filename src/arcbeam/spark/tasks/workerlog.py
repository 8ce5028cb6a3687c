"""Logging in a Python worker: every line names its job, stage and bundle.

Owns the worker's root handler (its stderr, which is the executor's log), and which of the SDK's log lines are dropped
because they are reported elsewhere. Must not run on the driver.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

_QUIET = ("apache_beam", "py4j", "pyspark")
_FORMAT = "%(asctime)s %(levelname)s [%(arcbeam)s] %(name)s: %(message)s"


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
        bundle = getattr(_Where.bundles, "instruction", "")
        record.arcbeam = " ".join(filter(None, (_Where.job, _Where.stage, bundle))) or "-"
        return True


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
    """Make the worker's stderr the only output of the root logger. Idempotent; sets all levels again.

    Args:
        level: the root logger's level, by name. The SDK's and Spark's own loggers have level WARNING.
        overrides: levels of other loggers, by name.
    """
    root = logging.getLogger()
    ours = [h for h in root.handlers if any(isinstance(f, TaskFilter) for f in h.filters)]
    if not ours:
        for other in [h for h in root.handlers if type(h) is logging.StreamHandler]:
            root.removeHandler(other)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT))
        handler.addFilter(TaskFilter())
        root.addHandler(handler)
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name, chosen in (overrides or {}).items():
        logging.getLogger(name).setLevel(chosen)
