"""A micro-batch counts only if all of its tasks have read the same attempts, and nothing goes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator import MicroBatchPlan
from arcbeam.engine.coordinator.consistentcut import NO_PLACES, check, placed, watermarks
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.watermarks.stages import Times
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from tests.engine.coordinator.script import LAYOUT, READ, REPORTS, SETTINGS, nothing_left, reported, source

_PLAN = MicroBatchPlan(4, 0, Timestamp(0), 3, Times(), SETTINGS.budget)
_WIDE = Layout(LAYOUT.stages, 2, (2, 2))


def _of(layout: Layout = _WIDE) -> list[TaskReport]:
    return list(reported(_PLAN, nothing_left, layout))


@pytest.mark.contract("STORE-02")
def test_a_consistent_cut_is_known_by_all_its_attempts() -> None:
    digest = check(_WIDE, _of())
    assert digest == check(_WIDE, _of()[::-1])
    other = reported(replace(_PLAN, attempt=1), nothing_left, _WIDE)
    assert check(_WIDE, other) != digest


@pytest.mark.contract("STORE-02")
@pytest.mark.parametrize(
    ("level", "task", "changed", "why"),
    [
        (0, 1, {"token": b"other"}, "task 0 of level 1 has read other attempts of level 0 than reported"),
        (1, 1, {"input_digest": b"other"}, "task 1 of level 1 has read other attempts of level 0 than reported"),
        (0, 1, {"input_digest": b"other"}, "task 1 of level 0 has read other attempts"),
        (1, 1, {"task": 2}, "task 2 of level 1, which the micro-batch does not have"),
        (1, 1, {"task": 0}, "two reports came of task 0 of level 1"),
        (1, 1, {"token": b"4.0.0.0"}, "task 0 of level 0 and task 1 of level 1 have the same token"),
    ],
)
def test_any_other_is_refused_by_name(level: int, task: int, changed: dict[str, object], why: str) -> None:
    reports = [
        replace(report, **changed) if (report.level, report.task) == (level, task) else report  # type: ignore[arg-type]
        for report in _of()
    ]
    with pytest.raises(InconsistentCutError, match=why):
        check(_WIDE, reports)


@pytest.mark.contract("STORE-02")
def test_a_report_that_is_missing_is_named() -> None:
    with pytest.raises(InconsistentCutError, match="no report came of task 1 of level 0"):
        check(_WIDE, [report for report in _of() if (report.level, report.task) != (0, 1)])


def test_every_shard_of_every_stage_is_reported_once_by_its_owner() -> None:
    assert set(placed(_WIDE, _of(), NO_PLACES)) == set(_WIDE.places())
    reports = _of()
    with pytest.raises(InconsistentCutError, match="nothing was reported of 'sum' in shard 0"):
        placed(_WIDE, [replace(each, stages=()) if each.level else each for each in reports], NO_PLACES)
    swapped = [replace(each, task=1 - each.task) for each in reports]
    with pytest.raises(InconsistentCutError, match="task 1 of level 0 reports 'read' in shard 0, which is not its own"):
        placed(_WIDE, swapped, NO_PLACES)


@pytest.mark.contract("ENG-01", "WM-03")
def test_an_input_watermark_that_goes_back_is_refused() -> None:
    before = placed(_WIDE, _of(), NO_PLACES)
    with pytest.raises(InconsistentCutError, match="'read' in shard 0 went back from the end of time to 1970"):
        placed(_WIDE, reported(_PLAN, REPORTS["more"], _WIDE), before)


@pytest.mark.contract("ENG-01", "ENG-03")
def test_a_shard_that_is_ahead_of_what_it_reads_has_ignored_a_marker() -> None:
    def ahead(stage: object) -> object:
        changed = source(5, 50)(stage)  # type: ignore[arg-type]
        return replace(changed, input=MAX_TIMESTAMP) if changed.stage == "sum" else changed

    places = placed(_WIDE, reported(_PLAN, ahead, _WIDE), NO_PLACES)  # type: ignore[arg-type]
    with pytest.raises(InconsistentCutError, match=r"'sum' in shard 0 is at the end of time; what it reads is at 1970"):
        watermarks(_WIDE, places, Times())


def test_watermarks_follow_from_the_reports_and_the_head() -> None:
    places = placed(_WIDE, reported(_PLAN, source(5, 50), _WIDE), NO_PLACES)
    assert watermarks(_WIDE, places, Times()).times().outputs[READ] == 5
    committed = Times({"sum": Timestamp(7)}, {READ: Timestamp(7)})
    assert watermarks(_WIDE, places, committed).times().outputs[READ] == 7
