"""The physical plan: levels, ports and shards of stages."""

from __future__ import annotations

from typing import Any

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.plan import Channel, Plan, Routing, SideInput, Stage
from arcbeam.streaming.physicalplan import (
    PhysicalPlan,
    levels_of,
    output_names,
    placed,
    shape_of,
    side_name,
    side_number,
)

KEYED, SPREAD, SIDE = Routing.KEYED, Routing.SPREAD, Routing.SIDE


def stage(id: str, source: int | None, *sinks: int, **more: Any) -> Stage:
    return Stage(id, f"stage {id}", (), b"", source, sinks, uid=f"the {id}", **more)


PLAN = Plan(
    "job",
    (
        stage("s0", None, 0, 1, 2),
        stage("s1", 0, 2, shape="key; state"),
        stage("s2", 1, 3),
        stage("s3", 2, side_inputs=(SideInput("t", "side", 3, lateness=5), SideInput("u", "side", 3, lateness=9))),
        stage("s4", 2),
    ),
    (
        Channel(0, "words", KEYED, producers=("s0",), consumers=("s1",)),
        Channel(1, "words", SPREAD, producers=("s0",), consumers=("s2",)),
        Channel(2, "counts", KEYED, producers=("s1", "s0"), consumers=("s3", "s4")),
        Channel(3, "rates", SIDE, producers=("s2",)),
    ),
    bounded=False,
)


def at(shards: int = 4, tasks: int = 2) -> PhysicalPlan:
    return placed(PLAN, {s.uid: n for n, s in enumerate(PLAN.stages, 1)}, shards, tasks)


def test_stage_is_one_level_after_its_inputs() -> None:
    assert levels_of(PLAN) == {"s0": 0, "s1": 1, "s2": 1, "s3": 2, "s4": 2}
    assert [(p.name, p.level, p.number) for p in at().layout.stages] == [
        ("the s0", 0, 1),
        ("the s1", 1, 2),
        ("the s2", 1, 3),
        ("the s3", 2, 4),
        ("the s4", 2, 5),
    ]
    assert at().layout.tasks == (2, 2, 2)
    assert at(shards=1).layout.tasks == (1, 1, 1)


def test_outputs_have_unique_names_of_their_collections() -> None:
    first = at().layout.stages[0]
    assert first.flow.outputs == ("words", "words#2", "counts")
    assert [output_names(PLAN)["s0", sink] for sink in (0, 1, 2)] == ["words", "words#2", "counts"]
    third = at().layout.stages[3]
    assert third.flow.inputs == (Port("the s1", "counts"), Port("the s0", "counts"))
    rates = Port("the s2", "rates (side)")
    assert third.side_inputs == ((side_name(side_number(rates)), rates),)


def test_rows_of_channel_go_to_all_readers() -> None:
    physical = at()
    assert physical.readers == {0: (1,), 1: (2,), 2: (3, 4), 3: ()}
    number = side_number(Port("the s2", "rates (side)"))
    assert physical.side_parts == {3: (number,)}
    assert physical.side_readers == {number: ("the s3",)}
    assert physical.sides_of == (frozenset(), frozenset({number}), frozenset({number}))
    assert physical.sides_read == (frozenset(), frozenset(), frozenset({number}))
    assert [physical.sides_to_compact(level, 0) for level in range(3)] == [{}, {number: False}, {}]
    assert physical.side_lateness == {3: 9}
    assert physical.multimaps == frozenset()


@pytest.mark.parametrize(("shards", "tasks"), [(1, 1), (4, 2), (5, 3), (7, 9)])
def test_every_shard_has_owner_from_layout(shards: int, tasks: int) -> None:
    physical = at(shards, tasks)
    for level, owners in enumerate(physical.owners):
        assert len(owners) == shards
        for shard, task in enumerate(owners):
            assert shard in physical.layout.range_of(level, task)


def test_shape_of_pipeline_has_stage_level_and_shape() -> None:
    shape = shape_of(PLAN, 4)
    assert shape.shards == 4
    waits = "side input output 'rates (side)' of 'the s2'"
    assert [s.shape for s in shape.stages] == ["", "key; state", "", f"; {waits}", ""]
    assert [s.level for s in shape.stages] == [0, 1, 1, 2, 2]
