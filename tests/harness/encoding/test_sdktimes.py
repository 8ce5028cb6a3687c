"""Objects that replace those of SDK constructors are equal to them. A Beam upgrade that changes this fails here."""

from __future__ import annotations

import pytest
from apache_beam.transforms.window import IntervalWindow, Sessions, WindowFn
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from arcbeam.harness.encoding.sdktimes import micros_from, timestamp_of


def test_timestamps_equal_those_of_sdk() -> None:
    ends = [MIN_TIMESTAMP.micros, MAX_TIMESTAMP.micros, -(1 << 63), (1 << 63) - 1]
    for micros in (0, 1, -1, 999_999, 1_000_000, -1_000_001, *ends):
        made, theirs = timestamp_of(micros), Timestamp(micros=micros)
        assert type(made) is Timestamp
        assert vars(made) == vars(theirs)
        assert micros_from(theirs) == theirs.micros == micros
    assert micros_from(Timestamp(3, precision=3)) == 3_000_000
    with pytest.raises(ValueError, match="greater than microsecond precision"):
        micros_from(Timestamp(1, 1, precision=9))


def test_windows_keep_their_bounds_in_microseconds() -> None:
    for start, end in ((0, 1), (-5, 7), (MIN_TIMESTAMP.micros - 1, MAX_TIMESTAMP.micros)):
        window = IntervalWindow(Timestamp(micros=start), Timestamp(micros=end))
        assert (window._start_micros, window._end_micros) == (start, end)


def test_sessions_depend_on_time_only() -> None:
    windowfn = Sessions(7)
    assert windowfn.gap_size.micros == 7_000_000
    for time in map(Timestamp, (-3, 0, 5)):
        (window,) = windowfn.assign(WindowFn.AssignContext(time, element="any"))
        assert (window.start, window.end) == (time, time + 7)
