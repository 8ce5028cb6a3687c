"""Groupings in a streaming job, divided randomly, compared with their bounded run: with the SDK's windows, triggers and
coders."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import chain
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import trigger, window
from apache_beam.utils.windowed_value import PaneInfoTiming

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import IntervalWindow
from tests.harness.batch.test_windows import Months, Quarters
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches
from tests.harness.streaming.test_stateful import Cutting

WINDOWS = [
    window.FixedWindows(10),
    window.SlidingWindows(10, 5),
    window.Sessions(4),
    window.GlobalWindows(),
    Months(),
    Quarters(),
]
TRIGGERS = [
    trigger.DefaultTrigger(),
    trigger.AfterWatermark(early=trigger.AfterCount(2)),
    trigger.Repeatedly(trigger.AfterCount(3)),
    trigger.AfterWatermark(late=trigger.AfterCount(1)),
    trigger.Repeatedly(trigger.AfterAny(trigger.AfterCount(4), trigger.AfterWatermark())),
]
MODES = [trigger.AccumulationMode.DISCARDING, trigger.AccumulationMode.ACCUMULATING]


class Pane(beam.DoFn):
    def process(self, element: Any, pane: Any = beam.DoFn.PaneInfoParam) -> Any:
        key, values = element
        yield key, list(values), (pane.index, pane.is_first, pane.is_last, pane.timing)


class Pipeline:
    """A random pipeline.

    Args:
        seed: seed of all random choices.
        combined: whether values are combined rather than grouped.
    """

    def __init__(self, seed: int, combined: bool = False) -> None:
        chance = random.Random(seed)
        self.combined = combined
        self.windowing = chance.choice(WINDOWS)
        self.trigger = trigger.DefaultTrigger() if combined else chance.choice(TRIGGERS)
        self.mode = chance.choice(MODES)
        days = 86_400 * 20 if isinstance(self.windowing, Months | Quarters) else 1
        self.elements = [
            (chance.choice(["a", "b", "c"]), n, chance.randrange(40) * days) for n in range(chance.choice([1, 8, 40]))
        ]

    def build(self, p: Driven) -> None:
        """Build the pipeline."""
        arrived = p | beam.Create(self.elements, reshuffle=False)
        timed = arrived | beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[str, int])
        windowed = timed | beam.WindowInto(self.windowing, trigger=self.trigger, accumulation_mode=self.mode)
        if self.combined:
            windowed | beam.CombinePerKey(sum) | Collect()
        else:
            windowed | beam.GroupByKey() | beam.ParDo(Pane()) | Collect()


def _own(arrived: WindowedElement) -> Timestamp:
    """Return how far the watermark may advance before an element arrives: to its time."""
    return arrived[1]


def _first(arrived: WindowedElement) -> Timestamp:
    """Return the same for an accumulator: its time is the window's end, but it may contain the window's first
    element."""
    (window,) = arrived[2]
    return window.start if isinstance(window, IntervalWindow) else MIN_TIMESTAMP


def run(pipeline: Pipeline, seed: int | None = None) -> Any:
    """Run bounded; with a seed, in streaming."""
    honest = _first if pipeline.combined else _own
    p = Driven(shards=1) if seed is None else InMicroBatches(Cutting(seed, honest, jumps=seed % 2 == 0))
    with p:
        pipeline.build(p)
    return p


def by_window(p: Driven) -> dict[Any, list[Any]]:
    """Return the panes of each key and window in order: values, timestamp, and the rest of their properties."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for (key, values, pane), time, in_window in p.windowed():
        found[key, in_window].append((sorted(values), time.micros, pane))
    return found


@pytest.mark.contract("ENG-08", "ENG-11")
@pytest.mark.parametrize("seed", range(20))
def test_grouping_in_micro_batches_equals_bounded_run(seed: int) -> None:
    pipeline = Pipeline(seed)
    here = run(pipeline, seed)
    there, found = by_window(run(pipeline)), by_window(here)
    assert here.drops == []
    assert here.left == []
    if isinstance(pipeline.trigger, trigger.DefaultTrigger):
        assert found == there
        return
    discarding = pipeline.mode == trigger.AccumulationMode.DISCARDING
    for place, panes in found.items():
        # The elements of an early pane depend on the micro-batches. Where windows merge, so does which windows have
        # one.
        whole = [values for values, _, _ in panes] if discarding else [panes[-1][0]]
        expected = [values for values, _, _ in there[place]] if discarding else [there[place][-1][0]]
        if not isinstance(pipeline.windowing, window.Sessions | Quarters):
            assert sorted(chain(*whole)) == sorted(chain(*expected))
        assert [index for _, _, (index, *_) in panes] == list(range(len(panes)))
        assert [first for _, _, (_, first, *_) in panes] == [True] + [False] * (len(panes) - 1)
        assert all(not last for _, _, (_, _, last, _) in panes[:-1])
        on_time = [pane for _, _, pane in panes if pane[-1] == PaneInfoTiming.ON_TIME]
        assert len(on_time) <= 1


@pytest.mark.contract("ENG-08", "ENG-11")
@pytest.mark.parametrize("seed", range(100, 112))
def test_single_micro_batch_equals_bounded_run(seed: int) -> None:
    pipeline = Pipeline(seed)
    p = InMicroBatches(None)
    with p:
        pipeline.build(p)
    there = by_window(run(pipeline))
    for of_window, panes in by_window(p).items():
        if isinstance(pipeline.trigger, trigger.DefaultTrigger):
            assert panes == there.pop(of_window)
        else:
            every = sorted(chain.from_iterable(values for values, _, _ in panes))
            assert {*every} == {*chain.from_iterable(values for values, _, _ in there.pop(of_window))}
    assert not there
    assert not p.left


@pytest.mark.contract("ENG-08")
@pytest.mark.parametrize("seed", range(6))
def test_combined_values_equal_those_of_bounded_run(seed: int) -> None:
    pipeline = Pipeline(seed, combined=True)
    here, there = run(pipeline, seed), run(pipeline)
    outcomes = [sorted((value, time.micros, repr(w)) for value, time, w in p.windowed()) for p in (here, there)]
    assert outcomes[0] == outcomes[1]
    assert here.left == []
