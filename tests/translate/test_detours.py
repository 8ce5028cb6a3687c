"""A stage that only passes elements on is removed: producers write directly to its targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import userstate, window
from apache_beam.transforms.trigger import AccumulationMode, AfterCount

from arcbeam.model.plan import Plan, Routing, Stage
from tests.translate.plans import plan_of, source

pytestmark = pytest.mark.contract("PLAN-02")


class Counts(beam.DoFn):
    COUNT = userstate.CombiningValueStateSpec("count", sum)

    def process(self, element: Any, count: Any = beam.DoFn.StateParam(COUNT)) -> Iterable[Any]:
        count.add(1)
        yield element[0], count.read()


def pairs(p: beam.Pipeline, name: str) -> Any:
    """Make pairs in a stage of their own."""
    typed = beam.Map(lambda x: (x, 1)).with_output_types(tuple[str, int])
    return source(p, name) | f"R{name}" >> beam.Reshuffle() | f"P{name}" >> typed


def flattened(p: beam.Pipeline) -> Any:
    return (pairs(p, "a"), pairs(p, "b")) | beam.Flatten()


BUILT: dict[str, tuple[Callable[[beam.Pipeline], Any], Routing]] = {
    "group": (lambda p: flattened(p) | beam.GroupByKey() | beam.Map(print), Routing.KEYED),
    "cogroup": (lambda p: (pairs(p, "a"), pairs(p, "b")) | beam.CoGroupByKey() | beam.Map(print), Routing.KEYED),
    "state": (lambda p: flattened(p) | beam.ParDo(Counts()) | beam.Map(print), Routing.KEYED),
    "reshuffle": (lambda p: flattened(p) | beam.Reshuffle() | beam.Map(print), Routing.SPREAD),
    "nested": (
        lambda p: (flattened(p), pairs(p, "c")) | "All" >> beam.Flatten() | beam.GroupByKey() | beam.Map(print),
        Routing.KEYED,
    ),
}


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("what", BUILT)
def test_producers_write_directly_to_the_exchange(what: str, fusion: bool) -> None:
    build, routing = BUILT[what]
    plan = plan_of(build, fusion=fusion)
    if fusion or what != "reshuffle":
        # Without fusion no stage joins the transform that reads the exchange.
        assert not _passing_on(plan)
    (together,) = (channel for channel in plan.channels if len(channel.producers) > 1)
    if routing is Routing.KEYED and what != "state":
        routing = Routing.GROUPED
    assert together.routing is routing
    assert len(together.producers) == (3 if what == "nested" else 2)
    _in_order(plan)


def test_flatten_before_several_exchanges_is_removed() -> None:
    def build(p: beam.Pipeline) -> None:
        together = flattened(p)
        _ = together | beam.GroupByKey() | "G" >> beam.Map(print)
        _ = together | beam.ParDo(Counts()) | "S" >> beam.Map(print)

    plan = plan_of(build)
    assert not _passing_on(plan)
    keyed = (Routing.KEYED, Routing.GROUPED)
    assert [len(channel.producers) for channel in plan.channels if channel.routing in keyed] == [2, 2]
    _in_order(plan)


def test_flatten_stays_for_side_input_or_other_windowing() -> None:
    def sides(p: beam.Pipeline) -> None:
        together = flattened(p)
        _ = together | beam.GroupByKey() | "G" >> beam.Map(print)
        _ = p | beam.Create([1]) | "Sided" >> beam.Map(print, beam.pvalue.AsList(together))

    def windows(p: beam.Pipeline) -> None:
        early = window.GlobalWindows(), AfterCount(1), AccumulationMode.DISCARDING
        other = pairs(p, "b") | beam.WindowInto(early[0], trigger=early[1], accumulation_mode=early[2])
        _ = (pairs(p, "a"), other) | beam.Flatten() | beam.GroupByKey() | "G" >> beam.Map(print)

    for build in (sides, windows):
        plan = plan_of(build)
        assert len(_passing_on(plan)) == 1
        _in_order(plan)


def _map(collection: Any) -> Any:
    return collection | "Also" >> beam.Map(print)


def _with_side(collection: Any) -> Any:
    return collection | "Also" >> beam.Map(print, beam.pvalue.AsList(collection.pipeline | beam.Create([1])))


def _beside_itself(collection: Any) -> Any:
    return collection | "Also" >> beam.Map(print, beam.pvalue.AsList(collection))


@pytest.mark.contract("PLAN-02", "ENG-12")
@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("other", [_map, _with_side, _beside_itself])
@pytest.mark.parametrize("of", [flattened, lambda p: pairs(p, "a")])
@pytest.mark.parametrize("first", [True, False])
def test_stateful_stage_reads_by_key_beside_other_readers(
    of: Any, other: Any, first: bool, fusion: bool, bounded: bool
) -> None:
    def build(p: beam.Pipeline) -> None:
        collection = of(p)
        if first:
            other(collection)
        _ = collection | "Keeps" >> beam.ParDo(Counts())
        if not first:
            other(collection)

    plan = plan_of(build, fusion=fusion, bounded=bounded)
    (keeps,) = (stage for stage in plan.stages if stage.states)
    (also,) = (stage for stage in plan.stages if any(t.name == "Also" for t in stage.transforms))
    assert keeps.source is not None
    assert plan.channels[keeps.source].routing is Routing.KEYED
    assert also.source is None or plan.channels[also.source].routing is not Routing.KEYED
    _in_order(plan)


@pytest.mark.contract("STORE-05")
def test_additional_consumer_does_not_change_streaming_levels() -> None:
    def build(p: beam.Pipeline, more: bool) -> None:
        together = flattened(p)
        _ = together | beam.GroupByKey() | "G" >> beam.Map(print)
        if more:
            _ = together | "More" >> beam.Map(print)

    plans = [plan_of(lambda p, more=more: build(p, more), bounded=False) for more in (False, True)]
    assert [len(_passing_on(plan)) for plan in plans] == [1, 0], (
        "the stage that passes elements on also does something else"
    )
    assert len({_depth(plan, "GroupByKey") for plan in plans}) == 1


def _depth(plan: Plan, name: str) -> int:
    """Count the exchanges before the stage with that uid."""
    by_id = {stage.id: stage for stage in plan.stages}

    def depth(stage: Stage) -> int:
        read = None if stage.source is None else plan.channels[stage.source]
        return 0 if read is None else 1 + max(depth(by_id[producer]) for producer in read.producers)

    (found,) = (depth(stage) for stage in plan.stages if name in stage.uid)
    return found


def test_requested_exchange_is_kept() -> None:
    def build(p: beam.Pipeline) -> None:
        _ = flattened(p) | "Asked" >> beam.Reshuffle() | beam.GroupByKey() | "G" >> beam.Map(print)

    plan = plan_of(build)
    (requested,) = _passing_on(plan)
    assert requested.source is not None
    assert plan.channels[requested.source].routing is Routing.SPREAD
    assert [plan.channels[sink].routing for sink in requested.sinks] == [Routing.GROUPED]


def _passing_on(plan: Plan) -> list[Stage]:
    """Return the stages that do nothing with elements from several other stages."""
    own = [(stage, plan.channels[stage.source]) for stage in plan.stages if not stage.transforms and stage.source]
    kept = (Routing.GROUPED, Routing.KEYED)
    return [stage for stage, read in own if len(read.producers) > 1 and read.routing not in kept]


def _in_order(plan: Plan) -> None:
    """Check that producers come before consumers."""
    places = {stage.id: at for at, stage in enumerate(plan.stages)}
    for channel in plan.channels:
        for producer in channel.producers:
            assert all(places[producer] < places[consumer] for consumer in channel.consumers)
