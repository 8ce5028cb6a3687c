"""A status from its record, as another process or a folder gives it.

Owns the way back from `arcbeam.streaming.status.status.as_record`. Records of other versions may have more fields, or
less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from arcbeam.store.log.drivernote import DriverNote
from arcbeam.streaming.status.reasons import Cause
from arcbeam.streaming.status.snapshot import Since
from arcbeam.streaming.status.status import OutputStatus, StageStatus, Status

T = TypeVar("T")


def status_from(record: Mapping[str, Any]) -> Status | None:
    """Return the status that a record describes; None if it lacks fields of this version."""
    try:
        stages = [
            _made(
                StageStatus,
                stage,
                input_since=_since(stage["input_since"]),
                outputs=tuple(_made(OutputStatus, out, since=_since(out["since"])) for out in stage["outputs"]),
                blocked=tuple(stage.get("blocked", ())),
                state_largest=tuple((shard, size) for shard, size in stage.get("state_largest", ())),
            )
            for stage in record["stages"]
        ]
        causes = [
            _made(Cause, cause, since=_since(cause["since"]), stages=tuple(cause.get("stages", ())))
            for cause in record["causes"]
        ]
        driver = record.get("driver")
        return _made(
            Status,
            record,
            stages=tuple(stages),
            causes=tuple(causes),
            driver=None if driver is None else _made(DriverNote, driver),
        )
    except (KeyError, TypeError):
        return None


def _since(record: Mapping[str, Any] | None) -> Since | None:
    return None if record is None else _made(Since, record)


def _made(kind: type[T], record: Mapping[str, Any], **more: Any) -> T:
    # As `dataclasses.fields`, which makes a new tuple for each of hundreds of records.
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]  # a dataclass
    return kind(**{**{name: value for name, value in record.items() if name in known}, **more})
