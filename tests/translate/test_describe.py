"""Display names of stages and channels."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import trigger, window

from arcbeam.model.plan import Firings
from arcbeam.translate import describe
from tests.translate.plans import plan_of, source, winding


@pytest.mark.contract("PLAN-06")
@pytest.mark.parametrize("fusion", [True, False])
def test_names_have_no_internal_parts(fusion: bool) -> None:
    plan = plan_of(winding, fusion=fusion)
    for name in [*(s.name for s in plan.stages), *(c.name for c in plan.channels)]:
        assert name
        assert not name[0].isdigit()
        assert not name.endswith(".None")
        for internal in ("ref_", "pcollection_", "/Read", "/Write", "materialize:"):
            assert internal not in name


@pytest.mark.contract("PLAN-06")
def test_stage_that_only_moves_elements_is_named() -> None:
    plan = plan_of(lambda p: source(p, "a") | "One" >> beam.Reshuffle() | "Two" >> beam.Reshuffle() | beam.Map(str))
    assert [stage.name for stage in plan.stages if not stage.transforms] == ["One/RemoveRandomKeys + Two"]
    flat = plan_of(lambda p: [source(p, n) for n in "ab"] | beam.Flatten() | "End" >> beam.Map(str))
    assert {channel.name for channel in flat.channels} == {"Flatten"}


@pytest.mark.parametrize(
    ("unique", "name"),
    [
        ("16Side/Map(decode).None", "Side/Map(decode)"),
        ("4Tags.late", "Tags.late"),
        ("63 days.None", "3 days"),
        ("6With.s.None", "With.s"),
        ("Sum/Precombine.out", "Sum/Precombine"),
        ("ref_PCollection_1", "ref_PCollection_1"),
        ("", ""),
        ("12", "12"),
    ],
)
def test_names_of_pcollections(unique: str, name: str) -> None:
    assert describe.pcollection(unique) == name


_EARLY = trigger.Repeatedly(trigger.AfterCount(1))
_DISCARDING, _ACCUMULATING = trigger.AccumulationMode.DISCARDING, trigger.AccumulationMode.ACCUMULATING
_SINGLE, _SINGLE_OR, _LIST, _DICT = (
    beam.pvalue.AsSingleton,
    lambda of: beam.pvalue.AsSingleton(of, default_value=7),
    beam.pvalue.AsList,
    beam.pvalue.AsDict,
)


@pytest.mark.contract("ENG-05")
@pytest.mark.parametrize(
    ("view", "fires", "mode", "lateness", "expected"),
    [
        (_SINGLE, _EARLY, _DISCARDING, 0, Firings.LAST),
        (_SINGLE_OR, _EARLY, _ACCUMULATING, 0, Firings.LAST),
        (_LIST, _EARLY, _DISCARDING, 0, Firings.ALL),
        (_DICT, _EARLY, _ACCUMULATING, 0, Firings.ALL),
        (_SINGLE, None, _DISCARDING, 0, Firings.ALL),
        (_SINGLE, None, _DISCARDING, 9, Firings.ALL),
        (_SINGLE, None, _ACCUMULATING, 9, Firings.LAST),
        (_LIST, None, _ACCUMULATING, 9, Firings.ALL),
    ],
)
def test_which_firings_of_a_side_input_are_read(view: Any, fires: Any, mode: Any, lateness: int, expected: str) -> None:
    def make(p: beam.Pipeline) -> Any:
        side = p | "Side" >> beam.Create([(1, 2)])
        side |= beam.WindowInto(
            window.FixedWindows(5), trigger=fires, accumulation_mode=mode, allowed_lateness=lateness
        )
        return p | beam.Create([2]) | beam.Map(lambda x, of: x, view(side))

    assert [side.firings for stage in plan_of(make).stages for side in stage.side_inputs] == [expected]
