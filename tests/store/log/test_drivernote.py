"""The note of a running driver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.log.drivernote import DriverNote, driver_note_of, record_driver
from arcbeam.store.manifest.names import DRIVER_NOTE
from arcbeam.testing.blobs import MemoryBlobs
from tests.streaming.jobs import opened

_NOTE = DriverNote(
    1, "host:job", 7, Timestamp(1), Timestamp(2), 10.0, "running micro-batch 3 for 4 s", "trouble", "way"
)


def test_note_of_the_heads_driver_is_read_back() -> None:
    blobs = MemoryBlobs()
    head = opened(blobs).head
    assert driver_note_of(blobs, head) is None
    record_driver(blobs, _NOTE)
    assert driver_note_of(blobs, head) == _NOTE


def test_stale_driver_note_is_ignored() -> None:
    blobs = MemoryBlobs()
    head = opened(blobs).head
    record_driver(blobs, _NOTE)
    assert driver_note_of(blobs, opened(blobs).head) is None
    assert driver_note_of(blobs, replace(head, mode=CommitMode.DONE)) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"epoch": 1}', b'{"epoch": "x"}'])
def test_malformed_driver_note_is_ignored(data: bytes) -> None:
    blobs = MemoryBlobs()
    head = opened(blobs).head
    blobs.put(DRIVER_NOTE, data)
    assert driver_note_of(blobs, head) is None


def test_long_texts_are_cut() -> None:
    blobs = MemoryBlobs()
    head = opened(blobs).head
    record_driver(blobs, replace(_NOTE, doing="x" * 10_000))
    found = driver_note_of(blobs, head)
    assert found is not None
    assert len(found.doing) == 500
