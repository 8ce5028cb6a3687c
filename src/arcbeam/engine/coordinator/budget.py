"""How much a micro-batch may do.

Owns how the budget follows what micro-batches took. Must not know a clock: durations and times are told.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.engine.coordinator.consistentcut import Places
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget
from arcbeam.engine.watermarks.stages import Times
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp


@dataclass(frozen=True, slots=True)
class Pace:
    """How the budget follows the micro-batches: all of it, time, elements and bytes, by the same factor.

    A micro-batch costs a part that no budget changes (to start its tasks), and the deeper levels cost more the more the
    first ones do. So the budget is moved by the ratio of what was wanted to what it took, not to a computed value: half
    of the way (the square root), and at most to a half or twice of what it was, so one micro-batch that was slow for
    another reason does not matter much. Of a job that is behind, micro-batches that are too short cost more than one
    that is too long: there the budget grows by the ratio itself, up to four times. The fixed part does not grow with
    it.

    Of short micro-batches most is that fixed part. That is worth it where somebody waits for what has just happened,
    and not for a job that is behind: that one has longer micro-batches, until it has caught up.

    Attributes:
        target: how long a micro-batch should take.
        least, most: each part of a budget is between these.
        behind: how long a micro-batch of a job that is behind should take.
        late: a source is behind if its watermark is so much earlier than the clock.
    """

    target: Duration
    least: MicroBatchBudget
    most: MicroBatchBudget
    behind: Duration
    late: Duration

    def __post_init__(self) -> None:
        """Checks the bounds.

        Raises:
            ValueError: they contradict each other.
        """
        least, most = self.least, self.most
        within = all(
            0 < low <= high
            for low, high in ((least.time, most.time), (least.elements, most.elements), (least.bytes, most.bytes))
        )
        if not within or not 0 < self.target <= self.behind or self.late <= 0:
            raise ValueError(
                f"micro-batches have a target of {self.target} µs, of {self.behind} µs when the job "
                f"is {self.late} µs behind, "
                f"and a budget from {least} to {most}: all must be more than nothing, the least no more than the most, "
                "and no target shorter for a job that is behind"
            )

    def after(
        self, budget: MicroBatchBudget, took: Duration, used_up: bool, is_behind: bool = False
    ) -> MicroBatchBudget:
        """The next micro-batch's budget.

        Args:
            budget: the micro-batch's.
            took: the micro-batch's whole duration.
            used_up: whether it ended some of the work. If not, a short micro-batch says nothing about the budget.
            is_behind: see `is_behind`.
        """
        ratio = (self.behind if is_behind else self.target) / max(took, 1)
        if ratio > 1 and not used_up:
            return budget
        factor = min(ratio, 4.0) if is_behind and ratio > 1 else min(max(ratio**0.5, 0.5), 2.0)
        return budget.scaled(factor, self.least, self.most)

    def is_behind(self, places: Places, times: Times, now: Timestamp) -> bool:
        """Whether what a micro-batch has left is due for long.

        That is so for all that waits for a watermark, and was left when it had passed. A restriction that may go on at
        once may have nothing to do but to look for what has just come: it is behind if its output's watermark is.
        """
        oldest: dict[str, Timestamp] = {}
        for port, time in times.outputs.items():
            # One that reports no watermark says nothing of how late it is.
            if time == MIN_TIMESTAMP:
                continue
            oldest[port.stage] = min(time, oldest.get(port.stage, MAX_TIMESTAMP))
        return any(
            report.leftover
            and (not report.restrictions.live or now - oldest.get(report.stage, MAX_TIMESTAMP) > self.late)
            for report in places.values()
        )
