"""Detect micro-batches without progress.

Owns the definition of progress, and how many micro-batches without it cause a warning. Must not know the reaction.

A stall may be a source that is polled without a delay while no data arrives, so it does not end the job. Pauses begin
at once, so that a stall costs little; a warning follows if it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.engine.coordinator.consistentcut import ShardReports
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.timestamps import Duration

_NO_PAUSE = Duration(0)


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """The state of a job that shows progress: if it is equal after a micro-batch, that made no progress.

    It excludes timers that fired and restrictions that ran, because both may do so forever.

    Attributes:
        times: all watermarks.
        waiting: by stage and shard: the number and size of unfinished restrictions, what blocked elements wait for, and
            whether the budget ended too early.
    """

    times: WatermarkTimes
    waiting: tuple[object, ...]

    @staticmethod
    def of(places: ShardReports, times: WatermarkTimes) -> ProgressMark:
        """Return the mark for reports and watermarks."""
        waiting = [
            # SUBTLE: a size that is NaN differs from itself, and so would always look like progress.
            (place, report.restrictions.live, str(report.restrictions.size), report.awaited, report.leftover)
            for place, report in places.items()
            if report.restrictions.live or report.awaited or report.leftover
        ]
        return ProgressMark(times, tuple(sorted(waiting)))


def moved(places: ShardReports) -> bool:
    """Return whether any element was read or written in a micro-batch."""
    return any(
        report.counts.read or report.counts.written or report.counts.unblocked or report.counts.late
        for report in places.values()
    )


@dataclass(frozen=True, slots=True)
class Patience:
    """Pauses and warnings after micro-batches without progress, none of which had to wait for the clock.

    Attributes:
        micro_batches: a warning follows after this many in a row, and each time that their number has doubled.
        least: the pause after the first; it doubles with each further one.
        most: the longest pause.
    """

    micro_batches: int
    least: Duration
    most: Duration

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: they contradict each other.
        """
        if self.micro_batches < 1 or not 0 < self.least <= self.most:
            raise ValueError(
                f"a warning after {self.micro_batches} micro-batches without progress, with pauses from {self.least} "
                f"to "
                f"{self.most} µs: the number must be at least 1, pauses more than 0, and the longest at least the "
                "shortest"
            )

    def pause(self, fruitless: int) -> Duration:
        """Return the pause after this many micro-batches in a row without progress."""
        return Duration(min(self.least << min(fruitless - 1, 40), self.most)) if fruitless else _NO_PAUSE

    def warns(self, fruitless: int) -> bool:
        """Return whether to warn now."""
        times, rest = divmod(fruitless, self.micro_batches)
        return not rest and times.bit_count() == 1
