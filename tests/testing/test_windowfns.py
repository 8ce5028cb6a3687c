"""Assignment of windows: as in the SDK, and as in the calendar."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apache_beam.transforms import window as sdk
from apache_beam.utils import timestamp as sdk_time
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, IntervalWindow
from arcbeam.testing.calendars import Date, Days, Months, Years, date_of, day_of
from arcbeam.testing.windowfns import FixedWindows, GlobalWindows, Sessions, SlidingWindows, WindowFn

pytestmark = pytest.mark.contract("ENG-11")

DAY = 86_400_000_000
moments = st.one_of(
    st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP),
    st.integers(-1000, 1000),
    st.sampled_from([MIN_TIMESTAMP, END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP]),
).map(Timestamp)
# 0001-02 to 9998-12: `datetime` must contain the end of a window.
dated = st.integers(-62_000_000_000 * 10**6, 253_300_000_000 * 10**6).map(Timestamp)
spans = st.one_of(st.integers(1, 50), st.integers(1, 10**13))


def bounds(windows: Any) -> list[tuple[int, int]]:
    return [(w.start, w.end) for w in windows]


def sdk_bounds(windowfn: Any, timestamp: int) -> list[tuple[int, int]]:
    assigned = windowfn.assign(windowfn.AssignContext(sdk_time.Timestamp(micros=timestamp)))
    return [(w.start.micros, w.end.micros) for w in assigned]


def span(micros: int) -> Any:
    return sdk_time.Duration(micros=micros)


@given(t=st.integers(-(10**15), 10**15), size=spans, offset=st.integers(0, 60))
def test_fixed_windows_equal_those_of_sdk(t: int, size: int, offset: int) -> None:
    ours = FixedWindows(Duration(size), Duration(offset)).assign(Timestamp(t))
    theirs = sdk.FixedWindows(span(size), sdk_time.Timestamp(micros=offset % size))
    assert bounds(ours) == sdk_bounds(theirs, t)


@given(t=st.integers(-(10**15), 10**15), period=spans, ratio=st.integers(0, 20), offset=st.integers(0, 60))
def test_sliding_windows_equal_those_of_sdk(t: int, period: int, ratio: int, offset: int) -> None:
    size = max(1, period * ratio // 4)
    ours = SlidingWindows(Duration(size), Duration(period), Duration(offset)).assign(Timestamp(t))
    theirs = sdk.SlidingWindows(span(size), span(period), sdk_time.Timestamp(micros=offset))
    assert bounds(ours) == sdk_bounds(theirs, t)


@given(t=st.integers(-(10**15), 10**15), gap=spans)
def test_sessions_equal_those_of_sdk(t: int, gap: int) -> None:
    assert bounds(Sessions(Duration(gap)).assign(Timestamp(t))) == sdk_bounds(sdk.Sessions(span(gap)), t)


def test_global_window_contains_all_times() -> None:
    assert GlobalWindows().assign(MIN_TIMESTAMP) == (GLOBAL_WINDOW,)
    assert GLOBAL_WINDOW.max_timestamp == END_OF_GLOBAL_WINDOW


functions = st.one_of(
    st.builds(FixedWindows, spans, st.integers(-50, 50)),
    st.builds(SlidingWindows, st.just(40), st.integers(1, 40), st.integers(-50, 50)),
    st.builds(Days, st.integers(1, 40), st.just(Date(2024, 2, 29))),
    st.builds(Months, st.integers(1, 30), st.integers(1, 31), st.just(Date(2023, 5))),
    st.builds(Years, st.integers(1, 9), st.integers(1, 12), st.integers(1, 31), st.just(Date(1999))),
)


@settings(max_examples=200)
@given(fn=functions, t=moments)
def test_time_is_in_its_windows(fn: WindowFn, t: Timestamp) -> None:
    windows = fn.assign(t)
    assert windows
    for w in windows:
        assert isinstance(w, IntervalWindow)
        assert w.start <= t < w.end
        assert fn.assign(max(w.start, MIN_TIMESTAMP))
        assert w.max_timestamp <= END_OF_GLOBAL_WINDOW


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu", "Pacific/Apia"])
@settings(max_examples=60, deadline=None)
@given(t=dated, which=st.sampled_from([Days, Months, Years]), number=st.integers(1, 5))
def test_calendar_windows_have_no_gaps(zone: str, t: Timestamp, which: Any, number: int) -> None:
    fn = which(number, zone=zone)
    (w,) = fn.assign(t)
    assert w.start <= t < w.end
    assert fn.assign(w.start) == (w,)
    (following,) = fn.assign(w.end)
    assert following.start == w.end
    (before,) = fn.assign(Timestamp(w.start - 1))
    assert before.end == w.start


@pytest.mark.parametrize("t", [MIN_TIMESTAMP, END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP])
@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/St_Johns"])
@pytest.mark.parametrize("which", [Days, Months, Years])
def test_zone_has_windows_outside_years_of_datetime(which: Any, zone: str, t: Timestamp) -> None:
    (w,) = which(3, zone=zone).assign(t)
    assert w.start <= t < w.end
    assert which(3, zone=zone).assign(w.start) == (w,)


def micros(*args: int, zone: str = "UTC") -> int:
    moment = datetime(*args, tzinfo=ZoneInfo(zone))  # type: ignore[misc,arg-type]
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("fn", "at", "start", "end"),
    [
        (Days(1), (2024, 2, 29, 23, 59, 59, 999_999), (2024, 2, 29), (2024, 3, 1)),
        (Days(7, Date(2024, 1, 1)), (2023, 12, 31), (2023, 12, 25), (2024, 1, 1)),
        (Days(3), (1969, 12, 31), (1969, 12, 29), (1970, 1, 1)),
        (Months(1), (2024, 2, 10), (2024, 2, 1), (2024, 3, 1)),
        (Months(3, 15), (1970, 1, 14), (1969, 10, 15), (1970, 1, 15)),
        (Months(1, 31), (2023, 2, 28), (2023, 2, 28), (2023, 3, 31)),
        (Years(1), (1969, 7, 20), (1969, 1, 1), (1970, 1, 1)),
        (Years(2, 2, 29), (2024, 2, 28), (2022, 2, 28), (2024, 2, 29)),
        (Years(10, start=Date(2000)), (1999, 5, 5), (1990, 1, 1), (2000, 1, 1)),
    ],
)
def test_calendar_windows_have_expected_bounds(fn: Any, at: Any, start: Any, end: Any) -> None:
    assert bounds(fn.assign(Timestamp(micros(*at)))) == [(micros(*start), micros(*end))]


@pytest.mark.parametrize(
    ("day", "hours"), [((2024, 3, 31), 23), ((2024, 10, 27), 25), ((2024, 6, 1), 24), ((1969, 6, 1), 24)]
)
def test_day_has_length_of_its_zone(day: Any, hours: int) -> None:
    start = micros(*day, zone="Europe/Berlin")
    (w,) = Days(1, zone="Europe/Berlin").assign(Timestamp(start + 12 * 3_600_000_000))
    assert (w.start, w.end - w.start) == (start, hours * 3_600_000_000)


def test_a_day_without_midnight_begins_after_it() -> None:
    (w,) = Days(1, zone="America/Sao_Paulo").assign(Timestamp(micros(2018, 11, 4, 12, zone="America/Sao_Paulo")))
    assert w.start == micros(2018, 11, 4, 1, zone="America/Sao_Paulo")


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize(
    ("zone", "day", "first"),
    [
        # One minute after midnight the clock shows 23:01 again. The new day has begun and continues.
        ("America/St_Johns", (2006, 10, 29), (2006, 10, 29)),
        # The clock jumps from 23:30 to 0:30.
        ("America/Toronto", (1919, 3, 31), (1919, 3, 31, 0, 30)),
    ],
)
def test_clock_change_over_midnight_keeps_days(zone: str, day: Any, first: Any) -> None:
    begins = micros(*first, zone=zone)
    for minutes in range(-120, 121):
        at = Timestamp(begins + minutes * 60_000_000)
        for fn in (Days(1, zone=zone), Months(1, day[2], zone=zone), Years(1, day[1], day[2], zone=zone)):
            (w,) = fn.assign(at)
            assert w.start <= at < w.end
            assert (w.end if minutes < 0 else w.start) == begins


@given(day=st.integers(-719_162, 2_932_896))
def test_dates_are_those_of_the_calendar(day: int) -> None:
    theirs = date(1970, 1, 1) + timedelta(day)
    assert date_of(day) == (theirs.year, theirs.month, theirs.day)
    assert day_of(date_of(day)) == day


@given(day=st.integers(-(10**9), 10**9))
def test_date_and_day_are_inverse(day: int) -> None:
    assert day_of(date_of(day)) == day


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedWindows(Duration(0), Duration(0)), "the size of fixed windows"),
        (lambda: SlidingWindows(Duration(-1), Duration(1), Duration(0)), "the size of sliding windows"),
        (lambda: SlidingWindows(Duration(1), Duration(0), Duration(0)), "the period of sliding windows"),
        (lambda: Sessions(Duration(0)), "the gap of sessions"),
        (lambda: Days(0), "a window of days"),
        (lambda: Days(1, Date(2023, 2, 29)), "2023-2-29"),
        (lambda: Days(1, zone="Mars/Base"), "Mars/Base"),
        (lambda: Months(1, 32), "not 32"),
        (lambda: Months(1, 0), "not 0"),
        (lambda: Years(1, 13), "not 13"),
        (lambda: Years(1, 0), "not 0"),
        (lambda: Years(1, 1, 0), "not 0"),
    ],
)
def test_invalid_windows_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
