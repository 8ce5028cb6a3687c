"""Who observes the times of elements, and so decides up to where they are all there.

Owns what of that is part of a plan, and how a pipeline says it. Must not know the formula: that is
`arcbeam.engine.watermarks.observed`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from arcbeam.model.timestamps import Duration

ANNOTATION: Final = "arcbeam:watermark:v1"
"""Of a ParDo that observes; its value is an `Observing`. Its DoFn has `times_of(values)`: event times in microseconds,
in the order of the values; None if elements keep theirs.
"""
CONFIRMED_BY: Final = 2
"""So many others make a time believed that was not, unless a pipeline says otherwise."""
MOST: Final = 1000
"""As many times are never doubted together."""
PART: Final = "Observe"
"""What the ParDo is called in the composite that users write."""


class Policy(StrEnum):
    """Which of two watermarks counts: what the input says, and what was observed."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Observing:
    """What a pipeline says of a ParDo that observes.

    Attributes:
        delay: microseconds.
        policy: see `Observer`.
        max_skew: microseconds by which a time may be ahead of the clock, and is still believed; None: whatever it is.
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
        """The annotation's value."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_bytes(data: bytes) -> Observing:
        """Reads an annotation's value back."""
        record = json.loads(data)
        shared = record["shared"] and Policy(record["shared"])
        return Observing(**{**record, "policy": Policy(record["policy"]), "shared": shared})

    def observer(self, transform: str, behind: Ways) -> Observer:
        """What a plan has of a ParDo's."""
        return Observer(
            observer_name(transform),
            Duration(self.delay),
            self.policy,
            behind,
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
    """A transform that observes the times of what it puts out.

    Attributes:
        name: of the transform; what it has seen is known by it.
        delay: how late what comes may be.
        policy: how that goes together with what its input says.
        behind: the ways to its input.
        idle_after: what its input says in a shard does not count when it has stood for so long; None: it always does.
        quantile: what counts as the latest is the time that this part of those of late have not passed; None: the
            latest.
        max_jump: how far ahead of all others a time may be, and is still believed; None: whatever it is.
        confirmed_by: so many others near it, and it is believed nevertheless.
        max_skew: how far ahead of the clock a time may be, and is still believed; None: whatever it is.
        shared: what it has seen is no time of elements, but what the inputs of all observers of its name say, which are
            parts of one transform: the latest of them, or the earliest of those that have not stood for `idle_after`;
            it is at that if its own input is not later. None: it sees elements.
        part: of one of those, the name of its own.
    """

    name: str
    delay: Duration
    policy: Policy = Policy.MIN
    behind: Ways = (None,)
    idle_after: Duration | None = None
    quantile: float | None = None
    max_jump: Duration | None = None
    confirmed_by: int = CONFIRMED_BY
    max_skew: Duration | None = None
    shared: Policy | None = None
    part: str = ""


Ways = tuple[Observer | None, ...]
"""The last observers on the ways from a stage's root to an output, or to a transform; None: there is none on a way."""

NOT_OBSERVED: Final[Ways] = (None,)


def along(ways: Ways) -> Iterator[Observer]:
    """All observers on some ways, those that are behind others first; some perhaps more than once."""
    for observer in ways:
        if observer is not None:
            yield from along(observer.behind)
            yield observer


def observer_name(transform: str) -> str:
    """The name of an observer, of that of its ParDo, or of one of several: that of the composite that users write."""
    name, _, part = transform.rpartition("/")
    return name if part.startswith(PART) else transform
