"""Triggers on a bounded input: cases that the SDK's driver does not support, and triggers in plans."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms import trigger
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.trigger import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterProcessingTime,
    AfterWatermark,
    Always,
    DefaultTrigger,
    OrFinally,
    Repeatedly,
    TriggerFn,
)
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindows,
    Sessions,
    SlidingWindows,
    TimestampedValue,
)
from apache_beam.utils.timestamp import Timestamp

from arcbeam.engine.grouping.triggers import AfterTime, Moment
from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.batch.triggered import TriggeredInput
from arcbeam.harness.bundle.metrics import merge_metrics
from arcbeam.harness.bundle.strategies import trigger_of
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.model.plan import Routing
from tests.harness.batch.triggering import (
    ACCUMULATING,
    DISCARDING,
    EARLIEST,
    EARLY,
    EOW,
    LATE,
    LATEST,
    ON_TIME,
    assigned,
    panes_of,
    proto_of,
    taken,
)
from tests.harness.drive import Collect, Driven

# Cases that the SDK's driver does not support.


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize(
    ("on_time", "closing", "fn", "expected"),
    [
        # The Python SDK's default: an empty pane only where the trigger fires at the watermark.
        ("FIRE_ALWAYS", "EMIT_ALWAYS", AfterWatermark(early=AfterCount(2)), [2, 0]),
        ("FIRE_ALWAYS", "EMIT_ALWAYS", Repeatedly(AfterCount(2)), [2]),
        ("FIRE_ALWAYS", "EMIT_IF_NONEMPTY", AfterWatermark(early=AfterCount(2)), [2, 0]),
        ("FIRE_ALWAYS", "EMIT_IF_NONEMPTY", Repeatedly(AfterCount(2)), [2]),
        ("FIRE_IF_NONEMPTY", "EMIT_IF_NONEMPTY", AfterWatermark(early=AfterCount(2)), [2]),
        ("FIRE_IF_NONEMPTY", "EMIT_ALWAYS", Repeatedly(AfterCount(2)), [2, 0]),
        ("FIRE_IF_NONEMPTY", "EMIT_IF_NONEMPTY", Repeatedly(AfterCount(3)), [2]),
        ("FIRE_IF_NONEMPTY", "EMIT_IF_NONEMPTY", AfterCount(1), [1]),
        ("FIRE_IF_NONEMPTY", "EMIT_ALWAYS", AfterCount(1), [1]),
    ],
)
def test_empty_panes_follow_strategy(on_time: str, closing: str, fn: TriggerFn, expected: list[int]) -> None:
    windowing = Windowing(FixedWindows(10), fn, DISCARDING)
    proto = proto_of(windowing)
    proto.on_time_behavior = getattr(runner_pb.OnTimeBehavior, on_time)
    proto.closing_behavior = getattr(runner_pb.ClosingBehavior, closing)
    panes = panes_of(windowing, proto)
    panes.add(assigned(windowing.windowfn, [1, 2]), 0)
    panes.finish(0)
    assert [len(pane.values) for pane in panes.out] == expected
    assert panes.out[-1].info.is_last == (expected != [2] or fn == Repeatedly(AfterCount(3)))


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize(
    ("output", "mode", "expected"),
    [
        (EARLIEST, DISCARDING, [(3, EARLY), (1, EARLY), (5, ON_TIME)]),
        (LATEST, DISCARDING, [(4, EARLY), (2, EARLY), (5, ON_TIME)]),
        (EARLIEST, ACCUMULATING, [(3, EARLY), (1, EARLY), (1, ON_TIME)]),
        (LATEST, ACCUMULATING, [(4, EARLY), (4, EARLY), (5, ON_TIME)]),
        (EOW, DISCARDING, [(9.999999, EARLY), (9.999999, EARLY), (9.999999, ON_TIME)]),
    ],
)
def test_pane_timestamp_depends_on_elements(output: Any, mode: Any, expected: list[Any]) -> None:
    windowfn = FixedWindows(10)
    panes = panes_of(Windowing(windowfn, AfterWatermark(early=AfterCount(2)), mode, output))
    panes.add(assigned(windowfn, [4, 3, 2, 1, 5]), 0)
    panes.finish(0)
    assert [(float(pane.timestamp), pane.info.timing) for pane in panes.out] == expected


def test_empty_pane_is_at_end_of_window() -> None:
    windowfn = FixedWindows(10)
    panes = panes_of(Windowing(windowfn, AfterWatermark(early=AfterCount(1)), DISCARDING, EARLIEST))
    panes.add(assigned(windowfn, [4]), 0)
    panes.finish(0)
    assert [float(pane.timestamp) for pane in panes.out] == [4, 9.999999]


SECOND = 1_000_000


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize(
    ("fn", "arrivals", "expected"),
    [
        # Arrivals are (seconds, elements); expected are panes as (seconds, elements).
        (Repeatedly(AfterProcessingTime(10)), [(0, 2), (4, 1), (10, 1), (12, 1)], [(10, 3), (12, 2)]),
        (AfterProcessingTime(10), [(0, 2), (10, 1), (30, 5)], [(10, 2)]),
        (AfterWatermark(early=AfterProcessingTime(5)), [(0, 1), (3, 1), (5, 0), (6, 1)], [(5, 2), (6, 1)]),
        # The count is reached before the time, then after it.
        (Repeatedly(AfterAll(AfterCount(2), AfterProcessingTime(5))), [(0, 3), (5, 0)], [(5, 3)]),
        (Repeatedly(AfterAll(AfterCount(2), AfterProcessingTime(5))), [(0, 1), (7, 2)], [(7, 2), (7, 1)]),
        # After the firing at its time it is finished.
        (AfterAny(AfterProcessingTime(5), AfterWatermark()), [(0, 1), (6, 2)], [(6, 1)]),
        (AfterAny(AfterProcessingTime(5), AfterCount(2)), [(0, 3), (6, 1)], [(0, 2)]),
        (AfterEach(AfterProcessingTime(5), Repeatedly(AfterCount(2))), [(0, 1), (6, 3)], [(6, 1), (6, 2), (6, 1)]),
        (OrFinally(Repeatedly(AfterCount(2)), AfterProcessingTime(5)), [(0, 3), (6, 3)], [(0, 2), (6, 1)]),
    ],
)
def test_processing_time_is_arrival_time(fn: TriggerFn, arrivals: list[Any], expected: list[Any]) -> None:
    windowfn = FixedWindows(10)
    panes = panes_of(Windowing(windowfn, fn, DISCARDING))
    found = []
    for at, count in arrivals:
        panes.tick(at * SECOND)
        panes.add(assigned(windowfn, [1] * count), at * SECOND)
        found += [(at, len(pane.values)) for pane in taken(panes)]
    panes.finish(at * SECOND)
    found += [(at, len(pane.values)) for pane in taken(panes) if pane.values]
    assert found == expected


def test_merged_window_keeps_earliest_due_time() -> None:
    windowfn = Sessions(10)
    panes = panes_of(Windowing(windowfn, Repeatedly(AfterProcessingTime(5)), DISCARDING))
    panes.add(assigned(windowfn, [0]), 0)
    panes.add(assigned(windowfn, [15]), 2 * SECOND)
    panes.add(assigned(windowfn, [8]), 4 * SECOND)
    panes.tick(5 * SECOND - 1)
    assert not panes.out
    panes.tick(5 * SECOND)
    assert [len(pane.values) for pane in panes.out] == [3]


def test_aligned_processing_time() -> None:
    proto = runner_pb.Trigger()
    transforms = proto.after_processing_time.timestamp_transforms
    transforms.add().delay.delay_millis = 1500
    transforms.add().align_to.CopyFrom(runner_pb.TimestampTransform.AlignTo(period=10_000, offset=1_000))
    machine = trigger_of(proto)
    assert isinstance(machine, AfterTime)
    machine.add(1, 4 * SECOND)
    assert not machine.ready(Moment(11 * SECOND - 1))
    assert machine.ready(Moment(11 * SECOND))


def test_synchronized_time_ends_with_bounded_input() -> None:
    windowfn = FixedWindows(10)
    fn = Repeatedly(AfterProcessingTime(5)).get_continuation_trigger()
    panes = panes_of(Windowing(windowfn, fn, DISCARDING))
    panes.add(assigned(windowfn, [1, 2, 3]), 0)
    panes.tick(99 * SECOND)
    panes.finish(99 * SECOND)
    assert [(len(pane.values), pane.info.timing, pane.info.is_last) for pane in panes.out] == [(3, ON_TIME, True)]


@pytest.mark.contract("ENG-10", "ENG-11")
def test_lateness_and_expiry() -> None:
    windowfn = FixedWindows(10)
    fn = AfterWatermark(late=AfterCount(2))
    panes = panes_of(Windowing(windowfn, fn, DISCARDING, EOW, allowed_lateness=5))
    at_one = assigned(windowfn, [1])
    panes.add(at_one, 0)
    panes.advance(Timestamp(12), 0)
    panes.add(at_one * 3, 0)
    panes.advance(Timestamp(micros=14_999_999), 0)  # the last moment plus the lateness: not passed yet
    panes.add(at_one, 0)
    panes.advance(Timestamp(15), 0)
    panes.add(at_one, 0)
    panes.finish(0)
    places = [
        (len(p.values), p.info.timing, p.info.index, p.info.nonspeculative_index, p.info.is_last) for p in panes.out
    ]
    assert places == [(1, ON_TIME, 0, 0, False), (2, LATE, 1, 1, False), (2, LATE, 2, 2, False)]
    assert (panes.dropped_late, panes.dropped_closed) == (1, 0)


def test_rest_after_on_time_pane_is_last_late_pane() -> None:
    windowfn = FixedWindows(10)
    panes = panes_of(Windowing(windowfn, AfterWatermark(late=AfterCount(2)), ACCUMULATING, EOW, allowed_lateness=5))
    at_one = assigned(windowfn, [1])
    panes.add(at_one, 0)
    panes.advance(Timestamp(12), 0)
    panes.add(at_one, 0)
    panes.advance(Timestamp(16), 0)
    assert [(len(p.values), p.info.timing, p.info.is_last) for p in panes.out] == [(1, ON_TIME, False), (2, LATE, True)]


# In plans.


def pane_facts(p: Any, trigger: TriggerFn, windowfn: Any = None, **kwargs: Any) -> Any:
    kwargs = {"accumulation_mode": DISCARDING, **kwargs}
    return (
        p
        | beam.WindowInto(windowfn or GlobalWindows(), trigger=trigger, **kwargs)
        | beam.GroupByKey()
        | beam.Map(lambda kv, info=beam.DoFn.PaneInfoParam: (kv[0], len(list(kv[1])), len(list(kv[1])), info))
        | Collect()
    )


class Unsafe(Driven):
    """Accepts triggers that lose data."""

    @property
    def allow_unsafe_triggers(self) -> bool:  # type: ignore[override]
        return True

    @allow_unsafe_triggers.setter
    def allow_unsafe_triggers(self, value: bool) -> None:
        pass


@pytest.mark.contract("ENG-11", "BAT-03")
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("bundle_elements", [1, 500_000])
def test_count_does_not_depend_on_bundles(shards: int, bundle_elements: int) -> None:
    with Driven(shards=shards, bundle_elements=bundle_elements) as p:
        pane_facts(p | beam.Create([(n % 2, n) for n in range(25)]), Repeatedly(AfterCount(5)))
    sizes = defaultdict(list)
    for key, size, again, info in p.values():
        assert size == again
        sizes[key].append((size, info.index, info.timing))
    assert sizes[0] == [(5, 0, EARLY), (5, 1, EARLY), (3, 2, ON_TIME)]
    assert sizes[1] == [(5, 0, EARLY), (5, 1, EARLY), (2, 2, ON_TIME)]


@pytest.mark.contract("ENG-11")
def test_finished_trigger_drops_later_elements() -> None:
    with Unsafe() as p:
        pane_facts(p | beam.Create([("k", n) for n in range(7)]), AfterCount(3))
    assert [(size, info.is_last) for _, size, _, info in p.values()] == [(3, True)]
    assert _counters(p) == {("arcbeam", "droppedDueToClosedWindow"): 4}


def _counters(p: Driven) -> dict[tuple[str, str], int]:
    """Return the counters of the grouping by namespace and name."""
    infos = merge_metrics(info for report in p.reports for info in report.metrics)
    found = JobMetrics(infos).query(MetricsFilter().with_step("GroupByKey"))["counters"]
    return {(result.key.metric.namespace, result.key.metric.name): result.committed for result in found}


@pytest.mark.contract("ENG-10")
@pytest.mark.parametrize("bundle_elements", [1, 500_000])
def test_dropped_elements_are_counted(bundle_elements: int) -> None:
    with Unsafe(shards=3, bundle_elements=bundle_elements) as p:
        pane_facts(p | beam.Create([(n % 10, n) for n in range(100)]), AfterCount(2), SlidingWindows(60, 30))
    assert _counters(p) == {("arcbeam", "droppedDueToClosedWindow"): 10 * 2 * 8}


@pytest.mark.contract("ENG-10")
def test_no_counter_without_drops() -> None:
    with Driven() as p:
        pane_facts(p | beam.Create([("k", n) for n in range(7)]), Repeatedly(AfterCount(3)))
    assert _counters(p) == {}


@pytest.mark.contract("ENG-11")
def test_grouping_uses_trigger_of_its_input() -> None:
    """Its output has the continuation trigger, which applies to the next grouping."""
    with Driven() as p:
        (
            p
            | beam.Create([("k", n) for n in range(6)])
            | beam.WindowInto(GlobalWindows(), trigger=Repeatedly(AfterCount(2)), accumulation_mode=DISCARDING)
            | "first" >> beam.GroupByKey()
            | beam.MapTuple(lambda k, vs: (k, len(list(vs))))
            | "second" >> beam.GroupByKey()
            | beam.MapTuple(lambda k, vs: list(vs))
            | Collect()
        )
    # The continuation is Repeatedly(AfterCount(1)): each pane of the first grouping is one of the second.
    assert p.values() == [[2], [2], [2]]


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize("memory", [1, 1 << 20])
@pytest.mark.parametrize("mode", [DISCARDING, ACCUMULATING])
def test_panes_larger_than_memory(memory: int, mode: Any) -> None:
    with Driven(shards=1, group_memory_bytes=memory) as p:
        pane_facts(
            p
            | beam.Create([("k", n) for n in range(1000)], reshuffle=False)
            | beam.Map(lambda kv: TimestampedValue(kv, kv[1] % 3)),
            AfterWatermark(early=AfterCount(150)),
            FixedWindows(2),
            accumulation_mode=mode,
        )
    sizes = [size for _, size, again, _ in p.values() if size == again]
    if mode == DISCARDING:
        assert sorted(sizes) == sorted([150] * 4 + [667 - 600] + [150] * 2 + [333 - 300])
    else:
        assert sorted(sizes) == sorted([150, 300, 450, 600, 667, 150, 300, 333])


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize(
    ("fn", "routing"),
    [
        (DefaultTrigger(), Routing.GROUPED),
        (AfterWatermark(), Routing.GROUPED),
        (AfterWatermark(late=AfterCount(1)), Routing.GROUPED),
        (Repeatedly(AfterWatermark()), Routing.GROUPED),
        (trigger._Never(), Routing.GROUPED),
        (AfterAll(AfterWatermark(), AfterCount(1)), Routing.GROUPED),
        (Repeatedly(AfterEach(AfterWatermark(), AfterCount(1))), Routing.GROUPED),
        (Repeatedly(AfterProcessingTime(1)).get_continuation_trigger(), Routing.GROUPED),
        (AfterWatermark(early=AfterCount(1)), Routing.KEYED),
        (Repeatedly(AfterProcessingTime(1)), Routing.KEYED),
        (Repeatedly(AfterAny(AfterWatermark(), AfterCount(1))), Routing.KEYED),
        (Repeatedly(AfterEach(AfterCount(1), AfterWatermark())), Routing.KEYED),
        (Always(), Routing.KEYED),
    ],
)
def test_triggers_that_may_fire_early_use_other_routing(fn: TriggerFn, routing: Routing) -> None:
    with Driven() as p:
        pane_facts(p | beam.Create([("k", 1), ("k", 2)]), fn, FixedWindows(10))
    assert [c.routing for c in p.plan.channels if c.routing in (Routing.GROUPED, Routing.KEYED)] == [routing]
    if routing is Routing.GROUPED:
        ((_, size, _, info),) = p.values()
        assert (size, info.is_first, info.is_last, info.timing) == (2, True, True, ON_TIME)


class _VirtualClock:
    def __init__(self) -> None:
        self.micros = 0

    def now(self) -> int:
        self.micros += 6 * SECOND
        return self.micros

    def wait_until(self, due: int) -> None:
        raise AssertionError("a bounded input is not waited for")


@pytest.mark.contract("ENG-11")
def test_processing_time_in_plan() -> None:
    def install(stage: BoundedStage) -> None:
        if stage.processor.root.how.mode == "triggered":
            stage.input = TriggeredInput(stage.processor, _VirtualClock())

    with Driven(shards=1, prepare=install) as p:
        pane_facts(
            p | beam.Create([("k", n) for n in range(600)], reshuffle=False),
            AfterWatermark(early=AfterProcessingTime(10)),
        )
    # The clock is read once per 256 elements, and a trigger of ten seconds sees every second reading.
    found = [(size, info.timing) for _, size, _, info in p.values()]
    assert found == [(512, EARLY), (88, ON_TIME)]


def test_error_names_unknown_trigger() -> None:
    class Odd:
        odd = None

        def WhichOneof(self, _: str) -> str:
            return "odd"

    with pytest.raises(ValueError, match="odd"):
        trigger_of(Odd())
