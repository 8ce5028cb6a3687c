"""`punctual` finds panes that come too early or too late."""

from __future__ import annotations

from typing import Any

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.model.windows import IntervalWindow, PaneInfo, Timing
from simulator.judging.firing import MicroBatchRun, check
from simulator.judging.records import Broken, Drop, Out, Record
from simulator.scenario.kinds import MAIN, Event, Group, Source
from simulator.scenario.plans import Pipeline, Stage

WINDOW = IntervalWindow(Timestamp(3), Timestamp(13))
EARLY = PaneInfo(0, -1, Timing.EARLY, True, False)
LATE = PaneInfo(1, 1, Timing.LATE, False, False)
LAST = PaneInfo(2, 2, Timing.LATE, False, True)
OVER, EXPIRED = 20, 40


def arrived(*atoms: bytes) -> tuple[Record, ...]:
    return tuple(Out("source-1", MAIN, b"k", (atom,), Timestamp(5)) for atom in atoms)


def pane(info: PaneInfo, *atoms: bytes) -> Record:
    return Out("group-2", MAIN, b"k", atoms, Timestamp(12), WINDOW, info, elements=len(atoms))


def micro_batch(
    *records: Record | tuple[Record, ...], time: int = 0, at: int = 0, leftover: bool = False
) -> tuple[MicroBatchRun, Any]:
    left = frozenset({("group-2", 0)}) if leftover else frozenset()
    flat = [each for of in records for each in (of if isinstance(of, tuple) and not hasattr(of, "stage") else (of,))]
    return MicroBatchRun(Timestamp(time), {"group-2": Timestamp(at)}, left), flat


def checked(trigger: str, *micro_batches: tuple[MicroBatchRun, Any], lateness: int = 20) -> dict[str, int]:
    source = Stage("source-1", 0, Source((Event(b"a", b"k", 5),)))
    group = Stage("group-2", 1, Group(trigger=trigger, count=2, lateness=lateness), (Port("source-1", MAIN),))
    return dict(check(Pipeline((source, group), 1), micro_batches))


def test_panes_in_time_pass() -> None:
    checked("counts", micro_batch(arrived(b"a", b"b", b"c"), pane(EARLY, b"a", b"b")))
    assert checked("clock", micro_batch(arrived(b"a")), micro_batch(pane(EARLY, b"a"), time=2000)) == {
        "panes by the clock": 1,
        "late panes": 0,
    }
    checked("early and late", micro_batch(arrived(b"a"), pane(LATE, b"a"), at=OVER))
    checked("watermark", micro_batch(arrived(b"a"), at=OVER, leftover=True), micro_batch(pane(LAST, b"a"), at=OVER))
    checked("never", micro_batch(arrived(b"a"), at=OVER), micro_batch(pane(LAST, b"a"), at=EXPIRED))
    drop = Drop("group-2", b"k", (b"b",), Timestamp(5), WINDOW, True, Timestamp(EXPIRED))
    checked(
        "never", micro_batch(arrived(b"a"), pane(LAST, b"a")), micro_batch(arrived(b"b"), drop, at=int(MAX_TIMESTAMP))
    )
    checked(
        "count and clock",
        micro_batch(arrived(b"a"), time=0),
        micro_batch(arrived(b"b"), time=800),
        micro_batch(pane(EARLY, b"a", b"b"), time=900),
    )


@pytest.mark.parametrize(
    ("trigger", "micro_batches", "message"),
    [
        ("counts", [micro_batch(arrived(b"a", b"b"))], "at most 1 may wait"),
        ("always", [micro_batch(arrived(b"a"))], "at most 0 may wait"),
        ("clock", [micro_batch(arrived(b"a")), micro_batch(pane(EARLY, b"a"), time=1999)], "too early"),
        ("clock", [micro_batch(arrived(b"a")), micro_batch(time=2000)], "was due at 2000"),
        ("early by the clock", [micro_batch(arrived(b"a")), micro_batch(time=2000)], "was due at 2000"),
        ("early and late", [micro_batch(arrived(b"a"), at=OVER)], "the window has ended"),
        ("early and late", [micro_batch(arrived(b"a", b"b"), pane(LATE, b"a", b"b"), at=OVER)], "comes out alone"),
        ("never", [micro_batch(arrived(b"a"), at=EXPIRED)], "has expired"),
        ("synchronized", [micro_batch(arrived(b"a"))], "leaves nothing for the next micro-batch"),
        ("count or clock", [micro_batch(arrived(b"a")), micro_batch(pane(EARLY, b"a"), time=600)], "too early"),
        ("count and clock", [micro_batch(arrived(b"a", b"b")), micro_batch(time=701)], "was due at 701"),
        ("aligned clock", [micro_batch(arrived(b"a")), micro_batch(time=5600)], "was due at 5600"),
    ],
)
def test_early_and_late_panes_are_found(
    trigger: str, micro_batches: list[tuple[MicroBatchRun, Any]], message: str
) -> None:
    with pytest.raises(Broken, match=message):
        checked(trigger, *micro_batches)
