"""How a grouping groups: a windowing strategy without the windows' assignment.

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
    """How a grouping groups.

    Attributes:
        trigger: in its first state.
        merging: how windows become one; None if they do not.
        combiner: makes accumulators of elements; None: a pane has the elements, which are bytes.
        accumulating: a pane has all elements of its window so far, not only those since the last pane.
        pane_time: of which elements a pane has its timestamp.
        lateness: how long after its end a window is open.
        empty_on_time: a trigger that fires when the watermark passes makes a pane even if nothing came since the last.
        empty_last: so does the closing of a window.
        output_time: the window function's own timestamp of an element for `pane_time`; None: the element's.
    """

    trigger: Trigger
    merging: Merging | None = None
    combiner: Combiner | None = None
    accumulating: bool = False
    pane_time: PaneTime = PaneTime.END_OF_WINDOW
    lateness: Duration = Duration(0)  # noqa: RUF009  # a number to everybody but the type checker
    empty_on_time: bool = True
    empty_last: bool = False
    output_time: Callable[[Window, Timestamp], Timestamp] | None = None

    def __post_init__(self) -> None:
        if self.lateness < 0:
            raise ValueError(f"the allowed lateness is not less than nothing: {self.lateness} microseconds")

    def expiry(self, window: Window) -> Timestamp:
        """The window has expired when the input watermark is behind that time; at the latest when it is at its end."""
        return min(shifted(window.max_timestamp, self.lateness), END_OF_GLOBAL_WINDOW)

    @property
    def awaits_end(self) -> bool:
        """Whether a window that is empty still puts out a pane when the watermark passes its end."""
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
