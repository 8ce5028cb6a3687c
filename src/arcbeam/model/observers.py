"""Observers: transforms that observe the times of elements and so determine watermarks.

Owns the part of them that a plan contains, and how a pipeline declares it. Must not know the formula, which is in
`arcbeam.engine.watermarks.observed`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from arcbeam.model.timestamps import Duration

ANNOTATION: Final = "arcbeam:watermark:v1"
"""The annotation of a ParDo that observes; its value is an `Observing`. Its DoFn has `times_of(values)`: event times in
microseconds, in the order of the values; None if elements keep theirs.
"""
CONFIRMED_BY: Final = 2
"""By default, a unconfirmed time is accepted if this many other times are near it."""
UNCONFIRMED_MAX: Final = 1000
"""Fewer than this many times are unconfirmed together."""
PART: Final = "Observe"
"""The name of the ParDo in the composite that users write."""


class Policy(StrEnum):
    """Which of two watermarks counts: that of the input, or the observed one."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Observing:
    """A pipeline's declaration of a ParDo that observes.

    Attributes:
        delay: microseconds.
        policy: see `Observer`.
        max_skew: microseconds by which an accepted time may be later than the clock; None: no limit.
        idle_after: microseconds; see `Observer`.
        quantile: see `Observer`.
        max_jump: microseconds; see `Observer`.
        confirmed_by: see `Observer`.
        shared: see `Observer`.
    """

    delay: int
    policy: Policy = Policy.MIN
    max_skew: int | None = None
    idle_after: int | None = None
    quantile: float | None = None
    max_jump: int | None = None
    confirmed_by: int = CONFIRMED_BY
    shared: Policy | None = None

    def to_text(self) -> str:
        """Return the annotation's value."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_bytes(data: bytes) -> Observing:
        """Return the declaration in an annotation's value."""
        record = json.loads(data)
        shared = record["shared"] and Policy(record["shared"])
        return Observing(**{**record, "policy": Policy(record["policy"]), "shared": shared})

    def observer(self, transform: str, upstream: ObserverPaths) -> Observer:
        """Return the plan's observer for a ParDo."""
        return Observer(
            observer_name(transform),
            Duration(self.delay),
            self.policy,
            upstream,
            _span(self.idle_after),
            self.quantile,
            _span(self.max_jump),
            self.confirmed_by,
            _span(self.max_skew),
            self.shared,
            "" if self.shared is None else transform,
        )


def _span(micros: int | None) -> Duration | None:
    return None if micros is None else Duration(micros)


@dataclass(frozen=True, slots=True)
class Observer:
    """A transform that observes the times of its output.

    Attributes:
        name: the transform's name; what it has seen is stored under it.
        delay: how late following elements may be.
        policy: how this is combined with its input's watermark.
        upstream: the paths to its input.
        idle_after: a shard's input watermark that has not moved for so long is ignored; None: it always counts.
        quantile: the quantile of recent times that counts as the latest time; None: the maximum.
        max_jump: how much later than all others an accepted time may be; None: no limit.
        confirmed_by: a later time is accepted nevertheless if this many other times are near it.
        max_skew: how much later than the clock an accepted time may be; None: no limit.
        shared: it sees not the times of elements but the watermarks of the inputs of all observers of its name, which
            are parts of one transform. The latest of them counts, or the earliest of those that are not idle by
            `idle_after`. Its own watermark is that one, unless its own input is later. None: it sees elements.
        part: the name of this part, if it is shared.
    """

    name: str
    delay: Duration
    policy: Policy = Policy.MIN
    upstream: ObserverPaths = (None,)
    idle_after: Duration | None = None
    quantile: float | None = None
    max_jump: Duration | None = None
    confirmed_by: int = CONFIRMED_BY
    max_skew: Duration | None = None
    shared: Policy | None = None
    part: str = ""


ObserverPaths = tuple[Observer | None, ...]
"""The last observers on the paths from a stage's root to an output or a transform; None: a path without observers."""

NOT_OBSERVED: Final[ObserverPaths] = (None,)


def all_observers(paths: ObserverPaths) -> Iterator[Observer]:
    """Yield all observers on some paths, upstream ones first; an observer may appear more than once."""
    for observer in paths:
        if observer is not None:
            yield from all_observers(observer.upstream)
            yield observer


def observer_name(transform: str) -> str:
    """Return an observer's name from that of its ParDo, or of one of several: the composite that users write."""
    name, _, part = transform.rpartition("/")
    return name if part.startswith(PART) else transform
