"""Windows as bytes of ordered keys."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import NO_PANE, CustomWindow, IntervalWindow, PaneInfo, Timing

intervals = st.builds(IntervalWindow, st.integers(MIN_TIMESTAMP - 10**12, MAX_TIMESTAMP), st.integers(-(10**18), 2**65))


@given(one=intervals, other=intervals)
def test_bytes_of_intervals_sort_by_end(one: Any, other: Any) -> None:
    assert IntervalWindow.from_ordered(one.ordered()) == one
    assert (one.ordered() < other.ordered()) == ((one.end, one.start) < (other.end, other.start))
    assert (one.ordered() >= IntervalWindow.behind(other.end)) == (one.end > other.end)


def test_custom_window_is_decoded() -> None:
    w = CustomWindow(b"\x00abc", Timestamp(-5))
    assert CustomWindow.from_ordered(w.ordered()) == w


@given(
    st.builds(
        PaneInfo,
        st.integers(0, 2**63),
        st.integers(-1, 2**63),
        st.sampled_from(Timing),
        st.booleans(),
        st.booleans(),
    )
)
def test_pane_is_decoded(pane: PaneInfo) -> None:
    assert PaneInfo.unpacked(pane.packed()) == pane


def test_first_pane_takes_few_bytes() -> None:
    assert NO_PANE.packed() == b""
    assert len(PaneInfo(0, 0, Timing.ON_TIME, True, True).packed()) == 3
