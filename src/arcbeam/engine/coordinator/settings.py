"""What a user may set about how a job is driven.

Owns the bounds and their defaults. Must not know what is done with them.
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
    """How often, and how soon, something that failed is tried again.

    Attributes:
        times: in a row, before it is given up.
        least: pause before the first time; it doubles with each one more.
        most: no pause is longer.
    """

    times: int
    least: Duration
    most: Duration

    def __post_init__(self) -> None:
        """Checks the bounds.

        Raises:
            ValueError: they make no sense.
        """
        if self.times < 0 or not 0 < self.least <= self.most:
            raise ValueError(f"{self.times} tries with pauses from {self.least} to {self.most} µs: not less than none")

    def pause(self, failures: int) -> Duration:
        """How long to wait after so many failures in a row."""
        return Duration(min(self.least << min(failures - 1, 40), self.most))


_SECOND: Final = 1_000_000
_LATE: Final = Duration(10 * _SECOND)
# Of elements and bytes, far more than a task comes to in half a second: they are for restrictions that are quick beside
# what their elements lead to.
_FIRST: Final = 1_000_000, 256 << 20
_LEAST: Final = MicroBatchBudget(Duration(_SECOND // 20), 1_000, 1 << 20)
_MOST: Final = 20_000_000, 1 << 30
_PATIENCE: Final = Patience(100, Duration(_SECOND // 100), Duration(_SECOND))
# A store may be away for a minute.
_RETRY: Final = Retry(13, Duration(_SECOND // 10), Duration(10 * _SECOND))
# A worker that an operator or the system has killed is replaced at once. User code that kills its worker does so each
# time, and Spark has tried each task several times by then.
_DEATHS: Final = Retry(2, Duration(_SECOND), Duration(2 * _SECOND))


def paced(target: Duration, behind: Duration) -> tuple[MicroBatchBudget, Pace]:
    """The first micro-batch's budget, and how it goes on, for micro-batches that should take so long.

    Args:
        target: of a micro-batch.
        behind: of a micro-batch of a job that is behind; not less.

    Raises:
        ValueError: it is less.
    """
    most = MicroBatchBudget(Duration(max(2 * behind, _LEAST.time)), *_MOST)
    return MicroBatchBudget(Duration(max(target // 2, _LEAST.time)), *_FIRST), Pace(target, _LEAST, most, behind, _LATE)


_BUDGET, _PACE = paced(Duration(_SECOND // 2), Duration(5 * _SECOND))


@dataclass(frozen=True, slots=True)
class Settings:
    """How a job is driven.

    Attributes:
        budget: of the first micro-batch.
        pace: how it follows what micro-batches take.
        patience: about micro-batches that get nowhere.
        retry: of micro-batches, commits that the store refuses, and publishing. Unclear commits are asked about for
            ever.
        deaths: of micro-batches in which a worker died.
        grace: how long finalization, shutdown and teardown may take, each, when the job ends; and a micro-batch in
            which stages prepare for that, before it is told that it takes long.
        haste: how long teardown may take from when the job is cancelled while it ends, if that is sooner; and when
            another driver has taken the job over.
    """

    budget: MicroBatchBudget = _BUDGET
    pace: Pace = _PACE
    patience: Patience = _PATIENCE
    retry: Retry = _RETRY
    deaths: Retry = _DEATHS
    grace: Duration = Duration(60 * _SECOND)  # noqa: RUF009  # a number to everybody but the type checker
    haste: Duration = Duration(3 * _SECOND)  # noqa: RUF009
