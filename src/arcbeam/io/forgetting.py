"""Expiry of a key's elements in event time: where the elements are stored, and when they are removed.

A key with few elements keeps them in one value, which is read and written as a whole. When there are more, all of them
move to ordered lists. A range read of such a list does not read other elements.

Owns how to expire elements with few timers. Each key and window has one timer. The timer is set to the time when the
last present element expires. When it fires, it is set again for the elements that have arrived since then. So it fires
twice for elements that arrive together. Where elements keep arriving, it fires once per retention time. An element may
therefore be kept longer than necessary: at most until the last element that was present when the timer was set expires.
Must not know any runner.
"""

from __future__ import annotations

from typing import Any, Final

from apache_beam.transforms.userstate import TimeDomain, TimerSpec
from apache_beam.utils.timestamp import Timestamp

from arcbeam.sizes import threshold

ELEMENTS_MAX: Final = threshold(32)
"""How many elements of a key its value may hold. The value is written again whenever elements arrive."""
BEGINNING: Final = -(1 << 63)
"""Before all times, in microseconds."""
_END: Final = (1 << 63) - 1
_MILLI: Final = 1000


def between(first: int, latest: int) -> tuple[Timestamp, Timestamp]:
    """Return the bounds of an ordered list's elements between two times in microseconds, both included.

    The times may be outside Beam's event time. They are limited to the range of an ordered list, which is wider than
    that of elements.
    """
    first, limit = (Timestamp(micros=min(max(each, BEGINNING), _END)) for each in (first, latest + 1))
    return first, limit


def forget_timer() -> TimerSpec:
    """Return a new timer spec. Each DoFn needs its own, because a spec knows the method that it calls."""
    return TimerSpec("forget", TimeDomain.WATERMARK)


def fire_at(timer: Any, until: int, window: Any) -> int:
    """Set the timer for elements that expire at the given time, in microseconds; return the time when it fires.

    All elements expire at the end of the window at the latest: no element arrives after it.
    """
    micros: int = min(until, window.max_timestamp().micros)
    timer.set(Timestamp(micros=micros))
    return micros


def fired_at(time: Any, fires: int) -> int:
    """Return the time, in microseconds, for which a timer was set that now fires.

    SUBTLE: Beam's coders encode timers in milliseconds. With most runners a timer therefore fires up to one millisecond
    early. Code that sets it again for the rest of that millisecond would be called forever.

    Args:
        time: the time that the runner reports.
        fires: the time for which the timer was set.
    """
    now: int = time.micros
    return now if now // _MILLI != fires // _MILLI else fires


def is_over(until: int, now: int, window: Any) -> bool:
    """Return whether elements that expire at `until` have expired at the time when the timer fires."""
    end: int = window.max_timestamp().micros
    return min(until, end) <= now
