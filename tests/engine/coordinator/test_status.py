"""What is told of restrictions, once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator.status import news
from arcbeam.engine.protocol.reports import Restrictions, StageReport
from arcbeam.engine.state.holdreport import Crowded
from arcbeam.engine.watermarks.clocks import Local
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import Duration, Timestamp
from tests.engine.coordinator.script import LAYOUT, REPORTS, Driver, play, source

_SILENT = Restrictions(1, 8.0, silent=("main",), crowded=(Crowded("7.0.1", 1001, 1000),))


@pytest.mark.contract("SDF-10", "SDF-05")
def test_an_output_without_a_watermark_and_a_root_with_too_many_restrictions_are_told_once() -> None:
    places = {
        (name, shard): StageReport(name, shard, Timestamp(0), Local(), restrictions=_SILENT)
        for name in ("read", "rates")
        for shard in range(2)
    }
    told: set[tuple[str, str]] = set()
    first, second, *others = news(LAYOUT, places, told)
    assert first.startswith("'read' reports no watermark for 'main', which stays at the beginning of time")
    assert second == "'read': 1001 restrictions of '7.0.1' are not done; 1000 should be enough"
    assert len(others) == 2
    assert list(news(LAYOUT, places, told)) == []


@pytest.mark.contract("SDF-10", "WM-02")
def test_who_observes_an_output_does_not_wait_for_what_says_nothing() -> None:
    stages = tuple(
        replace(placed, flow=replace(placed.flow, observed={"main": (Observer("it", Duration(0)),)}))
        if placed.name == "read"
        else placed
        for placed in LAYOUT.stages
    )
    silent = Restrictions(1, 8.0, silent=("main",))
    places = {(name, 0): StageReport(name, 0, Timestamp(0), Local(), restrictions=silent) for name in ("read", "rates")}
    (told,) = news(replace(LAYOUT, stages=stages), places, set())
    assert told.startswith("'rates' reports no watermark")
    assert told.endswith("or arcbeam.io.WithWatermark behind it")


@pytest.mark.contract("SDF-10")
def test_it_is_told_by_the_commit_of_the_micro_batch_that_has_reported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(stage: StageReport) -> StageReport:
        changed = source(5, 0, leftover=True)(stage)
        return replace(changed, restrictions=_SILENT) if changed.restrictions.live else changed

    monkeypatch.setitem(REPORTS, "silent", silent)
    driver = play(
        """
        start fresh                 -> run 1.0 initial
        reports silent              -> propose 1 running
        committed                   -> warn; warn; run 2.0
        reports silent              -> propose 2 running
        committed                   -> run 3.0
        """,
        Driver(layout=LAYOUT),
    )
    assert "'read' reports no watermark" in driver.warnings[0]
