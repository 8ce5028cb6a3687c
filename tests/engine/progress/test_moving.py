"""Restrictions change their shard where one has much more than its share."""

from __future__ import annotations

import math

import pytest

from arcbeam.engine.plan.reports import Movable, Restrictions, StageReport
from arcbeam.engine.plan.stepplan import Handover
from arcbeam.engine.progress.moving import handovers
from arcbeam.engine.watermarks.clocks import Local
from arcbeam.model.timestamps import Timestamp


def _report(stage: str, shard: int, rest: float, *sizes: float) -> StageReport:
    movable = tuple(Movable(b"%d.%d" % (shard, i), size, b"handed") for i, size in enumerate(sizes))
    known = Restrictions(len(sizes) + 1, rest + sum(sizes), movable=movable)
    return StageReport(stage, shard, Timestamp(0), Local(), restrictions=known)


def _moves(*reports: StageReport) -> tuple[Handover, ...]:
    return handovers({(report.stage, report.shard): report for report in reports})


@pytest.mark.contract("SDF-08")
def test_a_stage_is_balanced_by_itself_with_what_cannot_move() -> None:
    full, empty = _report("read", 0, 1.0, 1.0, 1.0, 1.0), _report("read", 1, 0.0)
    moves = _moves(full, empty, _report("rates", 0, 9.0), _report("rates", 1, 0.0, 2.0))
    assert {(move.stage, move.source, move.target) for move in moves} == {("read", 0, 1)}
    assert len(moves) == 2
    assert {move.id for move in moves} <= {b"0.0", b"0.1", b"0.2"}
    assert moves[0].handed == b"handed"
    assert _moves(full, _report("read", 1, 4.0)) == ()


def test_sizes_that_are_no_numbers_keep_nothing_from_moving() -> None:
    for size in (math.inf, math.nan):
        assert len(_moves(_report("read", 0, size, 1.0, 1.0), _report("read", 1, 0.0))) == 1
