"""Random triggers, window functions and groupings. Times are microseconds, few of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from arcbeam.engine.grouping.composites import AfterAll, AfterAny, AfterEach, AfterWatermark, OrFinally, Repeatedly
from arcbeam.engine.grouping.delays import AlignTo, Delay
from arcbeam.engine.grouping.merging import CustomMerging, Merge, SessionMerging
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.engine.grouping.triggers import AfterCount, AfterSynchronizedTime, AfterTime, Always, Never, Trigger
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import CustomWindow, Window
from arcbeam.testing.windowfns import FixedWindows, GlobalWindows, Sessions, SlidingWindows


def delayed(by: int) -> AfterTime:
    return AfterTime(Delay(Duration(by)))


untimed_leaves = st.one_of(
    st.integers(1, 6).map(AfterCount), st.builds(Always), st.builds(Never), st.builds(AfterWatermark)
)
timed_leaves = st.one_of(
    st.integers(0, 9).map(delayed),
    st.builds(AfterSynchronizedTime),
    st.builds(lambda by: AfterTime(Delay(Duration(by)), AlignTo(Duration(10), Duration(0))), st.integers(0, 9)),
)


def trees(leaves: st.SearchStrategy[Trigger]) -> st.SearchStrategy[Trigger]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            inner.map(Repeatedly),
            st.lists(inner, min_size=1, max_size=3).map(lambda ts: AfterAny(*ts)),
            st.lists(inner, min_size=1, max_size=3).map(lambda ts: AfterAll(*ts)),
            st.lists(inner, min_size=1, max_size=3).map(lambda ts: AfterEach(*ts)),
            st.builds(OrFinally, inner, inner),
            st.builds(AfterWatermark, st.none() | inner, st.none() | inner),
        ),
        max_leaves=6,
    )


triggers = trees(untimed_leaves | timed_leaves)
untimed_triggers = trees(untimed_leaves)


@dataclass(frozen=True)
class Decades:
    """Custom windows that merge: windows less than three apart merge, but not across a multiple of ten."""

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        return (self._window(timestamp, timestamp),)

    @staticmethod
    def _window(first: int, last: int) -> CustomWindow:
        return CustomWindow(f"{first}..{last}".encode(), Timestamp(last + 2))

    @staticmethod
    def bounds(window: Any) -> tuple[int, int]:
        first, last = window.encoded.decode().split("..")
        return int(first), int(last)

    def merge(self, windows: Sequence[Window]) -> Iterator[Merge]:
        group: list[Window] = []
        for window in [*sorted(windows, key=self.bounds), None]:
            if window is not None and (not group or self._joins(group[-1], window)):
                group.append(window)
                continue
            if len(group) > 1:
                ends = [self.bounds(one) for one in group]
                yield Merge(tuple(group), self._window(ends[0][0], max(last for _, last in ends)))
            group = [window] if window is not None else []

    def _joins(self, one: Window, other: Window) -> bool:
        last, first = self.bounds(one)[1], self.bounds(other)[0]
        return first - last < 3 and first // 10 == last // 10


class Concat:
    """A combiner whose accumulators show every element."""

    def create(self) -> list[str]:
        return []

    def add(self, accumulator: list[str], values: Sequence[bytes]) -> list[str]:
        accumulator.extend(value.decode() for value in values)
        return accumulator

    def merge(self, accumulators: Sequence[list[str]]) -> list[str]:
        return [value for accumulator in accumulators for value in accumulator]

    def compact(self, accumulator: list[str]) -> list[str]:
        return sorted(accumulator)

    def extract(self, accumulator: list[str]) -> list[str]:
        return accumulator

    def encode(self, accumulator: list[str]) -> bytes:
        return json.dumps(accumulator).encode()

    def decode(self, data: bytes) -> list[str]:
        return json.loads(data)  # type: ignore[no-any-return]


windowfns: st.SearchStrategy[Any] = st.sampled_from(
    [
        GlobalWindows(),
        FixedWindows(Duration(5), Duration(0)),
        SlidingWindows(Duration(6), Duration(3), Duration(1)),
        SlidingWindows(Duration(3), Duration(5), Duration(0)),
        Sessions(Duration(3)),
        Decades(),
    ]
)


def merging_of(windowfn: Any) -> Any:
    if isinstance(windowfn, Sessions):
        return SessionMerging()
    return CustomMerging(windowfn) if isinstance(windowfn, Decades) else None


@st.composite
def groupings(draw: st.DrawFn, triggers: st.SearchStrategy[Trigger] = triggers) -> tuple[Strategy, Any]:
    """(strategy, window function)."""
    windowfn = draw(windowfns)
    strategy = Strategy(
        trigger=draw(triggers),
        merging=merging_of(windowfn),
        combiner=draw(st.sampled_from([None, Concat()])),
        accumulating=draw(st.booleans()),
        pane_time=draw(st.sampled_from(PaneTime)),
        lateness=Duration(draw(st.sampled_from([0, 2, 7, 1000]))),
        empty_on_time=draw(st.booleans()),
        empty_last=draw(st.booleans()),
    )
    return strategy, windowfn
