"""The merging of windows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from apache_beam.transforms import window as sdk
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.grouping.merging import CustomMerging, Merge, SessionMerging
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import IntervalWindow

pytestmark = pytest.mark.contract("ENG-11")


def interval(start: int, end: int) -> IntervalWindow:
    return IntervalWindow(Timestamp(start), Timestamp(end))


windows = st.builds(lambda start, length: interval(start, start + length), st.integers(0, 60), st.integers(1, 8))


def by_sdk(arrived: Iterable[IntervalWindow]) -> set[IntervalWindow]:
    open = {sdk.IntervalWindow(start, end) for start, end in arrived}

    class Context(sdk.WindowFn.MergeContext):  # type: ignore[misc]
        def merge(self, to_be_merged: Any, merge_result: Any) -> None:
            open.difference_update(to_be_merged)
            open.add(merge_result)

    sdk.Sessions(1).merge(Context(list(open)))
    return {interval(int(window.start), int(window.end)) for window in open}


@given(arrived=st.lists(windows, max_size=20))
def test_sessions_equal_those_of_the_sdk(arrived: list[IntervalWindow]) -> None:
    active, open = SessionMerging().open([]), set()
    for window in arrived:
        merges = active.insert(window)
        open.add(window)
        for merge in merges:
            assert set(merge.windows) <= open
            open -= set(merge.windows)
            open.add(merge.result)
    assert open == by_sdk(arrived)


@given(arrived=st.lists(windows, min_size=1, max_size=20))
def test_joined_windows_equal_merged_windows(arrived: list[IntervalWindow]) -> None:
    elements = [(n, Timestamp(window.start), window) for n, window in enumerate(arrived)]
    joined = SessionMerging().join(elements, MIN_TIMESTAMP)
    assert joined is not None
    assert {one.window for one in joined} == by_sdk(arrived)
    assert sorted(n for one in joined for n in one.values) == list(range(len(arrived)))
    assert all(one.window.start <= time < one.window.end for one in joined for time in one.times)  # type: ignore[union-attr]


def test_ended_windows_are_not_joined() -> None:
    elements = [(0, Timestamp(5), interval(5, 8)), (1, Timestamp(6), interval(6, 9))]
    assert SessionMerging().join(elements, Timestamp(7)) is not None
    assert SessionMerging().join(elements, Timestamp(8)) is None


@given(stored=st.lists(windows, max_size=20), arrived=windows)
def test_only_near_sessions_are_read(stored: list[IntervalWindow], arrived: IntervalWindow) -> None:
    open = sorted(by_sdk(stored), key=lambda window: window.ordered())
    read = []

    def scan(ordered: bytes) -> Any:
        for window in open:
            if window.ordered() >= ordered:
                read.append(window)
                yield window.ordered(), b"record"

    near = [window for window, _ in SessionMerging().near([arrived], scan)]
    assert near == [window for window in open if window.start < arrived.end and window.end > arrived.start]
    assert len(read) <= len(near) + 1


class Wrong:
    """Merges windows that do not exist."""

    def merge(self, windows: Any) -> Iterable[Merge]:
        return [Merge((*windows, interval(1, 2)), interval(0, 9))]


def test_merging_function_of_unknown_windows_is_named() -> None:
    with pytest.raises(ValueError, match=r"Wrong\.merge merges .*start=1, end=2"):
        CustomMerging(Wrong(), intervals=True).open([]).insert(interval(5, 6))
