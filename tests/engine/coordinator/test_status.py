"""Warnings about restrictions, each issued once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator.status import news
from arcbeam.engine.protocol.reports import Restrictions, StageReport
from arcbeam.engine.state.restrictiontotals import TooManyRestrictions
from arcbeam.engine.watermarks.clocks import Local
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import Duration, Timestamp
from tests.engine.coordinator.script import LAYOUT, REPORTS, Driver, play, source
from tests.golden.texts import check_message

_SILENT = Restrictions(1, 8.0, silent=("main",), crowded=(TooManyRestrictions("7.0.1", 1001, 1000),))


@pytest.mark.contract("SDF-10", "SDF-05")
def test_silent_output_and_crowded_root_warn_once() -> None:
    places = {
        (name, shard): StageReport(name, shard, Timestamp(0), Local(), restrictions=_SILENT)
        for name in ("read", "rates")
        for shard in range(2)
    }
    reported: set[tuple[str, str]] = set()
    first, second, *others = news(LAYOUT, places, reported)
    check_message("restriction-without-watermark", first)
    check_message("restrictions-crowded", second)
    assert len(others) == 2
    assert list(news(LAYOUT, places, reported)) == []


@pytest.mark.contract("SDF-10", "WM-02")
def test_observed_output_without_watermark_causes_no_warning() -> None:
    stages = tuple(
        replace(placed, flow=replace(placed.flow, observed={"main": (Observer("it", Duration(0)),)}))
        if placed.name == "read"
        else placed
        for placed in LAYOUT.stages
    )
    silent = Restrictions(1, 8.0, silent=("main",))
    places = {(name, 0): StageReport(name, 0, Timestamp(0), Local(), restrictions=silent) for name in ("read", "rates")}
    (warning,) = news(replace(LAYOUT, stages=stages), places, set())
    assert warning.startswith("'rates' ")


@pytest.mark.contract("SDF-10")
def test_commit_of_reporting_micro_batch_warns(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert driver.warnings[0].startswith("'read' ")
