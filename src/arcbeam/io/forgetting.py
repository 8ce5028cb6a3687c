"""What a key remembers for a while, by event time: where it is, and when it is forgotten.

What a key has is one value as long as it is little, which is read and written at once. When it is more, all of it goes
to ordered lists, of which what is not looked for is not read.

Owns how few timers do that. A key and window has one. It fires when what the key had when it was set is over, and is
set again, for what has come since, to when the last of that is over: it fires twice for whatever comes together, and
once in the time that an element is remembered where elements keep coming. So an element may be there longer than it
must, at most until the last is over that the key had when the timer was set. Must not know any runner.
"""

from __future__ import annotations

from typing import Any, Final

from apache_beam.transforms.userstate import TimeDomain, TimerSpec
from apache_beam.utils.timestamp import Timestamp

from arcbeam.sizes import threshold

MOST: Final = threshold(32)
"""So many elements of a key may be in its value, which is written anew whenever some come."""
BEGINNING: Final = -(1 << 63)
"""Before all times, in microseconds."""
_END: Final = (1 << 63) - 1
_MILLI: Final = 1000


def between(first: int, latest: int) -> tuple[Timestamp, Timestamp]:
    """The bounds of an ordered list's elements between two times in microseconds, both included.

    They may be beyond the ends of time: those are the last times that an ordered list knows, and lie beyond all that
    elements may have.
    """
    first, limit = (Timestamp(micros=min(max(each, BEGINNING), _END)) for each in (first, latest + 1))
    return first, limit


def forget_timer() -> TimerSpec:
    """The timer; of each DoFn another, for it knows the method that it calls."""
    return TimerSpec("forget", TimeDomain.WATERMARK)


def fire_at(timer: Any, until: int, window: Any) -> int:
    """Sets the timer for what is over at a time, in microseconds; gives when it fires.

    Nothing comes behind the end of a window, so there all is over.
    """
    micros: int = min(until, window.max_timestamp().micros)
    timer.set(Timestamp(micros=micros))
    return micros


def fired_at(time: Any, fires: int | None = None) -> int:
    """When a timer fires that was set for `fires`, in microseconds: then, at whatever time the runner says it does.

    Beam's coders have timers in milliseconds: with most runners one fires up to one earlier than it was set, and who
    sets it again for the rest of that is called for ever.
    """
    now: int = time.micros
    return now if fires is None or now // _MILLI != fires // _MILLI else fires


def is_over(until: int, now: int, window: Any) -> bool:
    """Whether what is over at `until` is so at the time at which the timer fires."""
    end: int = window.max_timestamp().micros
    return min(until, end) <= now
