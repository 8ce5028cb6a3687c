"""A shard's input watermark waits for pending work; its outputs also wait for holds."""

from __future__ import annotations

import pytest

from arcbeam.engine.state.residuals import Remainder, Residuals
from arcbeam.engine.state.timers import Timers
from arcbeam.engine.watermarks.clocks import Clock, Local, OutputTime, input_time, output_time, shown_time
from arcbeam.engine.watermarks.holds import ALL, Hold, Holder, HolderKind, Holds, Side
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

_OUTPUTS = ("main", "errors")
_BLOCKED = Holder(HolderKind.BLOCKED, "rates", b"k", b"w")


@pytest.mark.contract("ENG-01")
def test_input_watermark_waits_for_pending_work_and_never_decreases() -> None:
    view = MemoryView()
    clock, pending = Clock(view, 0, _OUTPUTS), Holds(view, 0, Side.INPUT)
    assert clock.input == MIN_TIMESTAMP
    assert clock.advance(Timestamp(10)) == 10
    pending.set(_BLOCKED, Timestamp(12))
    assert clock.advance(Timestamp(20)) == 12
    pending.set(_BLOCKED, Timestamp(3))  # a late element
    assert clock.advance(Timestamp(20)) == 12
    pending.clear(_BLOCKED)
    assert clock.advance(MAX_TIMESTAMP) == MAX_TIMESTAMP


@pytest.mark.contract("ENG-01")
def test_input_watermark_is_stored_only_while_work_is_pending() -> None:
    view = MemoryView()
    pending = Holds(view, 0, Side.INPUT)
    assert Clock(view, 0, _OUTPUTS).advance(Timestamp(10)) == 10
    assert view.empty
    assert Clock(view, 0, _OUTPUTS, Timestamp(15)).input == 15  # observed outputs have moved
    pending.set(_BLOCKED, Timestamp(12))  # it was allowed to be late
    assert Clock(view, 0, _OUTPUTS, Timestamp(5)).advance(Timestamp(20)) == 12
    pending.set(_BLOCKED, Timestamp(3))
    assert Clock(view, 0, _OUTPUTS, Timestamp(20)).advance(Timestamp(20)) == 12
    pending.clear(_BLOCKED)
    assert Clock(view, 0, _OUTPUTS, Timestamp(20)).advance(Timestamp(20)) == 20
    assert view.empty


@pytest.mark.contract("ENG-03")
def test_blocked_element_delays_timer_but_output_hold_does_not() -> None:
    view = MemoryView()
    clock, timers = Clock(view, 0, ()), Timers(view, 0, {"window": TimeDomain.EVENT})
    timers.set(b"k", b"w", "window", Timestamp(9), None)
    Holds(view, 0, Side.INPUT).set(_BLOCKED, Timestamp(5))
    assert timers.take_event(clock.advance(Timestamp(10))) is None
    Holds(view, 0, Side.INPUT).clear(_BLOCKED)
    Holds(view, 0, Side.OUTPUT).set(_BLOCKED, Timestamp(5))
    assert timers.take_event(clock.advance(Timestamp(10))) is not None


@pytest.mark.contract("ENG-03", "SDF-02", "SDF-10")
def test_restriction_is_pending_per_output() -> None:
    view = MemoryView()
    clock = Clock(view, 0, _OUTPUTS)
    residuals = Residuals(view, 0, _OUTPUTS)
    promised = {"main": Timestamp(7), "errors": Timestamp(5)}
    residuals.admit("r", Remainder(b"", watermarks=promised), Timestamp(0))
    local = clock.local()
    assert clock.advance(Timestamp(100)) == 5
    assert {output: output_time(Timestamp(100), local, output) for output in _OUTPUTS} == promised
    residuals.admit("silent", Remainder(b"", watermarks={"main": Timestamp(6)}), Timestamp(0))
    local = clock.local()
    assert {output: output_time(Timestamp(100), local, output) for output in _OUTPUTS} == {
        "main": 6,
        "errors": MIN_TIMESTAMP,
    }
    assert input_time(Timestamp(100), local) == MIN_TIMESTAMP


@pytest.mark.contract("ENG-01")
def test_output_waits_for_its_holds() -> None:
    view = MemoryView()
    clock, holds = Clock(view, 0, _OUTPUTS), Holds(view, 0)
    holds.set(Holder(HolderKind.STATE, "pane", b"k", b"w"), Timestamp(20))
    holds.set(Holder(HolderKind.STATE, "pane", b"k", b"w"), Timestamp(15), "errors")
    assert clock.local() == Local(
        None,
        {
            "main": OutputTime(None, Hold(Timestamp(20), HolderKind.STATE, "pane", ALL, "k")),
            "errors": OutputTime(None, Hold(Timestamp(15), HolderKind.STATE, "pane", "errors", "k")),
        },
    )
    assert output_time(Timestamp(30), clock.local(), "main") == 20
    assert output_time(Timestamp(12), clock.local(), "main") == 12


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (MIN_TIMESTAMP, "the beginning of time"),
        (MAX_TIMESTAMP, "the end of time"),
        (Timestamp(1_500_000), "1970-01-01T00:00:01.500000Z"),
        (Timestamp(-1_000_000), "1969-12-31T23:59:59Z"),
        (END_OF_GLOBAL_WINDOW, "the end of the global window"),
        (Timestamp(END_OF_GLOBAL_WINDOW - 1), "9223371950454774998 µs"),
    ],
)
def test_times_are_shown_as_text(time: Timestamp, shown: str) -> None:
    assert shown_time(time) == shown
