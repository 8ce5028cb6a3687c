"""What a script does to the stage that puts out what it adds."""

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


def test_the_watermark_is_where_the_script_says_and_elements_do_not_move_it() -> None:
    world = scripted()

    def at(event: object, *came: int, initial: bool = False) -> int:
        return world.micro_batch(
            MAX_TIMESTAMP, *came, shard=0, event=event, beginning=_ALL if initial else frozenset()
        ).input

    assert at(None, initial=True) == MIN_TIMESTAMP
    assert at(AddElements("it", ()), 3, 9) == MIN_TIMESTAMP
    assert at(AdvanceWatermark("it", Timestamp(5))) == 5
    assert at(AdvanceWatermark("another", Timestamp(7))) == 5
    assert at(AdvanceClock(Duration(9))) == 5
    assert at(None, 2) == 5
    assert at(ScriptOver()) == MAX_TIMESTAMP
    assert world.told() == ["process 3 9", "process 2"]


def test_what_holds_is_named_and_let_go_at_the_end_of_time() -> None:
    world = scripted()
    held = world.micro_batch(MAX_TIMESTAMP, shard=0, beginning=_ALL).local
    assert held.pending is not None
    assert (held.pending.kind, held.pending.time) == (HolderKind.SCRIPT, MIN_TIMESTAMP)
    assert held.outputs["main"].pending == held.pending
    assert str(held.pending) == "script"
    report = world.micro_batch(MAX_TIMESTAMP, shard=0, event=AdvanceWatermark("it", MAX_TIMESTAMP))
    assert report.local.pending is None
    assert report.input == MAX_TIMESTAMP


def test_other_shards_have_nothing_to_wait_for() -> None:
    assert scripted().micro_batch(MAX_TIMESTAMP, shard=1, beginning=_ALL).input == MAX_TIMESTAMP
