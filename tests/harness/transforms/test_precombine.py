"""Combining before an exchange."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import trigger, window
from apache_beam.transforms.combiners import CountCombineFn, MeanCombineFn, TopCombineFn
from apache_beam.transforms.window import FixedWindows, Sessions, SlidingWindows, TimestampCombiner, TimestampedValue

from arcbeam.engine.grouping.effects import DropCombined, DropHeld
from arcbeam.harness.transforms import precombine
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.urns import PRECOMBINE_URN
from tests.harness.batch.test_windows import Months
from tests.harness.drive import Collect, Driven
from tests.harness.operations.rig import MIB
from tests.harness.streaming.microbatches import InMicroBatches
from tests.page.running.countedjobs import Ones

_TIME, _WINDOW = beam.DoFn.TimestampParam, beam.DoFn.WindowParam


@pytest.mark.contract("PLAN-02")
class TestPrecombine:
    @pytest.mark.parametrize("memory", [1, 20_000, 128 * MIB])
    def test_all_values_are_combined_for_any_budget(self, memory: int) -> None:
        with Driven(shards=3, group_memory_bytes=memory) as p:
            pairs = p | beam.Create(range(5000)) | beam.Map(lambda i: (i % 7, i)).with_output_types(tuple[int, int])
            _ = pairs | beam.CombinePerKey(sum) | "Sums" >> Collect("sums")
            _ = (
                pairs
                | beam.CombinePerKey(beam.combiners.ToListCombineFn())
                | beam.MapTuple(lambda k, vs: (k, len(vs)))
                | Collect("lists")
            )
        assert sorted(p.values("sums")) == [(k, sum(range(k, 5000, 7))) for k in range(7)]
        assert sorted(p.values("lists")) == [(k, len(range(k, 5000, 7))) for k in range(7)]

    def test_windows_count_against_the_budget(self) -> None:
        with Driven(shards=2, group_memory_bytes=100_000) as p:
            timed = p | beam.Create(range(5000)) | beam.Map(lambda i: TimestampedValue(("k", i), i))
            sums = timed | beam.WindowInto(FixedWindows(1)) | beam.CombinePerKey(sum)
            _ = sums | Collect()
        assert sorted(value for _, value in p.values()) == list(range(5000))

    @pytest.mark.parametrize("windowed", [False, True])
    def test_useless_table_is_dropped(self, windowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        taken: list[int] = []
        take = precombine.Slices.take

        def noted(slices: precombine.Slices, longest: int) -> Iterator[Any]:
            taken.append(slices.entries)
            return take(slices, longest)

        monkeypatch.setattr(precombine.Slices, "take", noted)
        monkeypatch.setattr(precombine, "_PASSING", 10_000)
        with Driven(shards=1, group_memory_bytes=1 << 20) as p:
            pairs = p | beam.Create([0, 1]) | beam.FlatMap(lambda part: ((part * 20_000 + i, i) for i in range(20_000)))
            if windowed:
                pairs = pairs | beam.WindowInto(SlidingWindows(60, 20))
            _ = pairs | beam.CombinePerKey(sum) | beam.combiners.Count.Globally().without_defaults() | Collect()
        assert p.values() == [40_000] * (3 if windowed else 1)
        largest = max(taken)
        assert largest >= 1024
        # After a full table, blocks are combined separately, then a table is tried again.
        assert any(0 < small <= 4093 and small < largest for small in taken)
        assert taken.count(largest) < len(taken) / 2

    def test_dropping_table_can_be_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(precombine, "_PASSING", None)
        with Driven(shards=1, group_memory_bytes=1 << 20, giving_up=False) as p:
            pairs = p | beam.Create([0, 1]) | beam.FlatMap(lambda part: ((part * 20_000 + i, i) for i in range(20_000)))
            _ = pairs | beam.CombinePerKey(sum) | beam.combiners.Count.Globally() | Collect()
        assert p.values() == [40_000]

    @pytest.mark.parametrize("kind", ["OUTPUT_AT_EOW", "OUTPUT_AT_EARLIEST", "OUTPUT_AT_LATEST"])
    @pytest.mark.parametrize("distinct", [True, False])
    def test_single_element_sessions_are_not_combined(
        self, kind: str, distinct: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alone: list[int] = []
        each_alone = precombine.Precombine._each_alone

        def noted(operation: precombine.Precombine, block: Any) -> Any:
            alone.append(len(block))
            return each_alone(operation, block)

        monkeypatch.setattr(precombine.Precombine, "_each_alone", noted)
        times = {i: i // 500 * 90 + i // (1 if distinct else 100) for i in range(3000)}
        found = []
        for giving_up in (True, False):
            with Driven(shards=2, giving_up=giving_up) as p:
                numbers = p | beam.Create([0]) | beam.FlatMap(lambda _: range(3000))
                timed = numbers | beam.Map(lambda i: TimestampedValue((i % 7, i), times[i]))
                windowed = timed | beam.WindowInto(Sessions(9), timestamp_combiner=getattr(TimestampCombiner, kind))
                means = windowed | beam.CombinePerKey(beam.combiners.MeanCombineFn())
                _ = means | beam.Map(lambda e, t=_TIME, w=_WINDOW: (e, t, w)) | Collect()
            found.append(sorted(p.values(), key=repr))
        assert found[0] == found[1]
        assert len(found[0]) == 6 * 7
        # Small blocks are not checked; without the option no block is.
        assert (2000 < sum(alone) <= 3000) == distinct
        assert distinct or not alone


WINDOWS = [
    window.FixedWindows(10),
    window.SlidingWindows(10, 5),
    window.Sessions(4),
    window.GlobalWindows(),
    Months(),
]
COMBINERS = [sum, Ones(), CountCombineFn(), MeanCombineFn(), TopCombineFn(2)]


def counted(p: InMicroBatches) -> tuple[int, int, int, int]:
    """Return read and late elements of the grouping stage, what its producer has output, and what is reported late."""
    reported = sum(drop.count if isinstance(drop, DropHeld | DropCombined) else 1 for drop in p.drops)
    counts = [report.counts for report in p.stage_reports]
    channels = {channel.index for channel in p.plan.channels if channel.routing == "keyed"}
    written = sum(many for report in p.reports for channel, many in report.elements_out.items() if channel in channels)
    return sum(each.read for each in counts), sum(each.late for each in counts), written, reported


def run(seed: int, lifts: bool) -> tuple[tuple[int, int, int, int], bool]:
    """Run a random pipeline; return its figures, and whether it has combined early."""
    chance = random.Random(seed)
    windowing, fn = chance.choice(WINDOWS), chance.choice(COMBINERS)
    days = 86_400 * 20 if isinstance(windowing, Months) else 1
    when = chance.choice([None, trigger.AfterWatermark(late=trigger.AfterProcessingTime(1))])
    lateness = chance.choice([0, 3 * days])
    keys = chance.choice(["a", "abc", "abcdefgh"])
    elements = [(chance.choice(keys), n, chance.randrange(40) * days) for n in range(chance.choice([1, 30, 400]))]
    before = Timestamp(chance.randrange(5, 45) * days * 1_000_000)
    of_all = chance.random() < 0.3
    settings = {"group_memory_bytes": chance.choice([1 << 10, 128 << 20]), "folds": chance.random() < 0.8}
    # A trigger that counts elements is not combined early.
    mode = trigger.AccumulationMode.DISCARDING
    how = {} if when is None else {"trigger": when, "accumulation_mode": mode}
    if not lifts:
        late = trigger.AfterAny(trigger.AfterCount(10**9), trigger.AfterProcessingTime(1))
        how = {"trigger": trigger.AfterWatermark(late=late), "accumulation_mode": mode}
    with InMicroBatches(None, before=before, event_times=True, **settings) as p:
        arrived = p | beam.Create(elements, reshuffle=False)
        timed = arrived | beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[str, int])
        windowed = timed | beam.WindowInto(windowing, allowed_lateness=lateness, **how)
        if of_all:
            values = windowed | beam.Values()
            found = values | beam.CombineGlobally(fn).without_defaults()
        else:
            found = windowed | beam.CombinePerKey(fn)
        found | Collect()
    urns = {transform.urn for stage in p.plan.stages for transform in stage.transforms}
    return counted(p), PRECOMBINE_URN in urns


@pytest.mark.contract("OPS-04")
@pytest.mark.parametrize("seed", range(60))
def test_counts_are_those_without_early_combining(seed: int) -> None:
    (read, late, written, reported), combines = run(seed, lifts=True)
    expected, combines_never = run(seed, lifts=False)
    assert (combines, combines_never) == (True, False)
    assert (read, late) == expected[:2]
    assert written == read
    assert reported == late


def test_some_seeds_have_late_elements_of_combined_accumulators() -> None:
    found = [run(seed, lifts=True)[0] for seed in range(20)]
    assert sum(late > 0 for _, late, _, _ in found) >= 5
    assert any(0 < late < read for read, late, _, _ in found)
