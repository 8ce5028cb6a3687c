"""The reason why a micro-batch is tried again, for `arcbeam status`."""

from __future__ import annotations

import pytest

from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log.troublenote import TroubleNote, record_trouble, trouble_of
from arcbeam.store.manifest.names import TROUBLE_NOTE
from arcbeam.testing.blobs import MemoryBlobs
from tests.store.samples import opened

pytestmark = pytest.mark.contract("BAT-06")


def test_trouble_is_found_until_micro_batch_is_committed(blobs: DurableBlobs) -> None:
    log = opened(blobs)
    assert trouble_of(blobs, log.head) is None
    trouble = TroubleNote(log.epoch, log.head.micro_batch + 1, "Parse", "a worker died in try 1 of 3", Timestamp(7))
    record_trouble(blobs, trouble)
    assert trouble_of(blobs, log.head) == trouble
    log.propose(log.draft(Timestamp(1)))
    assert trouble_of(blobs, log.head) is None


def test_trouble_of_earlier_driver_is_stale(memory: DurableBlobs) -> None:
    log = opened(memory)
    record_trouble(memory, TroubleNote(log.epoch, log.head.micro_batch + 2, "", "", Timestamp(7)))
    assert trouble_of(memory, opened(memory).head) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"epoch": "x"}', b"\xff"])
def test_damaged_note_reports_nothing(data: bytes) -> None:
    blobs = MemoryBlobs()
    log = opened(blobs)
    blobs.put(TROUBLE_NOTE, data)
    assert trouble_of(blobs, log.head) is None
