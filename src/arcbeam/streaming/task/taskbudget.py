"""The budget of a task in a micro-batch: time, elements and bytes.

Owns the arithmetic. Must not know the work of the task.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from typing_extensions import override

from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget
from arcbeam.engine.task.bundles import Budget


class TaskBudget(Budget):
    """The budget of a task; see `arcbeam.engine.task.bundles.Budget`.

    A part begins at its first check. The elements of the exchange are processed before that, and cannot be postponed.
    If they counted, a task with many of them would fire almost no timers, in each micro-batch. The timers of these
    elements get at least the time that the elements took. Such a micro-batch is long in any case. Leftover timers cost
    more, because they are written to the state, and another micro-batch must read them again.

    Args:
        budget: the budget of the micro-batch.
        sent: returns the bytes that the task has sent so far.
        written: returns the number of elements that its user code has output so far.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        budget: MicroBatchBudget,
        sent: Callable[[], int],
        written: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = _Amount(budget.time / 1e6, budget.elements, budget.bytes)
        self._meter = _Meter(clock, written, sent)
        self._part: _Part | None = None

    @override
    def exhausted(self) -> bool:
        self._settle()
        return min(self._left) <= 0

    def part(self, fraction: float) -> _Part:
        """See `Budget`: a new part ends the part before."""
        self._settle()
        part = self._part = _Part(lambda: self._left.part(fraction), self._meter, self._meter.seconds())
        return part

    def _settle(self) -> None:
        if self._part is not None:
            self._left = self._left.minus(self._part.used())
        self._part = None


class _Part(Budget):
    """See `TaskBudget`.

    Args:
        amount: returns its amount; called when the part begins.
        meter: the meter of the task.
        since: the time when the delivery of the exchange's elements began; None if it is not for their timers.
    """

    def __init__(self, amount: Callable[[], _Amount], meter: _Meter, since: float | None = None) -> None:
        self._amount, self._meter, self._since = amount, meter, since
        self._began: _Amount | None = None
        # Seconds in addition to its amount.
        self._extra = 0.0
        self._until = self._elements = self._bytes = 0.0

    @override
    def exhausted(self) -> bool:
        if self._began is None:
            began = self._began = self._meter.read()
            amount = self._amount()
            if self._since is not None:
                self._extra = max(0.0, began.seconds - self._since - amount.seconds)
            self._until, self._elements, self._bytes = began.plus(amount)
            self._until += self._extra
        meter = self._meter
        return meter.seconds() >= self._until or meter.bytes() >= self._bytes or meter.elements() >= self._elements

    def part(self, fraction: float) -> _Part:
        """See `Budget`. Only stages with restrictions call this, so it is not for timers of the exchange's elements."""
        self._since = None
        return _Part(lambda: self._amount().part(fraction), self._meter)

    def used(self) -> _Amount:
        """Return the amount used since its begin, without the additional seconds."""
        if self._began is None:
            return _NOTHING
        used = self._meter.read().minus(self._began)
        return used._replace(seconds=max(0.0, used.seconds - self._extra))


class _Amount(NamedTuple):
    """An amount of time, elements and bytes."""

    seconds: float
    elements: float
    bytes: float

    def plus(self, other: _Amount) -> _Amount:
        return _Amount(self.seconds + other.seconds, self.elements + other.elements, self.bytes + other.bytes)

    def minus(self, other: _Amount) -> _Amount:
        return _Amount(self.seconds - other.seconds, self.elements - other.elements, self.bytes - other.bytes)

    def part(self, fraction: float) -> _Amount:
        return _Amount(self.seconds * fraction, self.elements * fraction, self.bytes * fraction)


_NOTHING: Final = _Amount(0.0, 0, 0)


class _Meter(NamedTuple):
    """The work of a task so far, and the time."""

    seconds: Callable[[], float]
    elements: Callable[[], float]
    bytes: Callable[[], float]

    def read(self) -> _Amount:
        return _Amount(self.seconds(), self.elements(), self.bytes())
