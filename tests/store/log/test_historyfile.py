"""The file of a job's figures over time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from arcbeam.store.log.historyfile import (
    Chunk,
    HistoryEvent,
    StoredHistory,
    decode,
    encode,
    history_in,
    leave_history,
)
from arcbeam.store.manifest.names import HISTORY
from arcbeam.testing.blobs import MemoryBlobs

pytestmark = pytest.mark.contract("OPS-07")

_GOLDEN = Path(__file__).parent / "golden" / "history-1"
_HISTORY = StoredHistory(
    ((1_000_000, (Chunk(2, ("behind.last",), ("read.sum",), ("Read", "Join"), ("timer Join",), b"figures"),)),),
    (HistoryEvent(5_000_000, "savepoint", "one at micro-batch 3"),),
)


def test_format_is_that_of_the_golden_file() -> None:
    assert decode(_GOLDEN.read_bytes()) == _HISTORY
    assert encode(_HISTORY) == _GOLDEN.read_bytes()


def test_history_is_read_back() -> None:
    blobs = MemoryBlobs()
    assert history_in(blobs) == StoredHistory()
    leave_history(blobs, _HISTORY)
    assert history_in(blobs) == _HISTORY


def test_torn_changed_or_newer_file_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    blobs, data = MemoryBlobs(), encode(_HISTORY)
    newer = data[:8] + b"\x02" + data[9:]
    changed = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    for wrong in (*(data[:length] for length in range(len(data))), newer, *changed):
        blobs.put(HISTORY, wrong)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "arcbeam.store"):
            assert history_in(blobs) == StoredHistory()
        assert len(caplog.records) == 1
