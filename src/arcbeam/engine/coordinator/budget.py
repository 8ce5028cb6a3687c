"""The budget of a micro-batch.

Owns how the budget follows the duration of micro-batches. Must not know a clock: callers pass durations and times.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.engine.coordinator.consistentcut import ShardReports
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp


@dataclass(frozen=True, slots=True)
class Pace:
    """How the budget follows the micro-batches. Its parts (time, elements, bytes) change by the same factor.

    A micro-batch has a fixed cost that no budget changes: starting its tasks. The deeper levels cost more when the
    first levels do more. So the budget is not computed but moved, by the ratio of the wanted to the actual duration. It
    moves half of the way (the square root of the ratio), and at most to half or twice its value, so that one slow
    micro-batch has little effect. If the job lags, micro-batches that are too short cost more than one that is too
    long. Then the budget grows by the ratio itself, up to four times; the fixed cost does not grow with it.

    The fixed cost is most of a short micro-batch. This is worth it for low latency, but not while the job lags. A job
    that lags has longer micro-batches until it has caught up.

    Attributes:
        target: the duration of a micro-batch.
        least, most: the bounds of each part of a budget.
        catch_up: the duration of a micro-batch while the job lags.
        late: a source lags if its watermark is earlier than the clock by more than this.
    """

    target: Duration
    least: MicroBatchBudget
    most: MicroBatchBudget
    catch_up: Duration
    late: Duration

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: they contradict each other.
        """
        least, most = self.least, self.most
        within = all(
            0 < low <= high
            for low, high in ((least.time, most.time), (least.elements, most.elements), (least.bytes, most.bytes))
        )
        if not within or not 0 < self.target <= self.catch_up or self.late <= 0:
            raise ValueError(
                f"micro-batches have a target of {self.target} µs, of {self.catch_up} µs when the job lags by "
                f"{self.late} µs, and a budget from {least} to {most}: all must be more than 0, the least at most the "
                "most, and the target of a job that lags at least the usual target"
            )

    def after(
        self, budget: MicroBatchBudget, took: Duration, used_up: bool, is_behind: bool = False
    ) -> MicroBatchBudget:
        """Return the next micro-batch's budget.

        Args:
            budget: the budget of the micro-batch.
            took: the whole duration of the micro-batch.
            used_up: whether the budget cut off some work. If not, a short micro-batch says nothing about the budget.
            is_behind: see `is_behind`.
        """
        ratio = (self.catch_up if is_behind else self.target) / max(took, 1)
        if ratio > 1 and not used_up:
            return budget
        factor = min(ratio, 4.0) if is_behind and ratio > 1 else min(max(ratio**0.5, 0.5), 2.0)
        return budget.scaled(factor, self.least, self.most)

    def is_behind(self, places: ShardReports, times: WatermarkTimes, now: Timestamp) -> bool:
        """Return whether the work that a micro-batch left is overdue.

        All left-over work that waited for a watermark is overdue, because the watermark has passed. A restriction that
        may resume at once is overdue only if its output's watermark lags: it may merely look for new input.
        """
        oldest: dict[str, Timestamp] = {}
        for port, time in times.outputs.items():
            # An output without a watermark does not show how late it is.
            if time == MIN_TIMESTAMP:
                continue
            oldest[port.stage] = min(time, oldest.get(port.stage, MAX_TIMESTAMP))
        return any(
            report.leftover
            and (not report.restrictions.live or now - oldest.get(report.stage, MAX_TIMESTAMP) > self.late)
            for report in places.values()
        )
