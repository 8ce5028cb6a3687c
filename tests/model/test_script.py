"""The values of a TestStream's script."""

from __future__ import annotations

from arcbeam.model.script import AddElements, AdvanceClock, AdvanceWatermark, Script, ScriptOver
from arcbeam.model.timestamps import Duration, Timestamp


def test_equal_events_are_equal_values() -> None:
    def events() -> tuple[AddElements, AdvanceWatermark, AdvanceClock, ScriptOver]:
        added = AddElements("s", ((b"encoded element", Timestamp(1)),))
        return added, AdvanceWatermark("s", Timestamp(2)), AdvanceClock(Duration(3)), ScriptOver()

    assert events() == events()
    assert Script("T", {"out": "s"}, events()) == Script("T", {"out": "s"}, events(), endpoint="", real_clock=False)


def test_elements_are_not_shown() -> None:
    event = AddElements("s", ((b"encoded element", Timestamp(1)),))
    assert "encoded element" not in repr(event) + repr(Script("T", {}, (event,)))
