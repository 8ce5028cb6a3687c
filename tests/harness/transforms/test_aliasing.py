"""Combiners that change their arguments, compared with sums that this module computes itself.

Beam allows `add_input` and `merge_accumulators` to change their accumulators, and forbids user code to change inputs.
The combiners here change every accumulator of a merge, not only the first, and their results are parts of accumulators.
Elements are in four windows each, or in windows that merge, or count for several panes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder
from apache_beam.transforms import combiners, trigger, userstate, window

from arcbeam.io import WithLate
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches
from tests.harness.streaming.test_groupings import _first, _own
from tests.harness.streaming.test_stateful import Cutting

PERIOD, SIZE = 3, 12
ELEMENTS = [("ab"[n % 2], n, n * 7 % 31) for n in range(60)]
"""Key, value and time."""


class Greedy(beam.CombineFn):  # type: ignore[misc]  # Beam is untyped
    """A list of values. Moves all values of a merge into the accumulator at `into`, and empties the others."""

    def __init__(self, into: int) -> None:
        self._into = into

    def create_accumulator(self) -> list[int]:
        return []

    def add_input(self, accumulator: list[int], element: int) -> list[int]:
        accumulator.append(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[int]]) -> list[int]:
        every = list(accumulators) or [[]]
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
    """Also changes the accumulator when it is compacted."""

    def compact(self, accumulator: list[int]) -> list[int]:
        accumulator.sort()
        return accumulator


class Draining(Greedy):
    """Empties the accumulator when its output is extracted, which Beam allows."""

    def extract_output(self, accumulator: list[int]) -> list[int]:
        output = sorted(accumulator)
        accumulator.clear()
        return output


def expected_in(windowing: Any) -> dict[Any, list[int]]:
    """Return values by key and window."""
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
        period = windowing.period.micros // 1_000_000
        for start in range(time - time % period, time - SIZE, -period):
            found[key, window.IntervalWindow(start, start + SIZE)].append(n)
    return {place: sorted(values) for place, values in found.items()}


def build(p: Any, fn: beam.CombineFn, windowing: Any, **how: Any) -> Any:
    timed = p | beam.Create(ELEMENTS, reshuffle=False)
    timed |= beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[str, int])
    return timed | beam.WindowInto(windowing, **how) | beam.CombinePerKey(fn) | Collect()


def found_in(p: Any) -> dict[Any, list[int]]:
    return {(key, in_window): sorted(values) for (key, values), _, in_window in p.windowed()}


@pytest.mark.parametrize(
    "fn",
    [Greedy(0), Greedy(1), Greedy(-1), Compacting(-1), Draining(0)],
    ids=["first", "second", "last", "compact", "drain"],
)
@pytest.mark.parametrize(
    "windowing",
    [*(window.SlidingWindows(SIZE, period) for period in (PERIOD, 4, 6)), window.Sessions(2)],
    ids=["four windows", "three windows", "two windows", "sessions"],
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
    p = InMicroBatches(Cutting(seed, _first, jumps=seed % 2 == 0))
    with p:
        build(p, Greedy(into), windowing)
    assert found_in(p) == expected_in(windowing)


@pytest.mark.parametrize(("fn", "seed"), [*((Greedy(-1), seed) for seed in range(4)), (Draining(0), 4)])
def test_accumulating_panes_keep_what_results_share(fn: Any, seed: int) -> None:
    """The result of an early pane is the accumulator of the next one: each pane contains the previous one."""
    windowing = window.SlidingWindows(SIZE, PERIOD)
    early = trigger.AfterWatermark(early=trigger.AfterCount(1))
    p = InMicroBatches(Cutting(seed, _own, jumps=False))
    with p:
        build(p, fn, windowing, trigger=early, accumulation_mode=trigger.AccumulationMode.ACCUMULATING)
    panes: dict[Any, list[list[int]]] = defaultdict(list)
    for (key, values), _, in_window in p.windowed():
        panes[key, in_window].append(sorted(values))
    assert {place: each[-1] for place, each in panes.items()} == expected_in(windowing)
    for each in panes.values():
        assert all(set(one) <= set(following) for one, following in pairwise(each))


def running(fn: beam.CombineFn) -> beam.DoFn:
    """Return a DoFn that combines the values of its key and window so far, and outputs the result for each element."""
    state = userstate.CombiningValueStateSpec("so far", PickleCoder(), fn)

    class Running(beam.DoFn):  # type: ignore[misc]
        def process(
            self, element: Any, so_far: Any = beam.DoFn.StateParam(state), at: Any = beam.DoFn.WindowParam
        ) -> Iterable[Any]:
            so_far.add(element[1])
            yield element[0], so_far.read()
            so_far.read()

    return Running()


@pytest.mark.parametrize("fn", [Greedy(0), Draining(0)], ids=["shared", "drained"])
@pytest.mark.parametrize("value_chains", [True, False], ids=["our operation", "the SDK's"])
@pytest.mark.parametrize("steps", [False, True], ids=["bounded", "steps"])
def test_combining_state_is_independent_of_outputs(fn: Any, value_chains: bool, steps: bool) -> None:
    """Outputs are objects until they are written. Later additions and reads must not change them, nor they the
    state."""
    windowing = window.SlidingWindows(SIZE, PERIOD)
    settings: dict[str, Any] = {"value_chains": value_chains}
    p: Any = InMicroBatches(Cutting(1, _own, jumps=False), **settings) if steps else Driven(shards=1, **settings)
    with p:
        timed = p | beam.Create(ELEMENTS, reshuffle=False)
        timed |= beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[str, int])
        timed | beam.WindowInto(windowing) | beam.ParDo(running(fn)) | Collect()
    found: dict[Any, list[set[int]]] = defaultdict(list)
    for (key, values), _, in_window in p.windowed():
        assert len(values) == len(set(values))
        found[key, in_window].append(set(values))
    expected = expected_in(windowing)
    assert {place: sorted(each[-1]) for place, each in found.items()} == expected
    for each in found.values():
        assert [len(one) for one in each] == list(range(1, len(each) + 1))
        assert all(one < following for one, following in pairwise(each))


@pytest.mark.parametrize("fn", [Greedy(0), Draining(0)], ids=["shared", "drained"])
@pytest.mark.parametrize("seed", range(2))
def test_combiner_after_late_elements_may_change_accumulators(fn: Any, seed: int) -> None:
    windowing = window.SlidingWindows(SIZE, PERIOD)
    p = InMicroBatches(Cutting(seed, _own, jumps=seed % 2 == 0))
    with p:
        timed = p | beam.Create(ELEMENTS, reshuffle=False)
        timed |= beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[str, int])
        grouped, late = timed | beam.WindowInto(windowing) | WithLate(beam.CombinePerKey(fn))
        grouped | Collect()
        late | Collect("late")
    assert found_in(p) == expected_in(windowing)
    assert not p.windowed("late")


@pytest.mark.parametrize(
    "fn", [Greedy(0), Greedy(-1), Compacting(1), Draining(0)], ids=["first", "last", "compact", "drain"]
)
@pytest.mark.parametrize("seed", range(3))
def test_accumulating_panes_of_merged_sessions_are_complete(fn: Any, seed: int) -> None:
    """A growing session merges several accumulators, each of which has been the result of a pane."""
    early = trigger.AfterWatermark(early=trigger.AfterCount(1))
    p = InMicroBatches(Cutting(seed, _own, jumps=False))
    with p:
        windowing = window.Sessions(2)
        build(p, fn, windowing, trigger=early, accumulation_mode=trigger.AccumulationMode.ACCUMULATING)
    last = found_in(p)
    expected = expected_in(windowing)
    assert {place: last[place] for place in expected} == expected
    assert all(len(set(values)) == len(values) for values in last.values())


@pytest.mark.parametrize("steps", [False, True], ids=["bounded", "steps"])
@pytest.mark.parametrize(
    "windowing", [window.SlidingWindows(SIZE, PERIOD), window.Sessions(2)], ids=["sliding", "sessions"]
)
def test_combiners_of_one_element_share_no_accumulator(steps: bool, windowing: Any) -> None:
    several = combiners.TupleCombineFn(Greedy(0), Greedy(-1), Draining(0)).with_common_input()
    p: Any = InMicroBatches(Cutting(1, _first, jumps=True)) if steps else Driven(shards=2)
    with p:
        build(p, several, windowing)
    expected = expected_in(windowing)
    for place in range(3):
        found = {(key, in_window): sorted(values[place]) for (key, values), _, in_window in p.windowed()}
        assert found == expected


@pytest.mark.parametrize("fn", [Greedy(0), Greedy(-1), Draining(0)], ids=["first", "last", "drain"])
@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "each on its own"])
def test_parts_of_a_hot_key_share_no_accumulator(fn: Any, fusion: bool) -> None:
    windowing = window.SlidingWindows(SIZE, PERIOD)
    with Driven(shards=2, fusion=fusion) as p:
        timed = p | beam.Create(ELEMENTS, reshuffle=False)
        timed |= beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[str, int])
        timed | beam.WindowInto(windowing) | beam.CombinePerKey(fn).with_hot_key_fanout(3) | Collect()
    assert found_in(p) == expected_in(windowing)
