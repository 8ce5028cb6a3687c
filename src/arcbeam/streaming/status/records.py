"""A status, or the progress of a bounded job, from its record, as another process gives it.

Owns the way back from `arcbeam.streaming.status.status.as_record`. Records of other versions may have more fields, or
less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from arcbeam.console.progressline import BatchProgress, StageProgress, StageState
from arcbeam.engine.protocol.reports import Counts
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.errors import SetupError
from arcbeam.model.commits import CommitMode
from arcbeam.store.log.drivernote import DriverNote
from arcbeam.store.log.endnote import EndNote
from arcbeam.streaming.status.reasons import Cause, CauseKind
from arcbeam.streaming.status.recentcounts import Mark
from arcbeam.streaming.status.snapshot import Since
from arcbeam.streaming.status.status import OutputStatus, StageStatus, Status

T = TypeVar("T")
Record = Mapping[str, Any]
Parts = Mapping[str, Callable[[Any], Any]]


def parsed(kind: type[T], record: Record) -> T | None:
    """Return the value that a record describes; None if it lacks fields of this version, or has unknown values.

    Args:
        kind: `Status` or `BatchProgress`.
        record: it may have more fields, or lack those that have a default.
    """
    try:
        return _made(kind, record)
    except (KeyError, TypeError, ValueError):
        return None


def status_from(record: Record) -> Status:
    """Return the status that a record describes.

    Raises:
        SetupError: it is of another version.
    """
    if (status := parsed(Status, record)) is None:
        raise SetupError("the status is of another version of arcbeam", "use the version of the job")
    return status


def _made(kind: type[T], record: Record) -> T:
    # As `dataclasses.fields`, which makes a new tuple for each of hundreds of records.
    known, parts = kind.__dataclass_fields__, _PARTS.get(kind, {})  # type: ignore[attr-defined]  # a dataclass
    values = {name: value for name, value in record.items() if name in known}
    return kind(**values | {name: parts[name](values[name]) for name in parts if name in values})


def _one(kind: type[Any]) -> Callable[[Any], Any]:
    return lambda record: _made(kind, record) if record else None


def _each(kind: type[Any]) -> Callable[[Any], Any]:
    return lambda records: tuple(_made(kind, record) for record in records)


def _by_level(record: Record) -> dict[int, int]:
    # The names of JSON's objects are texts.
    return {int(level): size for level, size in record.items()}


_PARTS: Final[Mapping[type[Any], Parts]] = {
    Status: {
        "mode": CommitMode,
        "stages": _each(StageStatus),
        "causes": _each(Cause),
        "state_bytes": _by_level,
        "state_entries": _by_level,
        "driver": _one(DriverNote),
        "ended": _one(EndNote),
    },
    StageStatus: {
        "input_since": _one(Since),
        "outputs": _each(OutputStatus),
        "micro_batch": _one(Counts),
        "total": _one(Counts),
        "recent": lambda record: Mark(**record) if record else None,
        "kept": _one(StateMetrics),
        "blocked": tuple,
        "state_largest": lambda pairs: tuple(map(tuple, pairs)),
    },
    OutputStatus: {"since": _one(Since)},
    Cause: {"kind": CauseKind, "since": _one(Since), "stages": tuple},
    BatchProgress: {"stages": _each(StageProgress)},
    StageProgress: {"state": StageState},
}
"""How fields are parsed that are no values of JSON."""
