"""DoFns that process elements in lists, and how they declare it.

A leaf: standard library only. `harness.transforms.sinks` runs them so; for other runners they are ordinary DoFns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
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
