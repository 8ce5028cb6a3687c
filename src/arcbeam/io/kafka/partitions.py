"""Partitions and what remains to be read of them: the restrictions of discovery and of reading.

Owns their form in manifests, and their trackers. Neither restriction is cut into parts: a tracker only gives back what
follows its last claim. Must not know clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, Final

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from typing_extensions import override

ENDLESS: Final = 2**62
"""The end of a partition that has no end."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, and which of its records are read.

    Attributes:
        topic: the name of its topic.
        topic_id: the broker's id of the topic; another topic with the name has another one.
        number: its number.
        start: offset of the first record. If it was removed, reading fails.
        stop: offset after the last record.
    """

    topic: str
    topic_id: str
    number: int
    start: int = 0
    stop: int = ENDLESS

    def __repr__(self) -> str:
        return f"{self.topic}[{self.number}]"


class PartitionCoder(Coder):  # type: ignore[misc]  # Beam is untyped
    """Encodes partitions as JSON."""

    @override
    def encode(self, value: Partition) -> bytes:
        return json.dumps(astuple(value)).encode()

    @override
    def decode(self, encoded: bytes) -> Partition:
        return Partition(*json.loads(encoded))

    @override
    def is_deterministic(self) -> bool:
        return True

    @override
    def to_type_hint(self) -> Any:
        return Partition

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


beam.coders.registry.register_coder(Partition, PartitionCoder)


class OffsetsTracker(OffsetRestrictionTracker):  # type: ignore[misc]  # Beam is untyped
    """Claims offsets in order; a claim includes all offsets before it. Offsets have gaps."""

    @override
    def try_split(self, fraction_of_remainder: float) -> Any:
        # SUBTLE: a partition has one reader. Two would each fetch what is between them.
        return super().try_split(0) if fraction_of_remainder == 0 else None

    @override
    def is_bounded(self) -> bool:
        return bool(self._range.stop < ENDLESS)


_ends: dict[tuple[str, int], int] = {}
"""The last known ends of partitions in this process, by id of the topic and number."""


def know_end(partition: Partition, end: int) -> None:
    """Remember the end of a partition, which the size of its restriction depends on."""
    _ends[partition.topic_id, partition.number] = end


class Offsets(beam.RestrictionProvider):  # type: ignore[misc]  # Beam is untyped
    """The offsets of a partition that were not read."""

    @override
    def initial_restriction(self, element: Partition) -> OffsetRange:
        return OffsetRange(element.start, element.stop)

    @override
    def create_tracker(self, restriction: OffsetRange) -> OffsetsTracker:
        return OffsetsTracker(restriction)

    @override
    def restriction_size(self, element: Partition, restriction: OffsetRange) -> int:
        """Return the backlog in records. While it is unknown, it is one."""
        start, stop = int(restriction.start), int(restriction.stop)
        return max(0, min(_ends.get((element.topic_id, element.number), start + 1), stop) - start)

    @override
    def truncate(self, element: Partition, restriction: OffsetRange) -> OffsetRange | None:
        """Drop the rest of a partition without an end: a drain does not wait for future records."""
        return None if restriction.stop >= ENDLESS else restriction


Place = tuple[str, str, int]
"""Topic, its id, and the number of a partition."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the search for partitions has found.

    SUBTLE: not a tuple. The SDK loses what is deferred if it is false, as an empty tuple is.

    Attributes:
        places: the partitions that were found, sorted.
        searched: whether there was a search that succeeded, perhaps without finding any.
    """

    places: tuple[Place, ...] = ()
    searched: bool = False


class KnownTracker(RestrictionTracker):  # type: ignore[misc]  # Beam is untyped
    """Claims partitions that were found. What remains is the search for others.

    Args:
        known: partitions that were found earlier.
    """

    def __init__(self, known: Known | None) -> None:
        self._known, self._claimed, self._is_over = known, known, known is None

    @override
    def current_restriction(self) -> Known | None:
        return self._known

    @override
    def try_claim(self, position: Iterable[Place] | None) -> bool:
        """Claim the new partitions that a search has found; None: claim that there will be no others."""
        if self._is_over:
            return False
        if position is None:
            self._is_over = True
        else:
            assert self._claimed is not None
            self._claimed = Known(tuple(sorted({*self._claimed.places, *position})), searched=True)
        return True

    @override
    def try_split(self, fraction_of_remainder: float) -> tuple[Known | None, Known | None] | None:
        if self._is_over or fraction_of_remainder != 0:
            return None
        self._is_over = True
        # The primary is done: nothing is searched in it.
        self._known, rest = None, self._claimed
        return None, rest

    @override
    def check_done(self) -> bool:
        if not self._is_over:
            raise ValueError("the search for partitions has not ended")
        return True

    @override
    def current_progress(self) -> RestrictionProgress:
        return RestrictionProgress(completed=0, remaining=0 if self._is_over else 1)

    @override
    def is_bounded(self) -> bool:
        return self._known is None


class Search(beam.RestrictionProvider):  # type: ignore[misc]  # Beam is untyped
    """The search for partitions."""

    @override
    def initial_restriction(self, element: Any) -> Known:
        return Known()

    @override
    def create_tracker(self, restriction: Known | None) -> KnownTracker:
        return KnownTracker(restriction)

    @override
    def restriction_size(self, element: Any, restriction: Known | None) -> int:
        """Return 0: what a search will find is no backlog."""
        return 0

    @override
    def truncate(self, element: Any, restriction: Known | None) -> None:
        """Drop the search: a drain does not wait for new partitions."""
