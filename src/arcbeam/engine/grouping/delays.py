"""Delays and alignments: from the processing time of a first element to a due time.

Owns their arithmetic. Must not know triggers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arcbeam.model.timestamps import Duration, Timestamp, shifted


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay.

    Raises:
        ValueError: it is negative: elements would be due before they arrive.
    """

    by: Duration

    def __post_init__(self) -> None:
        if self.by < 0:
            raise ValueError(f"a trigger's delay of {self.by} µs is negative")


@dataclass(frozen=True, slots=True)
class AlignTo:
    """Round a time up to a multiple of `period` from `offset` on. Without a period, times stay unchanged."""

    period: Duration
    offset: Duration


Transform = Delay | AlignTo


def due(transforms: Iterable[Transform], first: Timestamp) -> Timestamp:
    """Return the due time that is counted from `first`."""
    for transform in transforms:
        match transform:
            case Delay(by):
                first = shifted(first, by)
            case AlignTo(period, offset) if period:
                first = shifted(first, Duration((offset - first) % period))
    return first
