"""What has nothing to do any more takes no part in a streaming job, and is known as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arcbeam.engine.coordinator import MicroBatchPlan
from arcbeam.engine.coordinator.consistentcut import NO_PLACES, Places, check, placed, watermarks
from arcbeam.engine.coordinator.idling import resting, said_before
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.engine.protocol.reports import Awaited, Counts, Restrictions, StageReport
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.watermarks.clocks import Local, OutputTime
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import Times
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from tests.engine.coordinator.script import LAYOUT, RATES, SETTINGS, held, nothing_left, play, reported, source

_PLAN = MicroBatchPlan(4, 0, Timestamp(0), 3, Times(), SETTINGS.budget)
_WIDE = Layout(LAYOUT.stages, 2, (2, 2))


def _head(change: Any, layout: Layout = LAYOUT) -> tuple[Places, Times]:
    places = placed(layout, reported(_PLAN, change, layout), NO_PLACES)
    return places, watermarks(layout, places, Times()).times()


def _resting(change: Any) -> int:
    return resting(LAYOUT, *_head(change))


def test_levels_rest_that_are_at_the_end_of_time_and_in_which_nothing_waits() -> None:
    assert _resting(source(5, 70)) == 0
    assert _resting(held) == 1
    assert _resting(nothing_left) == 1, "never all of them"


@pytest.mark.parametrize(
    "waits",
    [
        {"leftover": True},
        {"next_event": MAX_TIMESTAMP},
        {"next_due": MAX_TIMESTAMP},
        {"awaited": (Awaited(RATES, Timestamp(9)),)},
        {"restrictions": Restrictions(1, 1.0)},
        {"uncommitted": True},
        {"unprepared": True},
        {"local": Local(None, {"main": OutputTime(None, Hold(Timestamp(5), HolderKind.TIMER, "late"))})},
    ],
    ids=lambda waits: next(iter(waits)),
)
def test_a_level_does_not_rest_while_anything_waits_in_any_of_its_shards(waits: dict[str, Any]) -> None:
    def change(stage: StageReport) -> StageReport:
        stage = held(stage)
        return replace(stage, **waits) if (stage.stage, stage.shard) == ("rates", 1) else stage

    assert _resting(change) == 0


@pytest.mark.contract("STORE-02")
def test_of_those_that_rest_no_report_counts_and_all_stand_where_they_did() -> None:
    def worked(stage: StageReport) -> StageReport:
        stage = held(stage)
        local = replace(stage.local, seen={"o": Timestamp(3)}, sketches={"o": b"."}, doubted={"o": (Timestamp(4),)})
        return replace(stage, counts=Counts(read=7), kept=StateMetrics(windows=2), local=local)

    plain, times = _head(held, _WIDE)
    before = placed(_WIDE, reported(_PLAN, worked, _WIDE), NO_PLACES)
    plan = replace(_PLAN, times=times, first=1)
    reports = reported(plan, held, _WIDE)
    assert check(_WIDE, reports, 1)
    with pytest.raises(InconsistentCutError, match="task 0 of level 0, which the micro-batch does not have"):
        check(_WIDE, reported(replace(plan, first=0), held, _WIDE), 1)
    with pytest.raises(InconsistentCutError, match="no report came of task 0 of level 0"):
        check(_WIDE, reports)
    after = placed(_WIDE, (*said_before(_WIDE, before, 1), *reports), before)
    assert {place: after[place] for place in after if place[0] != "sum"} == {
        place: report for place, report in plain.items() if place[0] != "sum"
    }, "and nothing is counted, kept or seen a second time"
    assert watermarks(_WIDE, after, times).times() == times


@pytest.mark.contract("ENG-07", "ENG-06")
def test_a_micro_batch_begins_with_the_first_level_that_has_something_to_do() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        reports parked              -> propose 1 running
        committed                   -> run 2.0
    """)
    assert driver.plan is not None
    assert driver.plan.first == 1
    driver = play("""
        start fresh                 -> run 1.0 initial
        reports due 50              -> propose 1 running
        committed                   -> wait 50
        clock 50                    -> run 2.0
    """)
    assert driver.plan is not None
    assert driver.plan.first == 0, "a restriction lives there"


def test_what_is_done_once_only_is_done_by_all_levels() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        drain s1                    -> -
        reports held                -> propose 1 draining
        committed                   -> run 2.0 drain
    """)
    assert driver.plan is not None
    assert driver.plan.first == 0, "it truncates"
    driver = play("""
        start fresh                 -> run 1.0 initial
        reports sum unprepared      -> propose 1 running
        committed                   -> run 2.0 prepare sum; wait 100
    """)
    assert driver.plan is not None
    assert driver.plan.first == 0
