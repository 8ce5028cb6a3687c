"""What is measured of unbounded pipelines: element functions, right answers, and targets.

Owns sizes, functions and answers; knows neither Beam nor Spark. Answers are as in `bench.works.work`: only a peer that
has done all of the work has the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bench.works.work import KEYS, Answer, M, key_of

PER_SECOND = 20_000
"""Elements per second of event time."""
WINDOW = 60
"""Seconds."""
GAP = 20
"""Seconds without elements after which a session ends."""
SESSION_KEYS = 20_000
VALUE_BYTES = 1_000
PARTITIONS = 4
"""Partitions that a splittable DoFn reads."""
CLAIM = 1_000
"""Elements of one of its claims."""
_PRIME = 10_007


class Target(NamedTuple):
    """The target of a figure: the minimum of a rate (M elements/s), the maximum of anything else (s)."""

    value: float
    unit: str = "M elements/s"


@dataclass(frozen=True, slots=True)
class StreamWork:
    """One work to measure.

    Attributes:
        name: as on the command line and in the table.
        what: its description.
        elements: number of elements.
        structured_elements: the maximum for Structured Streaming, which would otherwise take too long.
        target: of the rate of all elements, in M elements/s; of a work `beside` another, a share of that one's rate.
        answer: returns the right answer for a number of elements.
        streams: number of streams, each with all these elements.
        beside: the work of the same run and peer that it is compared with; "": the target is a rate.
    """

    name: str
    what: str
    elements: int
    structured_elements: int
    target: float
    answer: Callable[[int], Answer]
    streams: int = 1
    beside: str = ""


# ------------------------------------------------------------------------------------------------ element functions


def second_of(x: int) -> float:
    """Return when an element happens; not at 0, which is too late for Structured Streaming from its start."""
    return (x + 1) / PER_SECOND


def window_end(second: float) -> int:
    """Return the end of the window that contains a second."""
    return (int(second) // WINDOW + 1) * WINDOW


def session_second(x: int) -> float:
    """Do the same for sessions: a key's elements come in bursts, some of which are close enough to be one session."""
    return x // SESSION_KEYS * 7 + (x // SESSION_KEYS // 3) * 25 + x % 7 + 1


def session_key(x: int) -> int:
    return x % SESSION_KEYS


def big_value(x: int) -> bytes:
    """Return a value of a kilobyte."""
    return x.to_bytes(8, "big") * (VALUE_BYTES // 8)


def offsets(partition: int, elements: int) -> range:
    """Return the elements of a partition: elements alternate between partitions."""
    return range(partition, elements, PARTITIONS)


def digest(key: int, end: float, value: int) -> int:
    """Return the digest of a result for a key and window."""
    return (key * 31 + int(end) * 17 + value) % _PRIME


def sum_of_big(values: Iterable[bytes]) -> int:
    """Return the result for a group of big values."""
    return sum(value[7] + len(value) for value in values)


# ---------------------------------------------------------------------------------------------------------- answers


def _scrambled(elements: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(elements, dtype=np.uint64)
    return ((x * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)) % np.uint64(KEYS)).astype(np.int64), x.astype(np.int64)


def _digests(keys: np.ndarray, ends: np.ndarray, values: np.ndarray) -> Answer:
    return Answer(len(keys), int(((keys * 31 + ends * 17 + values) % _PRIME).sum()))


def _windowed(elements: int, value: np.ndarray | None) -> Answer:
    keys, x = _scrambled(elements)
    windows = (x + 1) // (PER_SECOND * WINDOW)
    size = (int(windows[-1]) + 1) * KEYS
    place = windows * KEYS + keys
    counts = np.bincount(place, minlength=size)
    present = np.flatnonzero(counts)
    sums = counts if value is None else np.bincount(place, value, minlength=size).astype(np.int64)
    return _digests(present % KEYS, (present // KEYS + 1) * WINDOW, sums[present])


def _count(elements: int) -> Answer:
    return _windowed(elements, None)


def _group(elements: int) -> Answer:
    return _windowed(elements, np.arange(elements) % 256 + VALUE_BYTES)


def _state(elements: int) -> Answer:
    keys, _ = _scrambled(elements)
    sizes = np.bincount(keys, minlength=KEYS)
    ordinals = np.arange(1, elements + 1) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return _digests(np.repeat(np.arange(KEYS), sizes), np.zeros(elements, dtype=np.int64), ordinals)


def _timers(elements: int) -> Answer:
    keys, x = _scrambled(elements)
    return _digests(keys, (x + 1) // PER_SECOND, np.zeros(elements, dtype=np.int64))


def _sessions(elements: int) -> Answer:
    """Each session is computed directly: those of one key equal those of others, except for their own second."""
    x = np.arange(elements, dtype=np.int64)
    keys = x % SESSION_KEYS
    turns = x // SESSION_KEYS
    seconds = turns * 7 + turns // 3 * 25 + x % 7 + 1
    order = np.lexsort((seconds, keys))
    keys, seconds = keys[order], seconds[order]
    begins = np.ones(elements, dtype=bool)
    begins[1:] = (keys[1:] != keys[:-1]) | (seconds[1:] - seconds[:-1] > GAP)
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], elements) - 1
    return _digests(keys[firsts], seconds[lasts] + GAP, lasts - firsts + 1)


WORKS = {
    work.name: work
    for work in (
        StreamWork("count", "windows of a minute, Count per key, of a splittable DoFn", 4 * M, 200_000, 0.6, _count),
        StreamWork("count-create", "the same of Create, Reshuffle and FlatMap", 4 * M, 200_000, 0.6, _count),
        StreamWork(
            "watermark",
            "as count-create, with times and watermark by WithWatermark",
            4 * M,
            200_000,
            0.9,
            _count,
            beside="count-create",
        ),
        StreamWork("state", "stateful DoFn, one read and write an element", 2 * M, 100_000, 0.25, _state),
        StreamWork("timers", "an event-time timer set and fired for each element", 1 * M, 50_000, 0.1, _timers),
        StreamWork("group", "windows of a minute, GroupByKey, values of 1 kB", 1 * M, 50_000, 0.3, _group),
        StreamWork("sessions", "sessions, Count per key, 20 k keys", 1 * M, 50_000, 0.1, _sessions),
        StreamWork(
            "join",
            "two streams of this size, partners within two seconds",
            1 * M,
            50_000,
            0.15,
            _timers,
            streams=2,
        ),
    )
}

__all__ = ["WORKS", "StreamWork", "Target", "key_of"]
