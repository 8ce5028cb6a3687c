"""Windows of the calendar: days, months and years, in any time zone.

Owns the arithmetic of days (the Gregorian calendar, extended to all years, also those that `datetime` lacks), and of
zones. Must not know keys, state or triggers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from typing_extensions import override

from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import IntervalWindow, Window
from arcbeam.testing.windowfns import WindowFn

_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A day less than the range of `datetime`, on both sides: no offset leaves the range.
_FIRST = -62_135_596_800_000_000 + _DAY
_LAST = 253_402_300_800_000_000 - 2 * _DAY


class Date(NamedTuple):
    """A day of the calendar. Year 0 is the year before year 1."""

    year: int
    month: int = 1
    day: int = 1


_START = Date(1970)


@dataclass(frozen=True, slots=True)
class Days(WindowFn):
    """Windows of a number of days, in a time zone. One of them begins at midnight of `start`."""

    number: int
    start: Date = _START
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _check("days", self.number, self.start, self.zone)

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        day = _day_at(timestamp, self.zone)
        first = day - (day - day_of(self.start)) % self.number
        return _between(first, first + self.number, self.zone)


@dataclass(frozen=True, slots=True)
class Months(WindowFn):
    """Windows of a number of months. They begin at midnight of a day of the month; one of them in the month of `start`.

    In a month without this day they begin on its last day.
    """

    number: int
    day_of_month: int = 1
    start: Date = _START
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _check("months", self.number, self.start, self.zone)
        if not 1 <= self.day_of_month <= 31:
            raise ValueError(f"a month has days from 1 to 31, not {self.day_of_month}")

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        day = _day_at(timestamp, self.zone)
        date = date_of(day)
        month = date.year * 12 + date.month - 1
        if day < self._day(month):
            month -= 1
        month -= (month - (self.start.year * 12 + self.start.month - 1)) % self.number
        return _between(self._day(month), self._day(month + self.number), self.zone)

    def _day(self, month: int) -> int:
        return _day_in(month // 12, month % 12 + 1, self.day_of_month)


@dataclass(frozen=True, slots=True)
class Years(WindowFn):
    """Windows of a number of years. They begin at midnight of a day of the year; one of them in the year of `start`.

    In a year without 29 February they begin on 28 February instead.
    """

    number: int
    month_of_year: int = 1
    day_of_month: int = 1
    start: Date = _START
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _check("years", self.number, self.start, self.zone)
        if not 1 <= self.month_of_year <= 12:
            raise ValueError(f"a year has months from 1 to 12, not {self.month_of_year}")
        if not 1 <= self.day_of_month <= 31:
            raise ValueError(f"a month has days from 1 to 31, not {self.day_of_month}")

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        day = _day_at(timestamp, self.zone)
        year = date_of(day).year
        if day < self._day(year):
            year -= 1
        year -= (year - self.start.year) % self.number
        return _between(self._day(year), self._day(year + self.number), self.zone)

    def _day(self, year: int) -> int:
        return _day_in(year, self.month_of_year, self.day_of_month)


def day_of(date: Date) -> int:
    """Return the days from 1970-01-01 to a date.

    The computation uses years that begin in March, so that a leap day is the last of its year, and eras of 400 years
    with 146,097 days each.
    """
    year = date.year - (date.month <= 2)
    era, of_era = divmod(year, 400)
    of_year = (153 * ((date.month + 9) % 12) + 2) // 5 + date.day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def date_of(day: int) -> Date:
    """Return the date of a number of days after 1970-01-01. The inverse of `day_of`."""
    era, of_era = divmod(day + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    date = of_year - (153 * month + 2) // 5 + 1
    return Date(era * 400 + year + (month >= 10), (month + 2) % 12 + 1, date)


def _day_in(year: int, month: int, day: int) -> int:
    first = day_of(Date(year, month))
    length = day_of(Date(year + month // 12, month % 12 + 1)) - first
    return first + min(day, length) - 1


def _between(first: int, end: int, zone: str) -> tuple[Window, ...]:
    return (IntervalWindow(_midnight(first, zone), _midnight(end, zone)),)


def _day_at(timestamp: Timestamp, zone: str) -> int:
    """Return the day of a time: the last day that has begun.

    SUBTLE: where a clock is set back over midnight, it shows the previous day once more after the new day has begun.
    """
    day = (timestamp + _offset(timestamp, zone)) // _DAY
    if zone != "UTC" and _midnight(day + 1, zone) <= timestamp:
        day += 1
    return day


def _offset(timestamp: int, zone: str) -> int:
    """Return by how much a zone's clock is ahead of UTC; outside of the range of `datetime`, the offset at its end."""
    if zone == "UTC":
        return 0
    moment = _EPOCH + timedelta(microseconds=min(max(timestamp, _FIRST), _LAST))
    return _micros(moment.astimezone(ZoneInfo(zone)).utcoffset())


@lru_cache(maxsize=1000)
def _midnight(day: int, zone: str) -> Timestamp:
    """Return the time at which a day begins; if its midnight is skipped, the first time after it."""
    local = day * _DAY
    if zone == "UTC":
        return Timestamp(local)
    naive = (_EPOCH + timedelta(microseconds=min(max(local, _FIRST), _LAST))).replace(tzinfo=ZoneInfo(zone))
    before, after = _micros(naive.utcoffset()), _micros(naive.replace(fold=1).utcoffset())
    first, end = local - after, local - before
    while first < end:  # the clock is set forward over midnight in this interval
        middle = (first + end) // 2
        if _offset(middle, zone) == after:
            end = middle
        else:
            first = middle + 1
    return Timestamp(end)


def _micros(offset: timedelta | None) -> int:
    return (offset or timedelta()) // timedelta(microseconds=1)


def _check(what: str, number: int, start: Date, zone: str) -> None:
    if number < 1:
        raise ValueError(f"a window of {what} needs at least one, not {number}")
    if date_of(day_of(start)) != start:
        raise ValueError(f"there is no such day: {start.year}-{start.month}-{start.day}")
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as e:
        raise ValueError(f"unknown time zone {zone!r}") from e
