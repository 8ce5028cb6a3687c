"""The next work of a job: now, later, never, or finished."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator.scheduling import Finished, Ready, Stuck, WakeAt, look
from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.reports import Awaited, Restrictions, StageReport
from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import StageFlow, WatermarkTimes
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Duration, Timestamp

_RATES, _JOIN = Port("rates", "main"), Port("join", "main")
_DONE = StageReport("join", 0, MAX_TIMESTAMP, Local(None, {"main": OutputTime()}))
_NOW = Timestamp(100)
_LAYOUT = Layout(
    (
        StagePlacement(StageFlow("rates", (), ("main",), 3), 1, 0),
        StagePlacement(StageFlow("join", (_RATES,), ("main",), 3), 2, 1),
    ),
    3,
    (1, 1),
)


def _times(rates: int = MAX_TIMESTAMP, join: int = MAX_TIMESTAMP) -> WatermarkTimes:
    return WatermarkTimes({"join": Timestamp(join)}, {_RATES: Timestamp(rates), _JOIN: Timestamp(join)})


def _look(
    *reports: StageReport, times: WatermarkTimes | None = None, published: frozenset[Port] = frozenset()
) -> object:
    places = {(report.stage, shard): replace(report, shard=shard) for shard, report in enumerate((_DONE, *reports))}
    return look(_LAYOUT, places, times or _times(), published, _NOW)


@pytest.mark.contract("ENG-06")
def test_job_without_work_at_end_is_finished() -> None:
    assert _look() == Finished()


@pytest.mark.contract("ENG-06")
@pytest.mark.parametrize(
    "waiting",
    [
        {"next_event": Timestamp(5)},
        {"next_due": MAX_TIMESTAMP},
        {"restrictions": Restrictions(1, 1.0)},
    ],
)
def test_waiting_work_that_is_never_due_is_never(waiting: dict[str, object]) -> None:
    assert _look(replace(_DONE, **waiting)) == Stuck()  # type: ignore[arg-type]
    assert _look(times=_times(join=5)) == Stuck()


@pytest.mark.contract("ENG-07")
def test_earliest_due_time_decides() -> None:
    later = replace(_DONE, next_due=Timestamp(150))
    assert _look(later, replace(_DONE, next_due=Timestamp(120))) == WakeAt(Timestamp(120))
    assert _look(later, replace(_DONE, next_due=Timestamp(100))) == Ready(Timestamp(100))
    assert _look(later, replace(_DONE, next_due=Timestamp(100), leftover=True)) == Ready()
    assert _look(later, replace(_DONE, awaited=(Awaited(_RATES, Timestamp(9)),))) == Ready()


@pytest.mark.contract("ENG-05")
def test_complete_or_grown_side_input_unblocks() -> None:
    blocked = replace(_DONE, awaited=(Awaited(_RATES, Timestamp(9)),))
    assert _look(blocked, times=_times(rates=9, join=7)) == Stuck()
    assert _look(blocked, times=_times(rates=10, join=7)) == Ready()
    assert _look(blocked, times=_times(rates=9, join=7), published=frozenset({_RATES})) == Ready()
    assert _look(blocked, times=_times(rates=9, join=7), published=frozenset({_JOIN})) == Stuck()


@pytest.mark.contract("WM-01")
def test_observed_watermark_reaches_readers_in_next_micro_batch() -> None:
    observed = replace(_LAYOUT.stages[0].flow, observed={"main": (Observer("clicks", Duration(0)),)})
    layout = replace(_LAYOUT, stages=(replace(_LAYOUT.stages[0], flow=observed), _LAYOUT.stages[1]))
    held = Local(Hold(Timestamp(8), HolderKind.BLOCKED, ""), {"main": OutputTime()})

    def at(input: int, local: Local = _DONE.local) -> object:
        report = replace(_DONE, input=Timestamp(input), local=local, next_event=Timestamp(20))
        return look(layout, {("join", 0): report}, _times(rates=9, join=7), frozenset(), _NOW)

    assert at(7) == Ready()
    assert at(9) == Stuck()
    assert at(7, held) == Ready()
    assert at(8, held) == Stuck(), "the shard's blocked element holds the watermark"


_FIRST, _NEXT = Port("first", "main"), Port("next", "main")
_CHAIN = Layout(
    (
        StagePlacement(StageFlow("first", (), ("main",)), 1, 0),
        StagePlacement(StageFlow("beside", (), ()), 2, 0),
        StagePlacement(StageFlow("next", (_FIRST,), ("main",)), 3, 1),
        StagePlacement(StageFlow("sink", (_NEXT,), ()), 4, 2),
        StagePlacement(StageFlow("reader", (), ()), 5, 2, (("first", _FIRST),)),
    ),
    1,
    (1, 1, 1),
)
_GLOBAL = END_OF_GLOBAL_WINDOW


def _at_end(
    unprepared: str, *changed: StageReport, prepared: str = "", first: int = _GLOBAL, next: int = _GLOBAL, **more: bool
) -> object:
    """All work is done, but some stages still have to prepare."""
    inputs = {"first": MAX_TIMESTAMP, "beside": MAX_TIMESTAMP, "next": first, "sink": next, "reader": MAX_TIMESTAMP}
    times = WatermarkTimes(
        {stage: Timestamp(time) for stage, time in inputs.items()}, {_FIRST: Timestamp(first), _NEXT: Timestamp(next)}
    )
    reports = {
        name: StageReport(name, 0, time, Local(), unprepared=name in unprepared) for name, time in inputs.items()
    }
    reports |= {report.stage: replace(report, unprepared=report.stage in unprepared) for report in changed}
    places = {(name, 0): report for name, report in reports.items()}
    return look(_CHAIN, places, times, frozenset(), _NOW, frozenset(prepared.split()), **more)


@pytest.mark.contract("END-05")
def test_stages_prepare_last_from_sources_to_sinks() -> None:
    assert _at_end("first next sink") == Finished(frozenset({"first"}))
    assert _at_end("first beside") == Finished(frozenset({"first", "beside"}))
    assert _at_end("first sink", first=MAX_TIMESTAMP, prepared="first") == Stuck(), "'next' has not ended yet"
    assert _at_end("first sink", first=MAX_TIMESTAMP, next=MAX_TIMESTAMP, prepared="first") == Finished(
        frozenset({"sink"})
    )
    everything = {"first": MAX_TIMESTAMP, "next": MAX_TIMESTAMP}
    assert _at_end("sink", prepared="sink", **everything) == Finished()  # type: ignore[arg-type]
    assert _at_end("sink", script_continues=True, **everything) == Finished(frozenset({"sink"}))  # type: ignore[arg-type]


@pytest.mark.contract("END-05")
def test_upstream_work_and_restrictions_delay_preparing() -> None:
    beside = StageReport("beside", 0, MAX_TIMESTAMP, Local())
    downstream = StageReport("next", 0, Timestamp(_GLOBAL), Local())
    assert _at_end("first", replace(beside, next_due=Timestamp(150))) == WakeAt(Timestamp(150))
    assert _at_end("first", replace(beside, leftover=True)) == Ready()
    assert _at_end("first", replace(downstream, restrictions=Restrictions(1, 1.0), next_due=Timestamp(150))) == WakeAt(
        Timestamp(150)
    )
    assert _at_end("first", replace(beside, uncommitted=True)) == Ready()


@pytest.mark.contract("END-02", "END-05")
def test_waiting_work_downstream_does_not_delay_preparing() -> None:
    """A timer that sets itself again ends only at the end of time, so the watermark must reach it."""
    prepares = Finished(frozenset({"first"}))
    loops = StageReport("next", 0, Timestamp(_GLOBAL), Local(), next_due=Timestamp(100))
    assert _at_end("first", loops) == prepares
    assert _at_end("first", replace(loops, next_due=Timestamp(150), next_event=Timestamp(_GLOBAL))) == prepares
    assert _at_end("first", replace(loops, leftover=True)) == prepares
    assert _at_end("first", loops, script_continues=True) == Ready(Timestamp(100))
    waits = StageReport("reader", 0, Timestamp(3), Local(), awaited=(Awaited(_FIRST, Timestamp(_GLOBAL)),))
    assert _at_end("first", waits) == prepares
    # Neither does work that such a timer causes in each micro-batch: the micro-batch in which the others prepare does
    # that work, too.
    loops = replace(loops, uncommitted=True, awaited=(Awaited(_NEXT, Timestamp(3)),))
    assert _at_end("first", loops) == prepares
    assert _at_end("beside", loops) == Ready()
