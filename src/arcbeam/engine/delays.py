"""From the processing time of a first element to the time at which something is due: delays and alignments.

Owns their arithmetic. Must not know triggers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arcbeam.model.timestamps import Duration, Timestamp, shifted


@dataclass(frozen=True, slots=True)
class Delay:
    """So much later."""

    by: Duration


@dataclass(frozen=True, slots=True)
class AlignTo:
    """The next multiple of `period` from `offset` on; a time that is one stays, as any does if there is no period."""

    period: Duration
    offset: Duration


Transform = Delay | AlignTo


def due(transforms: Iterable[Transform], first: Timestamp) -> Timestamp:
    """When something is due that is counted from `first`."""
    for transform in transforms:
        match transform:
            case Delay(by):
                first = shifted(first, by)
            case AlignTo(period, offset) if period:
                first = shifted(first, Duration((offset - first) % period))
    return first
