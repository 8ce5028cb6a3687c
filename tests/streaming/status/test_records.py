"""A status that is read from its record."""

from __future__ import annotations

import json

import pytest

from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.errors import SetupError
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from arcbeam.streaming.status.records import parsed, status_from
from arcbeam.streaming.status.status import Status, as_record, status_of
from arcbeam.testing.blobs import MemoryBlobs
from tests.streaming.jobs import opened
from tests.streaming.status.test_snapshot import all_of, at, committed, holding


def test_record_gives_its_status_again() -> None:
    held = holding("read", 0, Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it"))
    status = status_of(committed(opened(MemoryBlobs()), at(MIN_TIMESTAMP, MAX_TIMESTAMP, 7), *all_of(held)))
    record = json.loads(json.dumps(as_record(status)))
    assert status.causes
    assert any(stage.input_since is not None for stage in status.stages)
    assert status_from(record) == status


def test_fields_of_later_versions_are_ignored() -> None:
    status = status_of(committed(opened(MemoryBlobs()), at(1, 1, 1), *all_of()))
    record = as_record(status)
    assert status_from(record | {"later": 1}) == status
    del record["stages"]
    assert parsed(Status, record) is None
    with pytest.raises(SetupError, match="another version"):
        status_from(record)
