"""What SDK workers log, in the log of this process.

Owns the translation of a log entry. Must not know where the log goes.
"""

from __future__ import annotations

import logging
from typing import Any

from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb

from arcbeam.secrets import redacted

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


def log(entry: Any) -> None:
    """Log a `LogEntry`, with its transform and its place in the worker's code."""
    level = _LEVELS.get(entry.severity, logging.INFO)
    if not _LOG.isEnabledFor(level):
        return
    text = entry.message
    if entry.transform_id:
        text = f"[{entry.transform_id}] {text}"
    if entry.log_location:
        text = f"{text} ({entry.log_location})"
    if entry.trace:
        text = f"{text}\n{entry.trace.rstrip()}"
    _LOG.log(level, "%s", redacted(text))
