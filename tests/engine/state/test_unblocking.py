"""When a hold of a watermark is released."""

from __future__ import annotations

import pytest

from arcbeam.engine.state.residuals import Remainder, Residuals
from arcbeam.engine.state.timers import Timers
from arcbeam.engine.state.unblocking import with_releases
from arcbeam.engine.watermarks.clocks import Clock
from arcbeam.engine.watermarks.holds import Holder, HolderKind, Holds, Release
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Timestamp
from arcbeam.testing.views import MemoryView

pytestmark = pytest.mark.contract("WM-06")


def _held(view: MemoryView) -> Release | None:
    local = with_releases(view, 3, Clock(view, 3, ("out",)).local())
    hold = local.outputs["out"].hold
    assert hold is not None
    assert hold.owner == b""
    return hold.release


@pytest.mark.parametrize(
    ("family", "fire_at", "hold", "release"),
    [
        ("clock", 90, 5, Release(Timestamp(90), by_clock=True)),
        ("event", 90, 5, Release(Timestamp(90), by_clock=False)),
        ("event", 7, 7, Release(Timestamp(7), by_clock=False)),
    ],
)
def test_hold_of_timer_is_released_when_it_fires(family: str, fire_at: int, hold: int, release: Release) -> None:
    view = MemoryView()
    timers = Timers(view, 3, {"clock": TimeDomain.PROCESSING, "event": TimeDomain.EVENT})
    timers.set(b"k" * 200, b"w", family, Timestamp(fire_at), Timestamp(hold), "tag")
    assert _held(view) == release


def test_hold_of_restriction_is_released_when_due() -> None:
    view = MemoryView()
    due = Remainder(b"", 7.5, due=Timestamp(90), watermarks={"out": Timestamp(5)})
    Residuals(view, 3, ("out",)).admit("1.0.0", due, Timestamp(1))
    local = with_releases(view, 3, Clock(view, 3, ("out",)).local())
    assert local.pending is not None
    assert local.pending.size == 7.5
    assert local.pending.release == local.outputs["out"].pending.release == Release(Timestamp(90), by_clock=True)  # type: ignore[union-attr]


def test_release_is_unknown_without_row() -> None:
    view = MemoryView()
    Holds(view, 3).set(Holder(HolderKind.STATE, "pane", b"k", b"w"), Timestamp(5))
    assert _held(view) is None
    Residuals(view, 3, ("out",)).admit("a root that is too long for a row's key", Remainder(b""), Timestamp(1))
    local = with_releases(view, 3, Clock(view, 3, ("out",)).local())
    assert local.pending is not None
    assert local.pending.release is None
