"""A stage without state in a micro-batch, and elements blocked by side inputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from arcbeam.engine.grouping.groupings import KeyElements, WindowedElement
from arcbeam.engine.protocol.reports import Awaited, Counts
from arcbeam.engine.protocol.stagekinds import Plain, Stateful
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.task.bundles import CallResult
from arcbeam.engine.watermarks.holds import HolderKind
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import NO_PANE, PaneInfo, Timing
from tests.engine.task.world import DECODE, FAMILIES, NAMES, RATES, W, World, end_of, timer_set


@pytest.mark.contract("ENG-02")
def test_plain_stage_processes_elements_without_state() -> None:
    world = World(Plain())
    report = world.micro_batch(5, 7, 3)
    assert world.calls() == ["process 7 3"]
    assert report.counts == Counts(read=2, written=2)
    assert report.input == 5
    assert report.local.pending is None


class _Opaque:
    """Two elements that no code may decode."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[WindowedElement]:
        raise AssertionError("a plain stage has nothing to look at")


class _Seeing(World):
    """Stores its elements."""

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        self.seen.append(elements)
        return CallResult(len(elements))

    seen: list[KeyElements]


def test_plain_stage_passes_blocks_unchanged() -> None:
    world, block = _Seeing(Plain()), _Opaque()
    world.seen = []
    assert world.micro_batch(5, block=block).counts == Counts(read=2, written=2)
    assert world.seen == [block]


@pytest.mark.contract("ENG-05", "ENG-13")
@pytest.mark.parametrize("waits", ["for a side input", "in order of time"])
def test_waiting_element_keeps_its_pane(waits: str) -> None:
    in_order = Stateful(FAMILIES, DECODE, end_of, Duration(0))
    world = _Seeing(Plain(), (("rates", RATES),)) if waits == "for a side input" else _Seeing(in_order)
    world.seen = []
    panes = [NO_PANE, PaneInfo(300, -1, Timing.EARLY, False, False), PaneInfo(301, 0, Timing.ON_TIME, False, True)]
    arrived = [(b"%d" % n, Timestamp(n), (W,), pane) for n, pane in enumerate(panes)]
    world.micro_batch(0, block=arrived)
    assert world.seen == []
    world.committed_outputs[RATES] = MAX_TIMESTAMP
    world.micro_batch(5)
    assert [element for elements in world.seen for element in elements] == arrived


@pytest.mark.contract("ENG-03", "ENG-05")
def test_elements_are_blocked_until_all_side_inputs_ready() -> None:
    world = World(Plain(), (("rates", RATES), ("names", NAMES)))
    report = world.micro_batch(50, 7, 3, 12)
    assert world.calls() == []
    assert report.awaited == (Awaited(RATES, Timestamp(9)), Awaited(RATES, Timestamp(19)))
    assert report.input == 3
    assert report.local.pending is not None
    assert report.local.pending.kind is HolderKind.BLOCKED
    assert report.local.waits_for == RATES

    world.full.add(SideInputWindow("rates", W.ordered()))
    report = world.micro_batch(50, 8)
    assert world.calls() == []
    assert report.awaited == (Awaited(NAMES, Timestamp(9)), Awaited(RATES, Timestamp(19)))
    assert report.input == 3
    assert report.counts == Counts(read=1, unblocked=2)

    world.committed_outputs[NAMES] = Timestamp(10)
    report = world.micro_batch(50, 9)
    assert sorted(" ".join(world.calls()).replace("process ", "").split()) == ["3", "7", "8", "9"]
    assert report.input == 12
    assert report.counts.unblocked == 3
    world.committed_outputs.update({RATES: MAX_TIMESTAMP, NAMES: MAX_TIMESTAMP})
    report = world.micro_batch(50)
    assert world.calls() == ["process 12"]
    assert report.input == 50
    assert report.awaited == ()


def test_timer_in_plain_stage_is_refused_by_name() -> None:
    world = World(Plain())
    world.on = {"process 7": CallResult(1, (timer_set("event", 8),))}
    with pytest.raises(ValueError, match="'it' has set a timer of family 'event'"):
        world.micro_batch(5, 7)
