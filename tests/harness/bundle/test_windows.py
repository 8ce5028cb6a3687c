"""Conversion of windows and panes between the SDK and the engine."""

from __future__ import annotations

from typing import Any

import pytest
from apache_beam.coders.coders import GlobalWindowCoder, IntervalWindowCoder, PaneInfoCoder
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, PaneInfoTiming

from arcbeam.harness.bundle.windows import Windows, our_pane, their_pane
from arcbeam.harness.encoding import windowcoder
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, CustomWindow, IntervalWindow
from tests.harness.batch.test_windows import Month, MonthCoder


def interval(start: int, end: int) -> Any:
    return window.IntervalWindow(SdkTimestamp(micros=start), SdkTimestamp(micros=end))


CASES = [
    (GlobalWindowCoder(), window.GlobalWindow(), GLOBAL_WINDOW),
    (IntervalWindowCoder(), interval(-5_000, 10_000), IntervalWindow(-5_000, 10_000)),
    (windowcoder.IntervalWindowCoder(), interval(-5, 10), IntervalWindow(-5, 10)),
    (windowcoder.IntervalWindowCoder(), interval(-(2**64), 2**64), IntervalWindow(-(2**64), 2**64)),
    (windowcoder.IntervalWindowCoder(), interval(-5, 2**64), IntervalWindow(-5, 2**64)),
    (windowcoder.IntervalWindowCoder(), interval(-(2**64), 10), IntervalWindow(-(2**64), 10)),
    (MonthCoder(), Month(2024, 2), CustomWindow(b"2024-2", int(Month(2024, 2).max_timestamp().micros))),
    (MonthCoder(), Month(9999, 11), None),
]


@pytest.mark.parametrize(("coder", "theirs", "ours"), CASES)
def test_window_conversion_is_reversible(coder: Any, theirs: Any, ours: Any) -> None:
    windows = Windows(coder)
    found = windows.ours(theirs)
    assert ours is None or found == ours
    assert found.max_timestamp == min(theirs.max_timestamp().micros, END_OF_GLOBAL_WINDOW)
    assert windows.theirs(found) == theirs
    assert windows.decode(found.ordered()) == found
    assert windows.ordered(coder.encode(theirs)) == found.ordered()
    assert windows.all_ours((theirs, theirs)) == (found, found)


@pytest.mark.parametrize(
    "pane",
    [
        PANE_INFO_UNKNOWN,
        PaneInfo(True, False, PaneInfoTiming.EARLY, 0, -1),
        PaneInfo(False, True, PaneInfoTiming.LATE, 7, 3),
        PaneInfo(True, True, PaneInfoTiming.ON_TIME, 0, 0),
    ],
)
def test_pane_conversion_is_reversible(pane: Any) -> None:
    assert their_pane(our_pane(pane)) == pane


def test_short_lived_tuples_are_distinguished() -> None:
    """A new tuple may get the identity of a deleted one."""
    windows = Windows(IntervalWindowCoder())
    for start in range(200):
        assert windows.all_ours((interval(start, start + 5),)) == (IntervalWindow(start, start + 5),)


def test_unknown_pane_is_converted() -> None:
    assert our_pane(PANE_INFO_UNKNOWN) is NO_PANE
    assert their_pane(NO_PANE) is PANE_INFO_UNKNOWN


def test_pane_of_zeros_has_an_index() -> None:
    # The Go SDK has it where an element has no pane.
    pane = our_pane(PaneInfoCoder().decode(b"\0"))
    assert (pane.index, pane.nonspeculative_index) == (0, -1)
    assert pane.unpacked(pane.packed()) == pane
