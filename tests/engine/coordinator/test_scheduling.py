"""What there is to do: now, later, never, or nothing more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator.scheduling import Finished, Later, Never, Ready, look
from arcbeam.engine.protocol.layout import Layout, Placed
from arcbeam.engine.protocol.reports import Awaited, Restrictions, StageReport
from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import StageFlow, Times
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Duration, Timestamp

_RATES, _JOIN = Port("rates", "main"), Port("join", "main")
_DONE = StageReport("join", 0, MAX_TIMESTAMP, Local(None, {"main": OutputTime()}))
_NOW = Timestamp(100)
_LAYOUT = Layout(
    (
        Placed(StageFlow("rates", (), ("main",), 3), 1, 0),
        Placed(StageFlow("join", (_RATES,), ("main",), 3), 2, 1),
    ),
    3,
    (1, 1),
)


def _times(rates: int = MAX_TIMESTAMP, join: int = MAX_TIMESTAMP) -> Times:
    return Times({"join": Timestamp(join)}, {_RATES: Timestamp(rates), _JOIN: Timestamp(join)})


def _look(*reports: StageReport, times: Times | None = None, published: frozenset[Port] = frozenset()) -> object:
    places = {(report.stage, shard): replace(report, shard=shard) for shard, report in enumerate((_DONE, *reports))}
    return look(_LAYOUT, places, times or _times(), published, _NOW)


@pytest.mark.contract("ENG-06")
def test_when_all_is_at_the_end_and_nothing_waits_all_is_done() -> None:
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
def test_what_waits_for_nothing_that_can_come_waits_for_ever(waiting: dict[str, object]) -> None:
    assert _look(replace(_DONE, **waiting)) == Never()  # type: ignore[arg-type]
    assert _look(times=_times(join=5)) == Never()


@pytest.mark.contract("ENG-07")
def test_the_first_that_is_due_counts() -> None:
    later = replace(_DONE, next_due=Timestamp(150))
    assert _look(later, replace(_DONE, next_due=Timestamp(120))) == Later(Timestamp(120))
    assert _look(later, replace(_DONE, next_due=Timestamp(100))) == Ready(Timestamp(100))
    assert _look(later, replace(_DONE, next_due=Timestamp(100), leftover=True)) == Ready()
    assert _look(later, replace(_DONE, awaited=(Awaited(_RATES, Timestamp(9)),))) == Ready()


@pytest.mark.contract("ENG-05")
def test_a_side_input_is_looked_at_when_it_is_complete_or_was_added_to() -> None:
    parked = replace(_DONE, awaited=(Awaited(_RATES, Timestamp(9)),))
    assert _look(parked, times=_times(rates=9, join=7)) == Never()
    assert _look(parked, times=_times(rates=10, join=7)) == Ready()
    assert _look(parked, times=_times(rates=9, join=7), published=frozenset({_RATES})) == Ready()
    assert _look(parked, times=_times(rates=9, join=7), published=frozenset({_JOIN})) == Never()


@pytest.mark.contract("WM-01")
def test_those_who_read_what_was_observed_learn_of_it_in_a_micro_batch_of_its_own() -> None:
    observed = replace(_LAYOUT.stages[0].flow, observed={"main": (Observer("clicks", Duration(0)),)})
    layout = replace(_LAYOUT, stages=(replace(_LAYOUT.stages[0], flow=observed), _LAYOUT.stages[1]))
    held = Local(Hold(Timestamp(8), HolderKind.PARKED, ""), {"main": OutputTime()})

    def at(input: int, local: Local = _DONE.local) -> object:
        report = replace(_DONE, input=Timestamp(input), local=local, next_event=Timestamp(20))
        return look(layout, {("join", 0): report}, _times(rates=9, join=7), frozenset(), _NOW)

    assert at(7) == Ready()
    assert at(9) == Never()
    assert at(7, held) == Ready()
    assert at(8, held) == Never(), "what waits in a shard keeps it where it is"


_FIRST, _NEXT = Port("first", "main"), Port("next", "main")
_CHAIN = Layout(
    (
        Placed(StageFlow("first", (), ("main",)), 1, 0),
        Placed(StageFlow("beside", (), ()), 2, 0),
        Placed(StageFlow("next", (_FIRST,), ("main",)), 3, 1),
        Placed(StageFlow("sink", (_NEXT,), ()), 4, 2),
        Placed(StageFlow("reader", (), ()), 5, 2, (("first", _FIRST),)),
    ),
    1,
    (1, 1, 1),
)
_GLOBAL = END_OF_GLOBAL_WINDOW


def _at_end(
    unprepared: str, *changed: StageReport, prepared: str = "", first: int = _GLOBAL, next: int = _GLOBAL, **more: bool
) -> object:
    """All is done but for those that are to prepare."""
    inputs = {"first": MAX_TIMESTAMP, "beside": MAX_TIMESTAMP, "next": first, "sink": next, "reader": MAX_TIMESTAMP}
    times = Times(
        {stage: Timestamp(time) for stage, time in inputs.items()}, {_FIRST: Timestamp(first), _NEXT: Timestamp(next)}
    )
    reports = {
        name: StageReport(name, 0, time, Local(), unprepared=name in unprepared) for name, time in inputs.items()
    }
    reports |= {report.stage: replace(report, unprepared=report.stage in unprepared) for report in changed}
    places = {(name, 0): report for name, report in reports.items()}
    return look(_CHAIN, places, times, frozenset(), _NOW, frozenset(prepared.split()), **more)


@pytest.mark.contract("END-05")
def test_stages_prepare_when_all_else_is_done_from_sources_to_sinks() -> None:
    assert _at_end("first next sink") == Finished(frozenset({"first"}))
    assert _at_end("first beside") == Finished(frozenset({"first", "beside"}))
    assert _at_end("first sink", first=MAX_TIMESTAMP, prepared="first") == Never(), "the next is not there yet"
    assert _at_end("first sink", first=MAX_TIMESTAMP, next=MAX_TIMESTAMP, prepared="first") == Finished(
        frozenset({"sink"})
    )
    everything = {"first": MAX_TIMESTAMP, "next": MAX_TIMESTAMP}
    assert _at_end("sink", prepared="sink", **everything) == Finished()  # type: ignore[arg-type]
    assert _at_end("sink", goes_on=True, **everything) == Finished(frozenset({"sink"}))  # type: ignore[arg-type]


@pytest.mark.contract("END-05")
def test_nobody_prepares_while_anything_above_or_any_restriction_goes_on() -> None:
    beside = StageReport("beside", 0, MAX_TIMESTAMP, Local())
    behind = StageReport("next", 0, Timestamp(_GLOBAL), Local())
    assert _at_end("first", replace(beside, next_due=Timestamp(150))) == Later(Timestamp(150))
    assert _at_end("first", replace(beside, leftover=True)) == Ready()
    assert _at_end("first", replace(behind, restrictions=Restrictions(1, 1.0), next_due=Timestamp(150))) == Later(
        Timestamp(150)
    )
    assert _at_end("first", replace(beside, uncommitted=True)) == Ready()


@pytest.mark.contract("END-02", "END-05")
def test_what_waits_for_time_behind_a_stage_that_is_to_prepare_does_not_keep_it_from_that() -> None:
    """A timer that sets itself again and again is ended by the end of time: so that must come."""
    prepares = Finished(frozenset({"first"}))
    loops = StageReport("next", 0, Timestamp(_GLOBAL), Local(), next_due=Timestamp(100))
    assert _at_end("first", loops) == prepares
    assert _at_end("first", replace(loops, next_due=Timestamp(150), next_event=Timestamp(_GLOBAL))) == prepares
    assert _at_end("first", replace(loops, leftover=True)) == prepares
    assert _at_end("first", loops, goes_on=True) == Ready(Timestamp(100))
    waits = StageReport("reader", 0, Timestamp(3), Local(), awaited=(Awaited(_FIRST, Timestamp(_GLOBAL)),))
    assert _at_end("first", waits) == prepares
    # Nor what such a timer brings about in each micro-batch: the micro-batch in which the others prepare does that,
    # too.
    loops = replace(loops, uncommitted=True, awaited=(Awaited(_NEXT, Timestamp(3)),))
    assert _at_end("first", loops) == prepares
    assert _at_end("beside", loops) == Ready()
