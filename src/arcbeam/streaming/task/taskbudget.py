"""How much a task of a micro-batch may do: time, elements and bytes.

Owns the sums. Must not know what is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from typing_extensions import override

from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget
from arcbeam.engine.task.bundles import Budget


class TaskBudget(Budget):
    """How much a task may do; see `arcbeam.engine.task.bundles.Budget`.

    A part begins when it is first asked. What is done before that, with what has come by the exchange, cannot be left:
    if that counted, a task that has much of it would fire next to nothing, micro-batch after micro-batch. The timers of
    what has come have as long as that took, at least: such a micro-batch is a long one in any case, and what is left
    costs more, since it is written to the state, and found again by another micro-batch.

    Args:
        budget: of the micro-batch.
        sent: bytes that the task has sent so far.
        written: elements that its user code has put out so far.
        clock: seconds.
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
        """See `Budget`: one at a time, the last one ends with that."""
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
        amount: how much it has, asked for when it begins.
        meter: of the task.
        since: when what comes by the exchange began to be delivered; None if it is not for what came.
    """

    def __init__(self, amount: Callable[[], _Amount], meter: _Meter, since: float | None = None) -> None:
        self._amount, self._meter, self._since = amount, meter, since
        self._began: _Amount | None = None
        # Seconds beside its amount.
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
        """See `Budget`. Whoever asks for one has restrictions, not timers of what has come."""
        self._since = None
        return _Part(lambda: self._amount().part(fraction), self._meter)

    def used(self) -> _Amount:
        """What was done since it began, of its amount."""
        if self._began is None:
            return _NOTHING
        used = self._meter.read().minus(self._began)
        return used._replace(seconds=max(0.0, used.seconds - self._extra))


class _Amount(NamedTuple):
    """What a budget is of."""

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
    """What a task has done so far, and the time."""

    seconds: Callable[[], float]
    elements: Callable[[], float]
    bytes: Callable[[], float]

    def read(self) -> _Amount:
        return _Amount(self.seconds(), self.elements(), self.bytes())
