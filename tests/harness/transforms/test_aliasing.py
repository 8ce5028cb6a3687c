"""Combiners that change what they are given, against sums that this module computes itself.

Beam lets `add_input` and `merge_accumulators` change their accumulators, and forbids user code to change its inputs.
The combiners here change every accumulator of a merge, not only the first, and results are parts of accumulators.
Elements are in four windows each, or in windows that merge, or count for several panes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import trigger, window

from tests.harness.drive import Collect, Driven
from tests.harness.step.stepped import Stepped
from tests.harness.step.test_groupings import _first, _own
from tests.harness.step.test_stateful import Cutting

PERIOD, SIZE = 3, 12
ELEMENTS = [("ab"[n % 2], n, n * 7 % 31) for n in range(60)]
"""Key, value and time."""


class Greedy(beam.CombineFn):  # type: ignore[misc]  # Beam is untyped
    """A list of values. Pours all of a merge into the accumulator at `into`, and empties the others."""

    def __init__(self, into: int) -> None:
        self._into = into

    def create_accumulator(self) -> list[int]:
        return []

    def add_input(self, accumulator: list[int], element: int) -> list[int]:
        accumulator.append(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[int]]) -> list[int]:
        every = list(accumulators)
        kept = every[self._into % len(every)]
        for each in every:
            if each is not kept:
                kept += each
                each.clear()
        return kept

    def extract_output(self, accumulator: list[int]) -> list[int]:
        accumulator.sort()
        return accumulator


class Compacting(Greedy):
    """Also changes the accumulator when it is made small."""

    def compact(self, accumulator: list[int]) -> list[int]:
        accumulator.sort()
        return accumulator


def expected_in(windowing: Any) -> dict[Any, list[int]]:
    """Values by key and window."""
    found: dict[Any, list[int]] = defaultdict(list)
    if isinstance(windowing, window.Sessions):
        for key in "ab":
            times = sorted((time, n) for k, n, time in ELEMENTS if k == key)
            start = end = times[0][0]
            together: list[int] = []
            for time, n in times:
                if time >= end + 2 and together:
                    found[key, window.IntervalWindow(start, end + 2)] = sorted(together)
                    start, together = time, []
                end = time
                together.append(n)
            found[key, window.IntervalWindow(start, end + 2)] = sorted(together)
        return found
    for key, n, time in ELEMENTS:
        for start in range(time - time % PERIOD, time - SIZE, -PERIOD):
            found[key, window.IntervalWindow(start, start + SIZE)].append(n)
    return {place: sorted(values) for place, values in found.items()}


def build(p: Any, fn: beam.CombineFn, windowing: Any, **how: Any) -> Any:
    timed = p | beam.Create(ELEMENTS, reshuffle=False)
    timed |= beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[str, int])
    return timed | beam.WindowInto(windowing, **how) | beam.CombinePerKey(fn) | Collect()


def found_in(p: Any) -> dict[Any, list[int]]:
    return {(key, in_window): sorted(values) for (key, values), _, in_window in p.windowed()}


@pytest.mark.parametrize(
    "fn", [Greedy(0), Greedy(1), Greedy(-1), Compacting(-1)], ids=["first", "second", "last", "compact"]
)
@pytest.mark.parametrize(
    "windowing", [window.SlidingWindows(SIZE, PERIOD), window.Sessions(2)], ids=["sliding", "sessions"]
)
@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_bounded_merge_may_change_accumulators(fn: Any, windowing: Any, memory: int) -> None:
    with Driven(shards=2, group_memory_bytes=memory) as p:
        build(p, fn, windowing)
    assert found_in(p) == expected_in(windowing)


@pytest.mark.parametrize("into", [0, -1])
@pytest.mark.parametrize(
    "windowing", [window.SlidingWindows(SIZE, PERIOD), window.Sessions(2)], ids=["sliding", "sessions"]
)
@pytest.mark.parametrize("seed", range(4))
def test_merge_in_steps_may_change_accumulators(into: int, windowing: Any, seed: int) -> None:
    p = Stepped(Cutting(seed, _first, jumps=seed % 2 == 0))
    with p:
        build(p, Greedy(into), windowing)
    assert found_in(p) == expected_in(windowing)


@pytest.mark.parametrize("seed", range(4))
def test_accumulating_panes_keep_what_results_share(seed: int) -> None:
    """The result of an early pane is the accumulator of the next: each pane holds what the one before held."""
    windowing = window.SlidingWindows(SIZE, PERIOD)
    early = trigger.AfterWatermark(early=trigger.AfterCount(1))
    p = Stepped(Cutting(seed, _own, jumps=False))
    with p:
        build(p, Greedy(-1), windowing, trigger=early, accumulation_mode=trigger.AccumulationMode.ACCUMULATING)
    panes: dict[Any, list[list[int]]] = defaultdict(list)
    for (key, values), _, in_window in p.windowed():
        panes[key, in_window].append(sorted(values))
    assert {place: each[-1] for place, each in panes.items()} == expected_in(windowing)
    for each in panes.values():
        assert all(set(one) <= set(following) for one, following in pairwise(each))


def test_values_put_out_before_a_change_are_as_they_were() -> None:
    """A DoFn may change its own list after an exchange has taken it: the exchange holds bytes or a copy of its own."""

    class Twice(beam.DoFn):  # type: ignore[misc]
        def process(self, element: int) -> Any:
            values = [element]
            yield "k", tuple(values)
            values.append(-1)
            yield "k", tuple(values)

    with Driven(shards=1) as p:
        _ = p | beam.Create([1, 2], reshuffle=False) | beam.ParDo(Twice()) | beam.GroupByKey() | Collect()
    ((_, values),) = p.values()
    assert sorted(values) == [(1,), (1, -1), (2,), (2, -1)]
