"""Names of stages and channels are for people."""

from __future__ import annotations

import apache_beam as beam
import pytest

from arcbeam.translate import describe
from tests.translate.plans import plan_of, source, winding


@pytest.mark.contract("PLAN-06")
@pytest.mark.parametrize("fusion", [True, False])
def test_names_are_for_people(fusion: bool) -> None:
    plan = plan_of(winding, fusion=fusion)
    for name in [*(s.name for s in plan.stages), *(c.name for c in plan.channels)]:
        assert name
        assert not name[0].isdigit()
        assert not name.endswith(".None")
        for internal in ("ref_", "pcollection_", "/Read", "/Write", "materialize:"):
            assert internal not in name


@pytest.mark.contract("PLAN-06")
def test_a_stage_that_only_moves_elements_says_so() -> None:
    plan = plan_of(lambda p: [source(p, n) for n in "ab"] | beam.Flatten() | beam.Reshuffle() | "End" >> beam.Map(str))
    assert [stage.name for stage in plan.stages if not stage.transforms] == ["Flatten + Reshuffle"]
    assert {channel.name for channel in plan.channels} == {"Flatten"}


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
