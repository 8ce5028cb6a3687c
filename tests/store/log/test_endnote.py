"""The end of a driver that no commit reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log.endnote import EndNote, note_of, record_end
from arcbeam.store.manifest.names import ENDED_NOTE
from arcbeam.testing.blobs import MemoryBlobs
from tests.store.samples import opened

pytestmark = pytest.mark.contract("END-04")


def test_end_note_counts_for_its_driver_only(blobs: DurableBlobs) -> None:
    log = opened(blobs)
    assert note_of(blobs, log.head) is None
    record_end(blobs, EndNote(log.epoch, "CANCELLED"))
    assert note_of(blobs, log.head) == EndNote(1, "CANCELLED")
    record_end(blobs, EndNote(log.epoch, "FAILED", "x" * 10_000))
    found = note_of(blobs, log.head)
    assert found is not None
    assert len(found.why) < 3_000
    assert str(found).startswith("FAILED: xxx")
    assert note_of(blobs, opened(blobs).head) is None, "another driver is active"


@pytest.mark.parametrize("mode", [CommitMode.DONE, CommitMode.DRAINED, CommitMode.SUSPENDED])
def test_commit_overrides_end_note(memory: DurableBlobs, mode: CommitMode) -> None:
    log = opened(memory)
    record_end(memory, EndNote(log.epoch, "FAILED", "publishing"))
    log.propose(replace(log.draft(Timestamp(1)), mode=mode))
    assert note_of(memory, log.head) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"epoch": "x", "state": 1, "why": 2}', b"\xff"])
def test_malformed_end_note_is_ignored(data: bytes) -> None:
    blobs = MemoryBlobs()
    log = opened(blobs)
    blobs.put(ENDED_NOTE, data)
    assert note_of(blobs, log.head) is None
