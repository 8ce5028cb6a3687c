"""A micro-batch is consistent only if all its tasks read the same attempts and no watermark decreases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator import MicroBatchPlan
from arcbeam.engine.coordinator.consistentcut import NO_PLACES, check, placed, watermarks
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from tests.engine.coordinator.script import LAYOUT, READ, REPORTS, SETTINGS, nothing_left, reported, source

_PLAN = MicroBatchPlan(4, 0, Timestamp(0), 3, WatermarkTimes(), SETTINGS.budget)
_WIDE = Layout(LAYOUT.stages, 2, (2, 2))


def _of(layout: Layout = _WIDE) -> list[TaskReport]:
    return list(reported(_PLAN, nothing_left, layout))


@pytest.mark.contract("STORE-02")
def test_digest_of_cut_depends_on_all_attempts() -> None:
    digest = check(_WIDE, _of())
    assert digest == check(_WIDE, _of()[::-1])
    other = reported(replace(_PLAN, attempt=1), nothing_left, _WIDE)
    assert check(_WIDE, other) != digest


@pytest.mark.contract("STORE-02")
@pytest.mark.parametrize(
    ("level", "task", "changed", "why"),
    [
        (0, 1, {"token": b"other"}, "task 0 of level 1 .*other attempts of level 0"),
        (1, 1, {"input_digest": b"other"}, "task 1 of level 1 .*other attempts of level 0"),
        (0, 1, {"input_digest": b"other"}, "task 1 of level 0 .*other attempts"),
        (1, 1, {"task": 2}, "task 2 of level 1 reported"),
        (1, 1, {"task": 0}, "task 0 of level 1 reported twice"),
        (1, 1, {"token": b"4.0.0.0"}, "task 0 of level 0 and task 1 of level 1"),
    ],
)
def test_inconsistent_reports_are_refused_by_name(level: int, task: int, changed: dict[str, object], why: str) -> None:
    reports = [
        replace(report, **changed) if (report.level, report.task) == (level, task) else report  # type: ignore[arg-type]
        for report in _of()
    ]
    with pytest.raises(InconsistentCutError, match=why):
        check(_WIDE, reports)


@pytest.mark.contract("STORE-02")
def test_missing_report_is_named() -> None:
    with pytest.raises(InconsistentCutError, match="task 1 of level 0 did not"):
        check(_WIDE, [report for report in _of() if (report.level, report.task) != (0, 1)])


def test_owner_reports_each_shard_of_each_stage_once() -> None:
    assert set(placed(_WIDE, _of(), NO_PLACES)) == set(_WIDE.places())
    reports = _of()
    with pytest.raises(InconsistentCutError, match="'sum' in shard 0 was not"):
        placed(_WIDE, [replace(each, stages=()) if each.level else each for each in reports], NO_PLACES)
    swapped = [replace(each, task=1 - each.task) for each in reports]
    with pytest.raises(InconsistentCutError, match=r"task 1 of level 0 .*'read' in shard 0"):
        placed(_WIDE, swapped, NO_PLACES)


@pytest.mark.contract("ENG-01", "WM-03")
def test_decreasing_input_watermark_is_refused() -> None:
    before = placed(_WIDE, _of(), NO_PLACES)
    with pytest.raises(InconsistentCutError, match=r"'read' in shard 0 .* the end of time to 1970"):
        placed(_WIDE, reported(_PLAN, REPORTS["more"], _WIDE), before)


@pytest.mark.contract("ENG-01", "ENG-03")
def test_shard_ahead_of_its_inputs_is_refused() -> None:
    def ahead(stage: object) -> object:
        changed = source(5, 50)(stage)  # type: ignore[arg-type]
        return replace(changed, input=MAX_TIMESTAMP) if changed.stage == "sum" else changed

    places = placed(_WIDE, reported(_PLAN, ahead, _WIDE), NO_PLACES)  # type: ignore[arg-type]
    with pytest.raises(InconsistentCutError, match=r"'sum' in shard 0 .* the end of time, .* 1970"):
        watermarks(_WIDE, places, WatermarkTimes())


def test_watermarks_follow_from_reports_and_head() -> None:
    places = placed(_WIDE, reported(_PLAN, source(5, 50), _WIDE), NO_PLACES)
    assert watermarks(_WIDE, places, WatermarkTimes()).times().outputs[READ] == 5
    committed = WatermarkTimes({"sum": Timestamp(7)}, {READ: Timestamp(7)})
    assert watermarks(_WIDE, places, committed).times().outputs[READ] == 7
