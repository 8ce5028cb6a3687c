"""How combiners become stages: lifted, packed, or run on groups."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability import common_urns, python_urns
from apache_beam.transforms import trigger
from apache_beam.transforms.trigger import (
    AccumulationMode,
    AfterAll,
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
    Always,
    Repeatedly,
    TriggerFn,
)
from apache_beam.transforms.window import FixedWindows, TimestampCombiner

from arcbeam.model.plan import Routing
from arcbeam.model.urns import PRECOMBINE_URN
from tests.harness.drive import Collect, Driven
from tests.translate.plans import EXCHANGES, channels, combine, plan_of, source


@pytest.mark.contract("PLAN-02")
@pytest.mark.parametrize(
    ("fn", "lifted"),
    [
        (None, True),
        (AfterWatermark(), True),
        (AfterWatermark(late=AfterCount(3)), True),
        (AfterWatermark(early=AfterProcessingTime(10)), True),
        (trigger._Never(), True),
        # A pane is due after a number of elements, which must not be combined into one before.
        (Repeatedly(AfterCount(3)), False),
        (Repeatedly(AfterCount(1)), False),
        (AfterWatermark(early=AfterCount(1)), False),
        (Repeatedly(AfterAll(AfterCount(3), AfterProcessingTime(10))), False),
        (Always(), False),
    ],
    ids=str,
)
def test_combiners_are_lifted_if_panes_allow(fn: TriggerFn | None, lifted: bool) -> None:
    plan = plan_of(lambda p: combine(p, fn))
    urns = [t.urn for stage in plan.stages for t in stage.transforms]
    assert (PRECOMBINE_URN in urns) == lifted
    assert (common_urns.combine_components.COMBINE_GROUPED_VALUES.urn in urns) != lifted
    # The plan still shows the trigger on which the decision is based.
    (channel,) = channels(plan, Routing.GROUPED, Routing.KEYED)
    assert (type(fn).__name__ in ("NoneType", "DefaultTrigger")) == (channel.windowing == "fixed_windows")


@pytest.mark.contract("PLAN-02", "ENG-11")
@pytest.mark.parametrize(
    ("fn", "pane_time", "lifted"),
    [
        (None, None, True),
        (AfterWatermark(early=AfterProcessingTime(10)), None, True),
        (None, TimestampCombiner.OUTPUT_AT_LATEST, True),
        # In a streaming job elements may be late: those that a late pane counts must not be combined into one before.
        (AfterWatermark(late=AfterCount(3)), None, False),
        (Repeatedly(AfterCount(3)), None, False),
        # Nor may elements of which some are late: the earliest of the others is the time of the pane.
        (None, TimestampCombiner.OUTPUT_AT_EARLIEST, False),
    ],
)
def test_combiners_are_lifted_less_often_in_streaming(fn: TriggerFn | None, pane_time: Any, lifted: bool) -> None:
    def build(p: Any) -> None:
        mode = AccumulationMode.DISCARDING if fn else None
        windowed = source(p) | beam.WindowInto(
            FixedWindows(1), trigger=fn, accumulation_mode=mode, timestamp_combiner=pane_time
        )
        windowed | beam.CombinePerKey(sum)

    urns = [t.urn for stage in plan_of(build, bounded=False).stages for t in stage.transforms]
    assert (PRECOMBINE_URN in urns) == lifted


@pytest.mark.contract("PLAN-02", "ENG-08")
@pytest.mark.parametrize("bundle_elements", [1, 500_000])
def test_combiners_panes_do_not_depend_on_bundles(bundle_elements: int) -> None:
    with Driven(bundle_elements=bundle_elements) as p:
        (
            p
            | beam.Create([("k", 1)] * 7)
            | beam.WindowInto(
                FixedWindows(1), trigger=Repeatedly(AfterCount(1)), accumulation_mode=AccumulationMode.ACCUMULATING
            )
            | beam.CombinePerKey(sum)
            | Collect()
        )
    assert p.values() == [("k", n) for n in range(1, 8)]


@pytest.mark.contract("PLAN-02")
def test_combiners_of_one_input_are_packed() -> None:
    class Statistics(beam.PTransform):
        def annotations(self) -> dict[str, Any]:
            return {python_urns.APPLY_COMBINER_PACKING: b""}

        def expand(self, pcoll: Any) -> Any:
            return [pcoll | "min" >> beam.CombinePerKey(min), pcoll | "max" >> beam.CombinePerKey(max)]

    def build(p: Any) -> None:
        source(p) | Statistics()

    plan = plan_of(build)
    assert len(channels(plan, *EXCHANGES)) == 1
    assert sum(t.urn == PRECOMBINE_URN for stage in plan.stages for t in stage.transforms) == 1
    with Driven() as p:
        low, high = source(p) | Statistics()
        low | Collect("low")
        high | Collect("high")
    assert sorted(p.values("low")) == sorted(p.values("high")) == [("a", 1), ("b", 2)]


def client_side(proto: Any, phases: str = "default") -> Any:
    """Do what `PortableRunner` does to a pipeline before it sends it to a job server."""
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.portable_runner import PortableRunner

    options = PipelineOptions([f"--experiments=pre_optimize={phases}"])
    return PortableRunner._optimize_pipeline(proto, options)


@pytest.mark.contract("PLAN-02", "API-02")
@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("optimize", ["none", "default", "all_except_fusion", "pack_combiners,lift_combiners"])
def test_combiners_lifted_by_the_client_run(fusion: bool, optimize: str) -> None:
    def edit(proto: Any) -> None:
        proto.CopyFrom(client_side(proto, optimize))

    with Driven(fusion=fusion, edit=edit, shards=3) as p:
        values = p | beam.Create([("a", 1), ("b", 2), ("a", 3)])
        values | "sum" >> beam.CombinePerKey(sum) | Collect("sum")
        values | "mean" >> beam.combiners.Mean.PerKey() | Collect("mean")
        values | beam.Values() | beam.CombineGlobally(sum) | Collect("all")
        values | beam.WindowInto(FixedWindows(1)) | "in windows" >> beam.CombinePerKey(max) | Collect("windows")
    assert sorted(p.values("sum")) == [("a", 4), ("b", 2)]
    assert sorted(p.values("mean")) == [("a", 2.0), ("b", 2.0)]
    assert p.values("all") == [6]
    assert sorted(p.values("windows")) == [("a", 3), ("b", 2)]
    urns = [t.urn for stage in p.plan.stages for t in stage.transforms]
    assert common_urns.combine_components.COMBINE_PER_KEY_PRECOMBINE.urn not in urns
    assert PRECOMBINE_URN in urns


@pytest.mark.contract("PLAN-02")
@pytest.mark.parametrize("part", ["COMBINE_PER_KEY_PRECOMBINE", "COMBINE_PER_KEY_CONVERT_TO_ACCUMULATORS"])
def test_isolated_parts_of_a_combiner_run(part: str) -> None:
    components = common_urns.combine_components

    def edit(proto: Any) -> None:
        proto.CopyFrom(client_side(proto))
        for transform in proto.components.transforms.values():
            if transform.spec.urn == common_urns.composites.COMBINE_PER_KEY.urn:
                transform.ClearField("spec")  # only its parts are left
            elif transform.spec.urn == components.COMBINE_PER_KEY_PRECOMBINE.urn:
                transform.spec.urn = getattr(components, part).urn

    with Driven(edit=edit) as p:
        p | beam.Create([("a", 1), ("b", 2), ("a", 3)]) | beam.combiners.Mean.PerKey() | Collect()
    assert sorted(p.values()) == [("a", 2.0), ("b", 2.0)]
    urns = [t.urn for stage in p.plan.stages for t in stage.transforms]
    ours = PRECOMBINE_URN if part.endswith("PRECOMBINE") else components.COMBINE_PER_KEY_CONVERT_TO_ACCUMULATORS.urn
    assert urns.count(ours) == 1
    assert urns.count(components.COMBINE_PER_KEY_MERGE_ACCUMULATORS.urn) == 1


@pytest.mark.contract("PLAN-02")
def test_combiner_that_is_not_lifted_runs_on_groups() -> None:
    with Driven() as p:
        (
            p
            | beam.Create([("a", 1), ("a", 3), ("a", 5)])
            | beam.WindowInto(
                FixedWindows(1), trigger=Repeatedly(AfterCount(2)), accumulation_mode=AccumulationMode.DISCARDING
            )
            | beam.combiners.Mean.PerKey()
            | Collect()
        )
    assert len(p.values()) == 2
    urns = [t.urn for stage in p.plan.stages for t in stage.transforms]
    assert common_urns.combine_components.COMBINE_GROUPED_VALUES.urn in urns
