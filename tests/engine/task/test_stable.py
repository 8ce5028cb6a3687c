"""A stage with stable input processes elements in the micro-batch after the commit of their arrival."""

from __future__ import annotations

import pytest

from arcbeam.engine.coordinator.scheduling import Ready, look
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import AfterCount
from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.reports import Counts, StageReport
from arcbeam.engine.protocol.stagekinds import Grouped, Plain, Splittable, StageKind, StageSpec, Stateful
from arcbeam.engine.task import stagerun
from arcbeam.engine.watermarks.stages import StageFlow, WatermarkTimes
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView
from tests.engine.task.world import DECODE, FAMILIES, RATES, World, end_of


def _looks(report: StageReport) -> object:
    layout = Layout((StagePlacement(StageFlow("it", (), ("main",), 4), 1, 0),), 4, (1,))
    return look(layout, {("it", 3): report}, WatermarkTimes(), frozenset(), Timestamp(0))


@pytest.mark.contract("API-04", "ENG-13")
@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        (Plain(), ["process 7 3 5"]),
        (Stateful(FAMILIES, DECODE, end_of), ["process 7 3 5"]),
        (Splittable(), ["resume 7", "resume 3", "resume 5"]),
    ],
)
def test_stable_input_waits_for_commit_in_order(kind: StageKind, calls: list[str]) -> None:
    world = World(kind, stable=True)
    report = world.micro_batch(MAX_TIMESTAMP, 7, 3, 5)
    assert world.calls() == []
    assert (report.input, report.uncommitted, report.leftover, report.awaited) == (3, True, False, ())
    assert _looks(report) == Ready()
    committed = world.view.snapshot()
    for _ in range(2):
        world.view = MemoryView(committed)
        report = world.micro_batch(MAX_TIMESTAMP)
        assert sorted(world.calls()) == sorted(calls)
        assert (report.input, report.uncommitted, report.counts.unblocked) == (MAX_TIMESTAMP, False, 3)


@pytest.mark.contract("API-04")
def test_stable_input_waits_for_its_own_commit() -> None:
    world = World(Plain(), stable=True)
    world.micro_batch(0, 1)
    report = world.micro_batch(5, 2)
    assert world.calls() == ["process 1"]
    assert report.counts == Counts(read=1, written=1, unblocked=1)
    assert report.input == 2
    world.micro_batch(5)
    assert world.calls() == ["process 2"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_many_blocked_elements_are_passed_in_parts(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(stagerun, "_UNBLOCKED_MAX", 2)
    world = World(Plain(), stable=True)
    world.micro_batch(0, *range(count))
    report = world.micro_batch(5)
    calls = [line.split()[1:] for line in world.calls()]
    assert [int(value) for call in calls for value in call] == list(range(count))
    assert max(map(len, calls)) <= 2
    assert report.counts.unblocked == count


@pytest.mark.contract("API-04", "ENG-05")
def test_committed_element_then_waits_for_side_inputs() -> None:
    world = World(Plain(), (("rates", RATES),), stable=True)
    assert world.micro_batch(MAX_TIMESTAMP, 7).awaited == ()
    report = world.micro_batch(MAX_TIMESTAMP)
    assert len(report.awaited) == 1
    assert not report.uncommitted
    world.committed_outputs[RATES] = MAX_TIMESTAMP
    assert world.micro_batch(MAX_TIMESTAMP).input == MAX_TIMESTAMP
    assert world.calls() == ["process 7"]


def test_stable_input_of_grouping_is_refused_by_name() -> None:
    placed = StagePlacement(StageFlow("write", (), ("main",)), 1, 0)
    with pytest.raises(ValueError, match="'write' groups and requires stable input"):
        StageSpec(placed, Grouped(Strategy(AfterCount(1)), DECODE), DECODE, stable=True)
    with pytest.raises(ValueError, match=r"'write' requires stable input: .*`decode`"):
        StageSpec(placed, Plain(), stable=True)
