"""DoFns that take elements by lists: how they say so.

Leaf: standard library only. Who runs them so is `harness.transforms.sinks`; to other runners they are DoFns like any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any


class TakesLists(ABC):
    """Beside a DoFn: one that looks at the values and the windows of its elements, at nothing else.

    Its `process` is to do with one element what `take` does with several. It has one output, and neither side inputs
    nor state, timers and restrictions.
    """

    @abstractmethod
    def take(self, values: list[Any], window: Any) -> Iterable[Any]:
        """Takes elements, at least one.

        Args:
            values: of the elements, in order; not to be changed.
            window: in which all of them are. Those in several are given once for each.

        Returns:
            Windowed values that are put out.
        """
