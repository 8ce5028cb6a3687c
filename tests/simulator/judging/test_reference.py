"""The reference computes the output of a stage; `results` finds differences."""

from __future__ import annotations

from collections import Counter

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import IntervalWindow, PaneInfo, Timing
from simulator.judging import reference, results
from simulator.judging.records import Broken, Drop, Out
from simulator.judging.reference import Item, Reference
from simulator.scenario.kinds import MAIN, Event, Expand, Group, Join, Keep, Source
from simulator.scenario.plans import Pipeline, Stage
from simulator.scenario.windowings import Windowing

READ = Port("source-1", MAIN)
EVENTS = (Event(b"a0", b"k", 1), Event(b"a1", b"k", 4), Event(b"a2", b"j", 12))
ON_TIME = PaneInfo(0, 0, Timing.ON_TIME, True, True)
FIRST, SECOND = IntervalWindow(Timestamp(-7), Timestamp(3)), IntervalWindow(Timestamp(3), Timestamp(13))


def pipeline(stage: Stage, *events: Event) -> Pipeline:
    return Pipeline((Stage("source-1", 0, Source(events or EVENTS)), stage), 1)


def read(*events: Event) -> list[Out]:
    return [Out("source-1", MAIN, event.key, (event.atom,), Timestamp(event.time)) for event in events or EVENTS]


def pane(key: bytes, atoms: tuple[bytes, ...], window: IntervalWindow, info: PaneInfo = ON_TIME) -> Out:
    return Out("group-2", MAIN, key, atoms, window.max_timestamp, window, info)


def group(**more: object) -> Stage:
    return Stage("group-2", 1, Group(**more), (READ,))  # type: ignore[arg-type]


def test_atoms_get_end_of_window_as_timestamp() -> None:
    made = Reference(pipeline(group()), {"source-1": EVENTS}).outputs[Port("group-2", MAIN)]
    assert made == Counter(
        [Item(b"k", b"a0", Timestamp(2)), Item(b"k", b"a1", Timestamp(12)), Item(b"j", b"a2", Timestamp(12))]
    )


def test_overlapping_sessions_merge() -> None:
    made = Reference(pipeline(group(windowing=Windowing("sessions", 4))), {"source-1": EVENTS})
    times = {item.atom: item.time for item in made.outputs[Port("group-2", MAIN)]}
    assert times == {b"a0": 7, b"a1": 7, b"a2": 15}


def test_copies_have_increasing_timestamps() -> None:
    made = Reference(pipeline(Stage("expand-2", 1, Expand(2), (READ,))), {"source-1": EVENTS[:1]})
    assert made.outputs[Port("expand-2", MAIN)] == Counter(
        [Item(b"k", b"a0.0", Timestamp(1)), Item(b"k", b"a0.1", Timestamp(2))]
    )


def test_output_of_late_data_is_not_certain() -> None:
    surprising = Event(b"a3", b"k", 0, surprising=True)
    plan = pipeline(Stage("keep-2", 1, Keep(), (READ,)), *EVENTS, surprising)
    assert reference.honest(plan) == frozenset()
    assert reference.certain(plan) == {"source-1"}
    assert reference.certain(pipeline(Stage("keep-2", 1, Keep(), (READ,)))) == {"source-1", "keep-2"}


def test_accumulating_closing_pane_repeats_all_elements() -> None:
    assert "group-2" in reference.certain(pipeline(group(accumulating=True)))
    assert "group-2" not in reference.certain(pipeline(group(accumulating=True, closes=True)))


def right() -> list[Out]:
    return [pane(b"k", (b"a0",), FIRST), pane(b"k", (b"a1",), SECOND), pane(b"j", (b"a2",), SECOND)]


def test_correct_result_passes() -> None:
    results.check(pipeline(group()), [*read(), *right()], drained=False)


@pytest.mark.parametrize(
    "panes",
    [
        right()[1:],
        [*right(), right()[0]],
        [pane(b"k", (b"a0", b"a1"), FIRST), right()[2]],
        [pane(b"k", (b"a0",), FIRST, PaneInfo(0, -1, Timing.EARLY, True, False)), *right()[1:]],
    ],
    ids=["lost", "doubled", "in the wrong window", "early"],
)
def test_wrong_result_is_found(panes: list[Out]) -> None:
    with pytest.raises(Broken):
        results.check(pipeline(group()), [*read(), *panes], drained=False)


def test_drained_source_may_stop_anywhere() -> None:
    records = [*read(*EVENTS[:1]), right()[0]]
    results.check(pipeline(group()), records, drained=True)
    with pytest.raises(Broken):
        results.check(pipeline(group()), records, drained=False)


def test_late_element_comes_out_or_is_dropped_once() -> None:
    surprising = Event(b"a3", b"k", 2, surprising=True)
    plan, records = pipeline(group(), *EVENTS, surprising), [*read(*EVENTS, surprising), *right()]
    drop = Drop("group-2", b"k", (b"a3",), Timestamp(2), FIRST, True, Timestamp(9))
    results.check(plan, [*records, drop], drained=False)
    for wrong in ([], [drop, drop]):
        with pytest.raises(Broken):
            results.check(plan, [*records, *wrong], drained=False)


def test_accumulating_panes_must_not_shrink() -> None:
    plan = pipeline(group(windowing=Windowing("global"), trigger="counts", accumulating=True), *EVENTS[:2])
    window = plan.stages[1].windowing.fn.assign(Timestamp(0))[0]  # type: ignore[union-attr]
    first = pane(b"k", (b"a0",), window, PaneInfo(0, -1, Timing.EARLY, True, False))  # type: ignore[arg-type]
    for atoms, is_right in (((b"a0", b"a1"), True), ((b"a1",), False), ((b"a0",), False)):
        second = first._replace(atoms=atoms, pane=PaneInfo(1, -1, Timing.EARLY, False, False))
        records = [*read(*EVENTS[:2]), first, second]
        if is_right:
            results.check(plan, records, drained=False)
        else:
            with pytest.raises(Broken):
                results.check(plan, records, drained=False)


@pytest.mark.parametrize(
    "kind", [Join(Port("source-2", MAIN)), Keep(way="each", side=Port("source-2", MAIN))], ids=["join", "keep"]
)
def test_side_input_contents_are_checked_per_window(kind: Join | Keep) -> None:
    join = Stage("join-3", 1, kind, (READ,))
    side = Stage("source-2", 0, Source((Event(b"b0", b"x", 0),)))
    plan = Pipeline((Stage("source-1", 0, Source(EVENTS[:2])), side, join), 1)
    out = [Out("join-3", MAIN, b"k", (b"a0",), Timestamp(1), FIRST, None, True)]
    out.append(Out("join-3", MAIN, b"k", (b"a1",), Timestamp(4), SECOND, None, False))
    records = [*read(*EVENTS[:2]), Out("source-2", MAIN, b"x", (b"b0",), Timestamp(0))]
    results.check(plan, [*records, *out], drained=False)
    with pytest.raises(Broken):
        results.check(plan, [*records, out[0], out[1]._replace(joined=True)], drained=False)
