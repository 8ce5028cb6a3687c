"""What SDK workers log, in the log of this process.

Owns the translation of a log entry, and how much a worker may log: neither the length of its texts nor their number may
fill a disk. Must not know where the log goes.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb

from arcbeam.model import texts
from arcbeam.secrets import redacted
from arcbeam.sizes import threshold

_LOG = logging.getLogger("arcbeam.sdk")
_SEVERITY = fn_pb.LogEntry.Severity
_LEVELS = {
    _SEVERITY.TRACE: logging.DEBUG,
    _SEVERITY.DEBUG: logging.DEBUG,
    _SEVERITY.INFO: logging.INFO,
    _SEVERITY.NOTICE: logging.INFO,
    _SEVERITY.WARN: logging.WARNING,
    _SEVERITY.ERROR: logging.ERROR,
    _SEVERITY.CRITICAL: logging.CRITICAL,
}


_ENTRIES_MAX: Final = threshold(2000)
"""Entries of a worker in an interval; warnings and errors have as many of their own."""
_INTERVAL_SECONDS: Final = 10.0


class WorkerLog:
    """The log of one worker.

    Args:
        worker: its id.
        name: of its environment.
    """

    def __init__(self, worker: str, name: str) -> None:
        self._who = f"{name}, worker {worker[:8]}"
        self._began = time.monotonic()
        self._counts = {False: 0, True: 0}

    def log(self, entry: Any) -> None:
        """Log a `LogEntry`, with its transform and its place in the worker's code."""
        level = _LEVELS.get(entry.severity, logging.INFO)
        if not _LOG.isEnabledFor(level) or not self._has_room(level >= logging.WARNING):
            return
        text = texts.fit(entry.message)
        if entry.transform_id:
            text = f"[{entry.transform_id}] {text}"
        if entry.log_location:
            text = f"{text} ({entry.log_location})"
        if entry.trace:
            text = f"{text}\n{texts.fit(entry.trace.rstrip())}"
        _LOG.log(level, "%s: %s", self._who, redacted(text))

    def end(self) -> None:
        """End the log: report what was left out."""
        left_out = sum(max(0, count - _ENTRIES_MAX) for count in self._counts.values())
        self._counts = {False: 0, True: 0}
        if left_out:
            _LOG.warning("%s: %d more log entries were left out: it logs too much", self._who, left_out)

    def _has_room(self, urgent: bool) -> bool:
        now = time.monotonic()
        if now - self._began >= _INTERVAL_SECONDS:
            self.end()
            self._began = now
        self._counts[urgent] += 1
        return self._counts[urgent] <= _ENTRIES_MAX
