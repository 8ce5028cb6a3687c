"""Settings of how the driver runs a job.

Owns the bounds and their defaults. Must not know how they are applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arcbeam.engine.coordinator.budget import Pace
from arcbeam.engine.coordinator.stalls import Patience
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget
from arcbeam.model.timestamps import Duration


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and how soon, a failed command is retried.

    Attributes:
        times: the number of retries in a row before the job fails.
        least: the pause before the first retry; it doubles with each further retry.
        most: the longest pause.
    """

    times: int
    least: Duration
    most: Duration

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: the bounds contradict each other.
        """
        if self.times < 0 or not 0 < self.least <= self.most:
            raise ValueError(
                f"{self.times} retries with pauses from {self.least} to {self.most} µs: times must be at least 0, "
                f"pauses "
                "more than 0, and the longest at least the shortest"
            )

    def pause(self, failures: int) -> Duration:
        """Return the pause after this many failures in a row."""
        return Duration(min(self.least << min(failures - 1, 40), self.most))


_SECOND: Final = 1_000_000
_LATE_AFTER: Final = Duration(10 * _SECOND)
# Far more elements and bytes than a task processes in half a second. These bounds are for restrictions that are quick
# compared with the work that their elements cause downstream.
_COUNTS_FIRST: Final = 1_000_000, 256 << 20
_BUDGET_MIN: Final = MicroBatchBudget(Duration(_SECOND // 20), 1_000, 1 << 20)
_COUNTS_MAX: Final = 20_000_000, 1 << 30
_REBALANCING_PATIENCE: Final = Patience(100, Duration(_SECOND // 100), Duration(_SECOND))
# A store may be unavailable for a minute.
_RETRY: Final = Retry(13, Duration(_SECOND // 10), Duration(10 * _SECOND))
# Spark replaces at once a worker that an operator or the system has killed. User code that kills its worker does so
# each time, and Spark has then tried each task several times.
_DEATHS: Final = Retry(2, Duration(_SECOND), Duration(2 * _SECOND))


def paced(target: Duration, catch_up: Duration) -> tuple[MicroBatchBudget, Pace]:
    """Return the first micro-batch's budget, and how later budgets follow from it.

    Args:
        target: the duration of a micro-batch.
        catch_up: the duration of a micro-batch while the job lags; at least `target`.

    Raises:
        ValueError: `catch_up` is less than `target`.
    """
    most = MicroBatchBudget(Duration(max(2 * catch_up, _BUDGET_MIN.time)), *_COUNTS_MAX)
    return MicroBatchBudget(Duration(max(target // 2, _BUDGET_MIN.time)), *_COUNTS_FIRST), Pace(
        target, _BUDGET_MIN, most, catch_up, _LATE_AFTER
    )


_BUDGET, _PACE = paced(Duration(_SECOND // 2), Duration(5 * _SECOND))


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of how the driver runs a job.

    Attributes:
        budget: the budget of the first micro-batch.
        pace: how the budget follows the duration of micro-batches.
        patience: what happens after micro-batches without progress.
        retry: retries of micro-batches, of commits that the store refuses, and of publishing. A commit whose outcome is
            unknown is retried without limit.
        deaths: retries of micro-batches in which a worker died.
        grace: the time limit, each, of finalization, shutdown and teardown when the job ends. A warning follows if a
            micro-batch in which stages prepare to shut down takes longer.
        haste: the time limit of teardown when the job is cancelled while it ends, if that is sooner; and when another
            driver has taken over the job.
    """

    budget: MicroBatchBudget = _BUDGET
    pace: Pace = _PACE
    patience: Patience = _REBALANCING_PATIENCE
    retry: Retry = _RETRY
    deaths: Retry = _DEATHS
    grace: Duration = Duration(60 * _SECOND)  # noqa: RUF009  # an immutable number; only the type checker sees a call
    haste: Duration = Duration(3 * _SECOND)  # noqa: RUF009
