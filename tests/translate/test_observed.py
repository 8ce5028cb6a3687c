"""Which outputs of a stage are observed, by which observers, and which observations are shared."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.pvalue import AsList

from arcbeam.io import WithWatermark, WithWatermarkPolicy
from arcbeam.model.observers import NOT_OBSERVED, Observer, ObserverPaths, Policy
from arcbeam.model.plan import Plan
from arcbeam.model.timestamps import Duration
from tests.translate.plans import plan_of, source

pytestmark = pytest.mark.contract("WM-01", "WM-02")

_CLICKS = Observer("Clicks", Duration(10_000_000))


def _first(element: Any) -> float:
    return float(element[1])


def _clicks(behind: Any, **arguments: Any) -> Any:
    return behind | "Clicks" >> WithWatermark(_first, 10, **arguments)


def _observed(build: Any, **arguments: Any) -> dict[str, ObserverPaths]:
    """Return the observers on the paths to each GroupByKey's input, by the input's name."""
    plan: Plan = plan_of(build, bounded=False, **arguments)
    found = {}
    for channel in plan.channels:
        paths = {plan.stage(id).observed.get(channel.index, NOT_OBSERVED) for id in channel.producers}
        found[channel.name] = tuple(way for each in sorted(paths, key=str) for way in each)
    return found


@pytest.mark.parametrize("fusion", [True, False])
def test_only_paths_after_observer_are_observed(fusion: bool) -> None:
    def build(p: Any) -> None:
        rows = source(p)
        _clicks(rows) | "Pass" >> beam.Map(lambda x: x) | "Seen" >> beam.GroupByKey()
        rows | "Unseen" >> beam.GroupByKey()

    found = _observed(build, fusion=fusion)
    stages = [paths for name, paths in found.items() if name.startswith(("Clicks", "Pass"))]
    assert stages
    assert found["Create/Map(decode)"] == NOT_OBSERVED
    if fusion:
        assert stages == [(_CLICKS,)]
    else:
        assert stages == [(_CLICKS,), NOT_OBSERVED], "later stages read an observed watermark"


def test_chained_and_parallel_observers_are_combined() -> None:
    def build(p: Any) -> None:
        rows = source(p)
        clicks = _clicks(rows, policy="max")
        again = clicks | "Again" >> WithWatermark(None, 1)
        (clicks, rows, again) | beam.Flatten() | beam.GroupByKey()

    first = Observer("Clicks", Duration(10_000_000), Policy.MAX)
    second = Observer("Again", Duration(1_000_000), Policy.MIN, (first,))
    (paths,) = [paths for paths in _observed(build).values() if paths != NOT_OBSERVED]
    assert set(paths) == {None, first, second}


@pytest.mark.parametrize("fusion", [True, False])
def test_collections_with_one_policy_share_observation(fusion: bool) -> None:
    def build(p: Any) -> None:
        clicks, others = _clicks(source(p)), source(p, "Others")
        both = (clicks, others) | "Both" >> WithWatermarkPolicy("max")
        both | "Flat" >> beam.Flatten() | "Sum" >> beam.GroupByKey()
        joined = {"l": clicks, "r": others} | "Two" >> WithWatermarkPolicy("min", idle_after=5)
        joined | beam.CoGroupByKey()
        (clicks, others) | "None" >> WithWatermarkPolicy("min") | "Again" >> beam.Flatten() | beam.Map(print)

    plan: Plan = plan_of(build, bounded=False, fusion=fusion)
    found = {way for stage in plan.stages for paths in stage.observed.values() for way in paths if way is not None}
    shared = {
        Observer(name, Duration(0), Policy.MAX, paths, idle, shared=policy, part=f"{name}/Observe {part}")
        for name, policy, idle, parts in (
            ("Both", Policy.MAX, None, "01"),
            ("Two", Policy.MIN, Duration(5_000_000), "lr"),
        )
        for part, paths in zip(parts, ((_CLICKS,) if fusion else NOT_OBSERVED, NOT_OBSERVED), strict=True)
    }
    assert found - {_CLICKS} == shared


def test_side_input_observer_does_not_affect_main_output() -> None:
    def build(p: Any) -> None:
        side = _clicks(source(p))
        source(p, "Main") | beam.Map(lambda x, side: x, side=AsList(side)) | beam.GroupByKey()

    found = _observed(build)
    assert [paths for name, paths in found.items() if name.startswith("Clicks")] == [(_CLICKS,)]
    assert [paths for name, paths in found.items() if name.startswith("Map")] == [NOT_OBSERVED]


def test_observer_adds_no_stage_to_bounded_pipeline() -> None:
    def build(p: Any) -> None:
        _clicks(source(p)) | beam.GroupByKey()

    plan = plan_of(build)
    assert len(plan.stages) == 2
