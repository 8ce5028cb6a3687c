"""Idle levels take no part in a micro-batch, and keep their state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arcbeam.engine.coordinator import MicroBatchPlan
from arcbeam.engine.coordinator.consistentcut import NO_PLACES, ShardReports, check, placed, watermarks
from arcbeam.engine.coordinator.idling import idle_levels, idle_reports
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.engine.protocol.microbatchplan import Handover
from arcbeam.engine.protocol.reports import Awaited, Counts, Restrictions, StageReport
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp
from tests.engine.coordinator.script import LAYOUT, RATES, SETTINGS, SUM, held, nothing_left, play, reported, source

_PLAN = MicroBatchPlan(4, 0, Timestamp(0), 3, WatermarkTimes(), SETTINGS.budget)
_WIDE = Layout(LAYOUT.stages, 2, (2, 2))


def _head(change: Any, layout: Layout = LAYOUT) -> tuple[ShardReports, WatermarkTimes]:
    places = placed(layout, reported(_PLAN, change, layout), NO_PLACES)
    return places, watermarks(layout, places, WatermarkTimes()).times()


def _idle(change: Any, published: frozenset[Port] = frozenset(), now: int = 0, moves: tuple[Handover, ...] = ()) -> int:
    return idle_levels(LAYOUT, *_head(change), published, Timestamp(now), moves)


def test_levels_without_work_are_idle() -> None:
    assert _idle(held) == 1
    assert _idle(nothing_left) == 1, "never all levels"


def test_level_is_idle_until_its_restriction_is_due() -> None:
    assert _idle(source(5, 70), now=69) == 1
    assert _idle(source(5, 70), now=70) == 0
    assert _idle(source(5, 70, leftover=True), now=69) == 0


@pytest.mark.parametrize(
    "waits",
    [
        {"leftover": True},
        {"next_due": Timestamp(0)},
        {"awaited": (Awaited(RATES, Timestamp(9)),)},
        {"uncommitted": True},
    ],
    ids=lambda waits: next(iter(waits)),
)
def test_level_is_not_idle_while_a_shard_has_work(waits: dict[str, Any]) -> None:
    assert _idle(_in_rates(waits)) == 0


@pytest.mark.parametrize(
    "waits",
    [
        {"next_event": MAX_TIMESTAMP},
        {"next_due": Timestamp(1)},
        {"restrictions": Restrictions(1, 1.0)},
        {"unprepared": True},
        {"local": Local(None, {"main": OutputTime(None, Hold(Timestamp(5), HolderKind.TIMER, "late"))})},
    ],
    ids=lambda waits: next(iter(waits)),
)
def test_level_that_only_waits_is_idle(waits: dict[str, Any]) -> None:
    assert _idle(_in_rates(waits)) == 1


def test_level_is_not_idle_when_its_side_input_has_grown() -> None:
    waits = _in_rates({"awaited": (Awaited(SUM, MAX_TIMESTAMP),)}, stage="read", rest=source(5, 70))
    assert _idle(waits) == 1
    assert _idle(waits, published=frozenset({SUM})) == 0


def test_level_is_not_idle_when_a_restriction_moves() -> None:
    assert _idle(source(5, 70), moves=(Handover("read", b"all", 0, 1, b""),)) == 0
    assert _idle(source(5, 70), moves=(Handover("sum", b"all", 0, 1, b""),)) == 1


def test_level_with_observed_output_is_idle_at_end_of_time_only() -> None:
    observer = Observer("WithWatermark", Duration(0), idle_after=Duration(10))
    read, *others = LAYOUT.stages
    observed = replace(read, flow=replace(read.flow, observed={"main": (observer,)}))
    layout = replace(LAYOUT, stages=(observed, *others))
    for change, levels in ((source(5, 70), 0), (held, 1)):
        assert idle_levels(layout, *_head(change), frozenset(), Timestamp(0)) == levels


def _in_rates(waits: dict[str, Any], stage: str = "rates", rest: Any = held) -> Any:
    def change(report: StageReport) -> StageReport:
        report = rest(report)
        return replace(report, **waits) if (report.stage, report.shard) == (stage, 1) else report

    return change


@pytest.mark.contract("STORE-02")
def test_idle_levels_keep_state_and_report_no_activity() -> None:
    def worked(stage: StageReport) -> StageReport:
        stage = held(stage)
        local = replace(stage.local, seen={"o": Timestamp(3)}, sketches={"o": b"."}, unconfirmed={"o": (Timestamp(4),)})
        return replace(stage, counts=Counts(read=7), kept=StateMetrics(windows=2), local=local)

    plain, times = _head(held, _WIDE)
    before = placed(_WIDE, reported(_PLAN, worked, _WIDE), NO_PLACES)
    plan = replace(_PLAN, times=times, first=1)
    reports = reported(plan, held, _WIDE)
    assert check(_WIDE, reports, 1)
    with pytest.raises(InconsistentCutError, match="task 0 of level 0 reported"):
        check(_WIDE, reported(replace(plan, first=0), held, _WIDE), 1)
    with pytest.raises(InconsistentCutError, match="task 0 of level 0 did not"):
        check(_WIDE, reports)
    after = placed(_WIDE, (*idle_reports(_WIDE, before, 1), *reports), before)
    assert {place: after[place] for place in after if place[0] != "sum"} == {
        place: report for place, report in plain.items() if place[0] != "sum"
    }, "activity is not counted, kept or observed twice"
    assert watermarks(_WIDE, after, times).times() == times


@pytest.mark.contract("ENG-07", "ENG-06")
def test_micro_batch_begins_with_first_level_with_work() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        reports blocked             -> propose 1 running
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
    assert driver.plan.first == 0, "its restriction is due"


def test_all_levels_take_part_in_drain_and_preparing() -> None:
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
