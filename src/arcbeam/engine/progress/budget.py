"""How much a step may do.

Owns how the budget follows what steps took. Must not know a clock: durations are told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from arcbeam.engine.plan.stepplan import StepBudget
from arcbeam.model.timestamps import Duration


@dataclass(frozen=True, slots=True)
class Pace:
    """How the budget's time follows the steps.

    A step costs a part that no budget changes (to start its tasks), and the deeper levels cost more the more the first
    ones do. So the budget is moved by the ratio of what was wanted to what it took, not to a computed value: half of
    the way (the square root), and at most to a half or twice of what it was, so one step that was slow for another
    reason does not matter much.

    Attributes:
        target: how long a step should take.
        least, most: the time in a budget is between these.
    """

    target: Duration
    least: Duration
    most: Duration

    def __post_init__(self) -> None:
        """Checks the bounds.

        Raises:
            ValueError: they contradict each other.
        """
        if not 0 < self.least <= self.most or self.target <= 0:
            raise ValueError(
                f"steps have a target of {self.target} µs and a budget from {self.least} to {self.most} µs: all must "
                "be more than nothing, and the least no more than the most"
            )

    def after(self, budget: StepBudget, took: Duration, used_up: bool) -> StepBudget:
        """The next step's budget.

        Args:
            budget: the step's.
            took: the step's whole duration.
            used_up: whether it ended some of the work. If not, a short step says nothing about the budget.
        """
        ratio = self.target / max(took, 1)
        if ratio > 1 and not used_up:
            return budget
        time = round(budget.time * min(max(ratio**0.5, 0.5), 2.0))
        return replace(budget, time=Duration(min(max(time, self.least), self.most)))
