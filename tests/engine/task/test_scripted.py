"""The effects of a script on the stage that outputs its elements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.protocol.stagekinds import Plain
from arcbeam.engine.watermarks.holds import HolderKind
from arcbeam.model.script import AddElements, AdvanceClock, AdvanceWatermark, ScriptOver
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from tests.engine.task.world import World

pytestmark = pytest.mark.contract("ENG-09")

_ALL = frozenset({"it"})


def scripted() -> World:
    world = World(Plain())
    world.spec = replace(world.spec, placed=replace(world.spec.placed, scripted=True))
    return world


def test_only_script_moves_watermark() -> None:
    world = scripted()

    def at(event: object, *arrived: int, initial: bool = False) -> int:
        return world.micro_batch(
            MAX_TIMESTAMP, *arrived, shard=0, event=event, beginning=_ALL if initial else frozenset()
        ).input

    assert at(None, initial=True) == MIN_TIMESTAMP
    assert at(AddElements("it", ()), 3, 9) == MIN_TIMESTAMP
    assert at(AdvanceWatermark("it", Timestamp(5))) == 5
    assert at(AdvanceWatermark("another", Timestamp(7))) == 5
    assert at(AdvanceClock(Duration(9))) == 5
    assert at(None, 2) == 5
    assert at(ScriptOver()) == MAX_TIMESTAMP
    assert world.calls() == ["process 3 9", "process 2"]


def test_script_hold_is_named_and_released_at_end() -> None:
    world = scripted()
    held = world.micro_batch(MAX_TIMESTAMP, shard=0, beginning=_ALL).local
    assert held.pending is not None
    assert (held.pending.kind, held.pending.time) == (HolderKind.SCRIPT, MIN_TIMESTAMP)
    assert held.outputs["main"].pending == held.pending
    report = world.micro_batch(MAX_TIMESTAMP, shard=0, event=AdvanceWatermark("it", MAX_TIMESTAMP))
    assert report.local.pending is None
    assert report.input == MAX_TIMESTAMP


def test_other_shards_do_not_wait_for_script() -> None:
    assert scripted().micro_batch(MAX_TIMESTAMP, shard=1, beginning=_ALL).input == MAX_TIMESTAMP
