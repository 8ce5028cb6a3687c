"""`panes` finds violated invariants of a grouping's panes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from arcbeam.engine.grouping.strategy import PaneTime
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import IntervalWindow, PaneInfo, Timing
from simulator.judging import panes
from simulator.judging.records import Broken, Out
from simulator.judging.reference import Item
from simulator.scenario.kinds import MAIN, Group
from simulator.scenario.plans import Stage
from simulator.scenario.windowings import Windowing

WINDOW = IntervalWindow(Timestamp(3), Timestamp(13))
TIMES = {b"a0": 4, b"a1": 6, b"a2": 9}
EARLY = PaneInfo(0, -1, Timing.EARLY, True, False)
ON_TIME = PaneInfo(1, 0, Timing.ON_TIME, False, False)
LAST = PaneInfo(2, 1, Timing.LATE, False, True)
ATOMS = ((b"a0", b"a1"), (b"a2",), ())


def checked(*outs: Out, **more: Any) -> None:
    arrived = Counter(Item(b"k", atom, Timestamp(time)) for atom, time in TIMES.items())
    group = Group(**{"trigger": "early and late", "lateness": 5, **more})
    panes.check(Stage("group-2", 1, group), group, outs, arrived, fair=True)


def three(times: tuple[int, int, int] = (12, 12, 12)) -> list[Out]:
    return [
        Out("group-2", MAIN, b"k", atoms, Timestamp(time), WINDOW, info, elements=len(atoms))
        for atoms, time, info in zip(ATOMS, times, (EARLY, ON_TIME, LAST), strict=True)
    ]


def test_correct_panes_pass() -> None:
    checked(*three(), closes=True)
    checked(*three((4, 9, 12)), closes=True, pane_time=PaneTime.EARLIEST)
    checked(*three((6, 9, 12)), closes=True, pane_time=PaneTime.LATEST)
    checked(*three()[:2])


GROWN = IntervalWindow(Timestamp(4), Timestamp(19))
SMALL = IntervalWindow(Timestamp(4), Timestamp(16))
SESSIONS: dict[str, Any] = {"windowing": Windowing("sessions", 10)}
FIRST = PaneInfo(0, 0, Timing.ON_TIME, True, False)


def growing(infos: tuple[PaneInfo, PaneInfo] = (EARLY, FIRST), times: tuple[int, int] = (15, 18)) -> list[Out]:
    """Return the panes of a session that had a pane before it grew."""
    placed = zip(ATOMS, times, (SMALL, GROWN), infos, strict=False)
    return [
        Out("group-2", MAIN, b"k", atoms, Timestamp(time), window, info, elements=len(atoms))
        for atoms, time, window, info in placed
    ]


def test_correct_panes_of_growing_windows_pass() -> None:
    checked(*growing(), **SESSIONS)
    checked(*growing(times=(4, 9)), pane_time=PaneTime.EARLIEST, **SESSIONS)


@pytest.mark.parametrize(
    ("outs", "more", "message"),
    [
        (growing((EARLY, ON_TIME)), {}, "after None"),
        (growing()[:1], {}, "one that is on time is due"),
        (growing(), {"closes": True}, "one with which it closes is due"),
        (growing(), {"count": 3}, "with 2 elements early"),
        (growing(times=(6, 9)), {"pane_time": PaneTime.EARLIEST}, "its time is 4"),
    ],
    ids=["not renumbered", "never on time", "not closed", "miscounted", "a wrong time"],
)
def test_wrong_panes_of_growing_windows_are_found(outs: list[Out], more: dict[str, Any], message: str) -> None:
    with pytest.raises(Broken, match=message):
        checked(*outs, **more, **SESSIONS)


@pytest.mark.parametrize(
    ("outs", "more", "message"),
    [
        (three(), {}, "which is empty"),
        (three()[:2], {"closes": True}, "one with which it closes is due"),
        (three()[:1], {}, "one that is on time is due"),
        (three((4, 6, 12)), {"closes": True, "pane_time": PaneTime.EARLIEST}, "its time is 9"),
        (three()[1:], {"closes": True}, "after None"),
        (three(), {"closes": True, "count": 3}, "with 2 elements early"),
        ([three()[0], three()[1]._replace(atoms=())], {"quiet": True}, "which is empty"),
        (three()[:2], {"trigger": "never", "lateness": 0}, "where one pane on time is due"),
    ],
    ids=["empty", "not closed", "never on time", "a wrong time", "out of turn", "miscounted", "quiet", "twice"],
)
def test_wrong_panes_are_found(outs: list[Out], more: dict[str, Any], message: str) -> None:
    with pytest.raises(Broken, match=message):
        checked(*outs, **more)
