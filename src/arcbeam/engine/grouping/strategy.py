"""The strategy of a grouping: a windowing strategy without the assignment of windows.

Owns its parts and what follows from them alone. Must not know keys, state or protos.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from arcbeam.engine.grouping.contents import Combiner
from arcbeam.engine.grouping.merging import Merging
from arcbeam.engine.grouping.triggers import Trigger
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, Duration, Timestamp, shifted
from arcbeam.model.windows import Window


class PaneTime(Enum):
    """The timestamp of a pane."""

    END_OF_WINDOW = "end of window"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Strategy:
    """The strategy of a grouping.

    Attributes:
        trigger: in its first state.
        merging: how windows merge; None if they do not.
        combiner: makes accumulators of elements; None: a pane contains the elements, which are bytes.
        accumulating: a pane has all elements of its window so far, not only those since the last pane.
        pane_time: which elements determine the timestamp of a pane.
        lateness: how long after its end a window stays open.
        empty_on_time: a trigger that fires when the watermark passes makes a pane even without new elements.
        empty_last: so does the closing of a window.
        output_time: the window function's own timestamp of an element for `pane_time`; None: the element's.
    """

    trigger: Trigger
    merging: Merging | None = None
    combiner: Combiner | None = None
    accumulating: bool = False
    pane_time: PaneTime = PaneTime.END_OF_WINDOW
    lateness: Duration = Duration(0)  # noqa: RUF009  # an immutable number; only the type checker sees a call
    empty_on_time: bool = True
    empty_last: bool = False
    output_time: Callable[[Window, Timestamp], Timestamp] | None = None

    def __post_init__(self) -> None:
        if self.lateness < 0:
            raise ValueError(f"the allowed lateness must be at least 0: {self.lateness} µs")

    def expiry(self, window: Window) -> Timestamp:
        """Return when a window expires: when the input watermark is greater than this, at the latest at the end."""
        return min(shifted(window.max_timestamp, self.lateness), END_OF_GLOBAL_WINDOW)

    @property
    def awaits_end(self) -> bool:
        """Whether an empty window emits a pane when the watermark passes its end."""
        return self.empty_on_time and self.trigger.on_time()

    @property
    def combine_times(self) -> Callable[[list[Timestamp]], Timestamp] | None:
        """The timestamp of a pane from those of its elements; None if it is the end of its window."""
        match self.pane_time:
            case PaneTime.EARLIEST:
                return min
            case PaneTime.LATEST:
                return max
            case PaneTime.END_OF_WINDOW:
                return None
