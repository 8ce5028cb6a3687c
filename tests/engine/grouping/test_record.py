"""The record of a window as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.grouping.record import Record
from arcbeam.engine.grouping.triggers import UNLIMITED
from arcbeam.errors import StateFormatError
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

pytestmark = pytest.mark.contract("ENG-11")

times = st.none() | st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP).map(Timestamp)
rooms = st.sampled_from([1, 5, UNLIMITED, UNLIMITED - 3])
records = st.builds(
    Record,
    until_ready=rooms,
    closed=st.booleans(),
    passed=st.booleans(),
    on_time=st.booleans(),
    fresh=st.integers(0, 10),
    unseen=st.integers(0, 10),
    hold=times,
    next_timer=times,
    index=st.integers(0, 3),
    nonspeculative=st.integers(0, 3),
    entries=st.integers(0, 3),
    address=st.binary(max_size=3),
    trigger=st.binary(max_size=3),
    contents=st.binary(max_size=3),
)


@given(record=records, first_until_ready=rooms)
def test_record_is_decoded(record: Record, first_until_ready: int) -> None:
    if not record.index:
        record.nonspeculative = 0
    if not record.entries:
        record.address = b""
    assert Record.unpack(record.pack(first_until_ready), first_until_ready) == record


def test_window_without_panes_takes_few_bytes() -> None:
    record = Record(UNLIMITED - 3, fresh=3, unseen=3, hold=Timestamp(5), contents=b"abc")
    assert len(record.pack(UNLIMITED)) <= 18 + 3


@pytest.mark.parametrize("data", [b"", b"\x02abc", b"\x01", b"\x01\x00abc", b"\x01\x01" + b"\0" * 30])
def test_invalid_record_is_refused(data: bytes) -> None:
    with pytest.raises(StateFormatError, match="the record of a window"):
        Record.unpack(data, 1)
