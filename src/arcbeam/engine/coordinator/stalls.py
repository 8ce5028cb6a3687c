"""Whether micro-batches get anywhere.

Owns what progress is, and how often a job may go on without it before somebody is told. Must not know what is done
about it.

What looks like a livelock may be a source that is polled without a delay in a quiet night: so it ends no job. It is
slowed down at once, so that it costs little, and told if it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.engine.coordinator.consistentcut import Places
from arcbeam.engine.watermarks.stages import Times
from arcbeam.model.timestamps import Duration

_NO_PAUSE = Duration(0)


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """Where a job stands, as far as it tells progress from none: if it is the same after a micro-batch, the micro-batch
    got nowhere.

    Timers that fired and restrictions that ran are not in it: both may do so for ever.

    Attributes:
        times: all watermarks.
        waiting: by stage and shard, restrictions that are not done with their size, what elements are parked for, and
            whether the budget ended too early.
    """

    times: Times
    waiting: tuple[object, ...]

    @staticmethod
    def of(places: Places, times: Times) -> ProgressMark:
        """The footing that reports and watermarks make."""
        waiting = [
            # SUBTLE: a size that is no number would equal no other, and never be the same as before.
            (place, report.restrictions.live, str(report.restrictions.size), report.awaited, report.leftover)
            for place, report in places.items()
            if report.restrictions.live or report.awaited or report.leftover
        ]
        return ProgressMark(times, tuple(sorted(waiting)))


def moved(places: Places) -> bool:
    """Whether any element came or went in a micro-batch."""
    return any(
        report.counts.read or report.counts.written or report.counts.unparked or report.counts.late
        for report in places.values()
    )


@dataclass(frozen=True, slots=True)
class Patience:
    """What is done about micro-batches that get nowhere though none had to wait for the clock.

    Attributes:
        micro_batches: after so many in a row somebody is told; again each time that they have doubled.
        least: pause after the first; it doubles with each one more.
        most: no pause is longer.
    """

    micro_batches: int
    least: Duration
    most: Duration

    def __post_init__(self) -> None:
        """Checks the bounds.

        Raises:
            ValueError: they make no sense.
        """
        if self.micro_batches < 1 or not 0 < self.least <= self.most:
            raise ValueError(
                f"after {self.micro_batches} micro-batches without progress, pauses from {self.least} "
                f"to {self.most} µs: at least one "
                "micro-batch, and pauses of more than nothing"
            )

    def pause(self, fruitless: int) -> Duration:
        """How long to wait after so many fruitless micro-batches in a row."""
        return Duration(min(self.least << min(fruitless - 1, 40), self.most)) if fruitless else _NO_PAUSE

    def warns(self, fruitless: int) -> bool:
        """Whether this is one of the moments at which somebody is told."""
        times, rest = divmod(fruitless, self.micro_batches)
        return not rest and times.bit_count() == 1
