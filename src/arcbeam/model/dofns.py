"""What DoFns may declare that Beam does not have: that they take lists, that they know idle restrictions.

A leaf: standard library only. `harness.transforms.sinks` and `harness.streaming.restrictions` use it; for other runners
these are ordinary DoFns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class TakesLists(ABC):
    """A mixin for a DoFn that only uses the values and the windows of its elements.

    `process` must do with one element what `take` does with several. The DoFn has one output, and neither side inputs
    nor state, timers and restrictions.
    """

    @abstractmethod
    def take(self, values: list[Any], window: Any) -> Iterable[Any]:
        """Process elements, at least one.

        Args:
            values: the values of the elements, in order; do not change the list.
            window: the window of all of them. Elements in several windows are passed once for each.

        Returns:
            The output, as windowed values.
        """


@dataclass(frozen=True, slots=True)
class Idle:
    """A restriction has nothing to do yet.

    Attributes:
        seconds: until the next call of `idle` or `process`.
        watermark: the watermark that it then has, in microseconds; None: it does not change.
    """

    seconds: float
    watermark: int | None


class KnowsIdle(ABC):
    """A mixin for a splittable DoFn, most of whose restrictions have nothing to do most of the time."""

    @abstractmethod
    def idle(self, element: Any, restriction: Any) -> Idle | None:
        """Return that `process` would only defer a restriction; None if it may do more.

        It is called within a bundle, for restrictions of size 0 that `process` has deferred.

        Args:
            element: the element of the restriction; do not change it.
            restriction: the restriction; do not change it.
        """
