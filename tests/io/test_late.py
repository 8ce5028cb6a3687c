"""The elements that groupings drop, as a collection. Together with the panes they are the input, for any lateness and
any division into micro-batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import TypeOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, window
from apache_beam.transforms.combiners import MeanCombineFn, ToListCombineFn
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.errors import InvalidPipelineError
from arcbeam.io import LateElement, WithLate
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from tests.harness.batch.test_windows import Months, Quarters
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.harness.streaming.test_groupings import MODES, TRIGGERS, WINDOWS

FINISHING = [
    trigger.AfterCount(2),
    trigger.AfterWatermark(),
    trigger.AfterEach(trigger.AfterCount(1), trigger.AfterWatermark()),
    trigger.AfterAny(trigger.AfterCount(5), trigger.AfterWatermark()),
]
MERGING = Quarters, window.Sessions


class Panes(beam.DoFn):
    def process(self, element: Any, in_window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        key, values = element
        for value in values:
            yield key, value, in_window


class Pipeline:
    """A random pipeline; each value is unique."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.windowing = chance.choice(WINDOWS)
        self.days = 86_400 * 20 if isinstance(self.windowing, Months | Quarters) else 1
        self.trigger = chance.choice(TRIGGERS + FINISHING)
        self.mode = chance.choice(MODES)
        self.lateness = chance.choice([0, 0, 5, 1000]) * self.days
        self.combined = chance.random() < 0.3
        self.merging = isinstance(self.windowing, MERGING)
        self.elements = [
            (chance.choice(["a", "b", "c"]), n, chance.randrange(40) * self.days)
            for n in range(chance.choice([1, 8, 40, 40]))
        ]

    def build(self, p: Any) -> Driven:
        """Build the pipeline."""
        p.options.view_as(TypeOptions).allow_unsafe_triggers = True
        arrived = p | beam.Create(self.elements, reshuffle=False)
        timed = arrived | beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[str, int])
        windowed = timed | beam.WindowInto(
            self.windowing,
            trigger=self.trigger,
            accumulation_mode=self.mode,
            allowed_lateness=self.lateness,
        )
        grouping = beam.CombinePerKey(ToListCombineFn()) if self.combined else beam.GroupByKey()
        grouped, late = windowed | WithLate(grouping)
        grouped | beam.ParDo(Panes()) | Collect()
        late | Collect("late")
        return p

    def places(self) -> set[Any]:
        """Return key, value and window of the input; without windows, if windows merge."""
        assign, context = self.windowing.assign, self.windowing.AssignContext
        return {
            (key, value, None if self.merging else of)
            for key, value, at in self.elements
            for of in assign(context(SdkTimestamp(at), element=(key, value)))
        }

    def check(self, p: Driven) -> list[LateElement]:
        """Check that each element is either in a pane or late, exactly once; return the late ones."""
        times = {value: SdkTimestamp(at) for _, value, at in self.elements}
        late: list[LateElement] = [element for element, _, _ in p.windowed("late")]
        there = Counter((key, value, None if self.merging else of) for key, value, of in p.values())
        dropped = Counter((e.key, e.value, None if self.merging else e.window) for e in late)
        assert set(there) | set(dropped) == self.places()
        if self.mode == trigger.AccumulationMode.DISCARDING:
            assert set((there + dropped).values()) <= {1}
        # A window that accumulates, and is merged with a closed one, makes all its elements late.
        elif not self.merging:
            assert not set(there) & set(dropped)
            assert set(dropped.values()) <= {1}
        for element, time, of in p.windowed("late"):
            assert (time, of) == (element.timestamp, window.GlobalWindow())
            held = element.timestamp == element.window.max_timestamp() and element.reason == "closed" and self.merging
            assert element.timestamp == times[element.value] or held
            end = element.window.max_timestamp() + self.lateness
            assert element.reason == "closed" or element.watermark > end
        return late


class Untimely:
    """Divides into random micro-batches; the watermark also advances randomly, whatever elements are still to come."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def __call__(self, shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        chance, watermark = self._chance, MIN_TIMESTAMP
        times = sorted(one[1] for _, one in arrived)
        if chance.random() < 0.8:
            chance.shuffle(arrived)
        while arrived:
            size = chance.choice([1, 2, 5, len(arrived)])
            now, arrived = arrived[:size], arrived[size:]
            if chance.random() < 0.6:
                watermark = max(watermark, Timestamp(chance.choice(times) + chance.randrange(-5, 15) * 1_000_000))
            looks, runs = chance.choice([1, 3, 1000]), chance.choice([1, 1, 2])
            shard.settle(
                MicroBatch(
                    [(key, [one]) for key, one in now], watermark, looks=looks, runs=runs, fresh=chance.random() < 0.1
                )
            )


@pytest.mark.contract("WM-09", "ENG-10")
@pytest.mark.parametrize("seed", range(60))
def test_panes_and_late_elements_are_the_input(seed: int) -> None:
    pipeline = Pipeline(seed)
    with InMicroBatches(Untimely(seed), fusion=seed % 5 != 0) as p:
        pipeline.build(p)
    pipeline.check(p)
    assert not p.left


@pytest.mark.contract("WM-09")
def test_random_pipelines_drop_for_each_reason() -> None:
    reasons = Counter[str]()
    for seed in range(60):
        pipeline = Pipeline(seed)
        with InMicroBatches(Untimely(seed)) as p:
            pipeline.build(p)
        late = pipeline.check(p)
        reasons.update(element.reason for element in late)
        # The engine counts a drop of many elements as one; others are counted singly.
        assert len(late) >= len(p.drops)
    assert min(reasons["expired"], reasons["closed"]) > 50, reasons


@pytest.mark.contract("WM-09", "ENG-10")
@pytest.mark.parametrize("seed", range(100, 140))
def test_batch_drops_only_after_trigger_has_finished(seed: int) -> None:
    pipeline = Pipeline(seed)
    with Driven(fusion=seed % 5 != 0, group_memory_bytes=100 if seed % 2 else 1 << 20) as p:
        pipeline.build(p)
    assert {element.reason for element in pipeline.check(p)} <= {"closed"}


def build(p: Any) -> tuple[Any, Any]:
    pairs = p | beam.Create([("a", 1), ("a", 2), ("b", 3)])
    return pairs | WithLate(beam.CombinePerKey(sum))  # type: ignore[no-any-return]


class Scaled(beam.CombineFn):
    """A sum with arguments, which all calls must receive."""

    def create_accumulator(self, factor: int, *, start: int = 0) -> int:
        return start

    def add_input(self, total: int, value: int, factor: int, *, start: int = 0) -> int:
        return total + factor * value

    def merge_accumulators(self, totals: Any, factor: int, *, start: int = 0) -> int:
        return start + sum(total - start for total in totals)

    def extract_output(self, total: int, factor: int, *, start: int = 0) -> tuple[int, int, int]:
        return total, factor, start


@pytest.mark.contract("WM-09")
@pytest.mark.parametrize("streaming", [False, True])
def test_combiner_arguments_reach_all_calls(streaming: bool) -> None:
    with InMicroBatches(Untimely(1)) if streaming else Driven() as p:
        pairs = p | beam.Create([("a", 1), ("a", 2), ("b", 3)])
        totals, _ = pairs | WithLate(beam.CombinePerKey(Scaled(), 10, start=5))
        _ = totals | Collect("totals")
    assert sorted(total for total, _, _ in p.windowed("totals")) == [("a", (35, 10, 5)), ("b", (35, 10, 5))]


@pytest.mark.contract("WM-09")
def test_late_is_empty_on_other_runners() -> None:
    with beam.Pipeline(runner=FnApiRunner()) as p:
        totals, late = build(p)
        assert_that(totals, equal_to([("a", 3), ("b", 3)]))
        assert_that(late, equal_to([]), label="late")


def test_grouped_output_keeps_its_type() -> None:
    p = beam.Pipeline()
    pairs = p | beam.Create([("a", 1)])
    for grouping in (beam.GroupByKey(), beam.CombinePerKey(sum), beam.CombinePerKey(MeanCombineFn())):
        assert (pairs | WithLate(grouping)).grouped.element_type == (pairs | grouping).element_type


@pytest.mark.parametrize("grouping", [beam.Reshuffle(), beam.combiners.Count.PerKey(), beam.GroupByKey])
def test_other_transforms_are_refused(grouping: Any) -> None:
    with pytest.raises(ValueError, match=r"a beam\.GroupByKey or a beam\.CombinePerKey"):
        WithLate(grouping)


def test_annotation_without_grouping_is_refused() -> None:
    def apart(proto: Any) -> None:
        for transform in proto.components.transforms.values():
            if transform.unique_name == "Same":
                transform.annotations["arcbeam:late"] = b""

    with pytest.raises(InvalidPipelineError, match=r"Same: .* not a grouping"), Driven(edit=apart) as p:
        p | beam.Create([1]) | "Same" >> beam.Map(lambda x: x)
