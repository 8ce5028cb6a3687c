"""Statuses as JSON's values."""

from __future__ import annotations

from dataclasses import asdict

from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from arcbeam.streaming.status.plain import plain
from arcbeam.streaming.status.status import StatusAt, status_of
from arcbeam.testing.blobs import MemoryBlobs
from tests.streaming.jobs import opened
from tests.streaming.status.test_snapshot import all_of, at, committed, holding


def test_status_is_the_same_as_of_the_standard_library() -> None:
    held = holding("read", 0, Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it"))
    status = status_of(committed(opened(MemoryBlobs()), at(MIN_TIMESTAMP, MAX_TIMESTAMP, MIN_TIMESTAMP), *all_of(held)))
    assert status.causes
    found = plain(status)
    assert found == asdict(status)
    assert repr(found) == repr(asdict(status)), "also of the same types"


def test_changes_do_not_reach_the_original() -> None:
    of = {"a": [{"b": 1}], "c": ({"d": 2},)}
    found = plain(of)
    found["a"][0]["b"] = found["c"][0]["d"] = 9
    assert of == {"a": [{"b": 1}], "c": ({"d": 2},)}


def test_status_is_made_once_for_each_manifest() -> None:
    head = committed(opened(MemoryBlobs()), at(1, 1, 1), *all_of())
    later = committed(opened(MemoryBlobs()), at(2, 2, 2), *all_of())
    made = StatusAt("words")
    assert made(head) is made(head)
    assert made(head) == status_of(head, "words")
    assert made(later) == status_of(later, "words")
