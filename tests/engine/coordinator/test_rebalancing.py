"""Restrictions move to another shard if a task has much more than its share."""

from __future__ import annotations

import math

import pytest

from arcbeam.engine.coordinator.rebalancing import handovers, pieces
from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.microbatchplan import Handover
from arcbeam.engine.protocol.reports import Movable, Restrictions, StageReport
from arcbeam.engine.watermarks.clocks import Local
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.model.timestamps import Timestamp


def _layout(shards: int, tasks: int) -> Layout:
    placed = [StagePlacement(StageFlow(name, (), ("main",), shards), i, 0) for i, name in enumerate(("read", "rates"))]
    return Layout(tuple(placed), shards, (tasks,))


def _report(stage: str, shard: int, rest: float, *sizes: float, ready: int = 0) -> StageReport:
    movable = tuple(Movable(b"%d.%d" % (shard, i), size, b"handed") for i, size in enumerate(sizes))
    known = Restrictions(len(sizes) + 1, rest + sum(sizes), movable=movable, ready=ready)
    return StageReport(stage, shard, Timestamp(0), Local(), restrictions=known)


def _moves(*reports: StageReport, tasks: int = 2) -> tuple[Handover, ...]:
    layout = _layout(1 + max(report.shard for report in reports), tasks)
    return handovers(layout, {(report.stage, report.shard): report for report in reports})


@pytest.mark.contract("SDF-08")
def test_stage_is_balanced_including_fixed_restrictions() -> None:
    full, empty = _report("read", 0, 1.0, 1.0, 1.0, 1.0), _report("read", 1, 0.0)
    moves = _moves(full, empty, _report("rates", 0, 9.0), _report("rates", 1, 0.0, 2.0))
    assert {(move.stage, move.source, move.target) for move in moves} == {("read", 0, 1)}
    assert len(moves) == 2
    assert {move.id for move in moves} <= {b"0.0", b"0.1", b"0.2"}
    assert moves[0].handed == b"handed"
    assert _moves(full, _report("read", 1, 4.0)) == ()


def test_infinite_and_nan_sizes_do_not_prevent_moves() -> None:
    for size in (math.inf, math.nan):
        assert len(_moves(_report("read", 0, size, 1.0, 1.0), _report("read", 1, 0.0))) == 1


@pytest.mark.parametrize("size", [0.0, -1.0, math.nan, math.inf])
def test_restrictions_without_a_size_count_as_the_mean(size: float) -> None:
    assert len(_moves(_report("read", 0, 0.0, size, size, size, 1.0), _report("read", 1, 0.0, 1.0))) == 1


@pytest.mark.contract("SDF-08")
def test_moves_go_only_between_tasks() -> None:
    there = [_report("read", shard, 0.0) for shard in (1, 2, 3)]
    assert _moves(_report("read", 0, 1.0, 1.0), *there, tasks=1) == ()
    (move,) = _moves(_report("read", 0, 1.0, 1.0), *there)
    assert (move.source, move.target) == (0, 2)
    assert {move.target for move in _moves(_report("read", 0, 0.0, *[1.0] * 4), *there, tasks=2)} == {2, 3}


@pytest.mark.contract("SDF-07", "SDF-05")
@pytest.mark.parametrize(
    ("ready", "wanted"), [((1, 0), {"read": 4}), ((2, 1), {"read": 2}), ((4, 0), {}), ((0, 0), {})]
)
def test_restrictions_are_cut_only_if_tasks_lack_work(ready: tuple[int, int], wanted: dict[str, int]) -> None:
    reports = [_report("read", shard, 1.0, ready=count) for shard, count in enumerate(ready)]
    places = {(report.stage, report.shard): report for report in reports}
    assert pieces(_layout(8, 4), places) == wanted
