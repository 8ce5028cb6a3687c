"""Assign windows without the engine: by plain arithmetic, and by `datetime` for calendar windows.

Owns the reference's view of windows. Must not know `testing.windowfns`, nor how the engine merges windows element by
element: this module sees all timestamps at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, IntervalWindow, Window
from simulator.scenario.windowings import CALENDAR, FIXED_OFFSET, LEAP_MONTH, Clusters, Windowing, hull, overlapping

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = 86_400_000_000
_CYCLE = 400
"""Years after which the calendar repeats."""
_CYCLE_DAYS = 146_097
_YEAR, _MONTH = _CYCLE_DAYS * _DAY // _CYCLE, _CYCLE_DAYS * _DAY // (_CYCLE * 12)


def assigned(windowing: Windowing, time: Timestamp) -> tuple[Window, ...]:
    """Return the windows of a timestamp, before any merge."""
    size = windowing.size
    match windowing.name:
        case "global":
            return (GLOBAL_WINDOW,)
        case "fixed":
            number = (time - FIXED_OFFSET) // size
            return (_interval(FIXED_OFFSET + number * size, FIXED_OFFSET + (number + 1) * size),)
        case "sliding":
            period = max(size // 2, 1)
            return tuple(_interval(start, start + size) for start in _starts(time, size, period))
        case "sessions":
            return (_interval(time, time + size),)
        case "gaps":
            return (_interval(time, time + (2 * size if time % 2 else size)),)
        case name if name in CALENDAR:
            return (_period(windowing, time),)
        case _:
            # Only the user's function knows the contents of a window with custom bytes.
            return windowing.fn.assign(time)


def merged(windowing: Windowing, time: Timestamp, times: Collection[Timestamp]) -> tuple[Window, ...]:
    """Return the windows of a timestamp after merging; `times` are all timestamps of its key."""
    if not windowing.merges:
        return assigned(windowing, time)
    fn = windowing.fn
    if isinstance(fn, Clusters):
        span = [each for each in times if each // fn.size == time // fn.size]
        return (fn.of(min(span), max(span)),)
    found = {window for each in times for window in assigned(windowing, each)}
    ordered = sorted(window for window in found if isinstance(window, IntervalWindow))
    return next((hull(together),) for together in overlapping(ordered) if time in {each.start for each in together})


def _interval(start: int, end: int) -> IntervalWindow:
    return IntervalWindow(Timestamp(start), Timestamp(end))


def _starts(time: int, size: int, period: int) -> Iterator[int]:
    start = time // period * period
    while start + size > time:
        yield start
        start -= period


# The calendar. A window extends from the beginning of its period to the beginning of the next period.


def _period(windowing: Windowing, time: int) -> IntervalWindow:
    length = {"days": _DAY, "months": _MONTH, "years": _YEAR}[windowing.name] * windowing.size
    number = time // length
    while _begins(windowing, number) > time:
        number -= 1
    while _begins(windowing, number + 1) <= time:
        number += 1
    return _interval(_begins(windowing, number), _begins(windowing, number + 1))


@lru_cache(maxsize=10_000)
def _begins(windowing: Windowing, number: int) -> int:
    """Return the first moment of the period with that number; number 0 begins in 1970."""
    count = number * windowing.size
    match windowing.name:
        case "days":
            cycles, days = divmod(count, _CYCLE_DAYS)
            return _midnight(cycles, _EPOCH.replace(tzinfo=None) + timedelta(days), windowing.zone)
        case "months":
            cycles, months = divmod(count, _CYCLE * 12)
            return _midnight(cycles, _dated(1970 + months // 12, months % 12 + 1, windowing.day), windowing.zone)
        case _:
            cycles, years = divmod(count, _CYCLE)
            return _midnight(cycles, _dated(1970 + years, LEAP_MONTH, windowing.day), windowing.zone)


def _dated(year: int, month: int, day: int) -> datetime:
    """Return that day of the month, or the last day of a shorter month."""
    while True:
        try:
            return datetime(year, month, day)
        except ValueError:
            day -= 1


def _midnight(cycles: int, date: datetime, zone: str) -> int:
    """Return the first moment of a day, shifted by a number of calendar cycles."""
    shift = cycles * _CYCLE_DAYS * _DAY
    nominal = (date.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND + shift
    year = date.year + cycles * _CYCLE
    if not 1 < year < 9999:
        # Outside the range of `datetime`, the offset of the zone is that of the nearest year in the range.
        return nominal - _ahead(datetime(2 if year < 2 else 9999, 1 if year < 2 else 12, 29, tzinfo=UTC), zone)
    moment = date.replace(year=year, tzinfo=ZoneInfo(zone))
    found = (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND
    if (_EPOCH + found * _MICROSECOND).astimezone(ZoneInfo(zone)).replace(tzinfo=None) == moment.replace(tzinfo=None):
        return found
    # A change of the clocks skipped that midnight: search the first moment with a later local time.
    before, after = found - 2 * _DAY, found
    while after - before > 1:
        middle = (before + after) // 2
        shown = (_EPOCH + middle * _MICROSECOND).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        if shown >= moment.replace(tzinfo=None):
            after = middle
        else:
            before = middle
    return after


def _ahead(moment: datetime, zone: str) -> int:
    return (moment.astimezone(ZoneInfo(zone)).utcoffset() or timedelta()) // _MICROSECOND
