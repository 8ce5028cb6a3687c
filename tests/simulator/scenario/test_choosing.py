"""Every possible choice is made often enough, and the code paths for many elements are reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from inspect import getmembers, isabstract, isclass
from typing import Any, get_args
from unittest.mock import patch

import pytest

from arcbeam.engine.grouping import composites, triggers
from arcbeam.engine.grouping.contents import WindowBag
from arcbeam.engine.grouping.sortedruns import SortedRuns
from arcbeam.engine.grouping.strategy import PaneTime
from arcbeam.engine.grouping.triggers import Trigger
from arcbeam.engine.grouping.windowbuffer import WindowBuffer
from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.frontier import Frontier
from arcbeam.model.observers import Policy
from arcbeam.store.shards.overlay import _SortedKeys
from arcbeam.testing import calendars
from arcbeam.testing import windowfns as windows
from simulator import FaultKind, RequestKind, Scenario, scenario_of
from simulator.playing.debouncing import ALL_WAYS
from simulator.playing.world import play
from simulator.scenario.kinds import TRIGGERS, Expand, Group, Join, Keep, Kind, Pass, Source
from simulator.scenario.pipelines import ZONES
from simulator.scenario.plans import Stage
from simulator.scenario.special import HEAVY, WAITING
from simulator.scenario.windowings import CALENDAR, MERGING, WINDOWINGS, Windowing

SCENARIOS = 400
OFTEN = 8
"""The minimum number of scenarios with each choice. So some of the 200 scenarios of a test run have it."""


def _of_a_kind(kind: Kind) -> Iterator[object]:
    yield type(kind)
    match kind:
        case Group():
            yield from (("trigger", kind.trigger), ("group", kind.windowing.name), kind.pane_time)
            yield ("accumulating", kind.accumulating, "combined", kind.combined)
            yield from (("closes", kind.closes), ("quiet", kind.quiet), ("late", kind.lateness > 0))
        case Keep():
            yield from (("way", kind.way), ("keep", kind.windowing.name), ("keep", "side", kind.side is not None))
        case Expand():
            yield ("expand", "side", kind.side is not None)
        case Join():
            yield ("join", kind.windowing.name)
        case Pass() if kind.observes:
            yield from (("observes", kind.policy), ("skew", kind.skew is not None))
            yield from (("idle", kind.idle is not None), ("quantile", kind.quantile is not None))
            yield ("shared", kind.shared and kind.shared.policy)
        case Source():
            yield ("joins", kind.joins)
            yield from (("bounded", kind.bounded), ("surprising", any(event.surprising for event in kind.events)))


def _of_a_stage(stage: Stage) -> Iterator[object]:
    yield from _of_a_kind(stage.kind)
    if stage.windowing is not None and stage.windowing.name in CALENDAR:
        yield ("zone", stage.windowing.zone)
    yield ("producers", len(stage.sides))
    yield ("newest", stage.newest)
    yield from (("inputs", len(stage.inputs)), ("outputs", len(stage.outputs)), ("together", stage.together))


def _of(scenario: Scenario) -> set[object]:
    """Yield all choices of a scenario."""
    pipeline = scenario.pipeline
    chosen: set[object] = {what for stage in pipeline.stages for what in _of_a_stage(stage)}
    chosen |= {fault.kind for fault in scenario.faults} | {request.kind for request in scenario.requests}
    chosen |= {("shards", pipeline.shards), ("levels", pipeline.levels), ("hosts", scenario.hosts)}
    chosen |= {("drivers", len(scenario.tasks)), ("real cache", scenario.real_cache)}
    chosen |= {("heavy", scenario.seed % HEAVY == HEAVY - 1), ("waiting", scenario.seed % HEAVY == WAITING)}
    return chosen


@pytest.fixture(scope="module")
def chosen() -> Counter[object]:
    """Count the scenarios with each choice."""
    return Counter(what for seed in range(SCENARIOS) for what in _of(scenario_of(seed)))


@pytest.mark.parametrize(
    "what",
    [
        *(*FaultKind, *RequestKind, *PaneTime),
        *get_args(Kind),
        *(("trigger", trigger) for trigger in TRIGGERS),
        *(("way", way) for way in ALL_WAYS),
        *(("group", name) for name in WINDOWINGS),
        *(("keep", name) for name in WINDOWINGS if name not in MERGING),
        *(("join", name) for name in ("fixed", "sliding", "global", "days", "lanes")),
        *((name, "side", yes) for name in ("keep", "expand") for yes in (True, False)),
        *(("zone", zone) for zone in ZONES),
        *(("accumulating", a, "combined", c) for a in (True, False) for c in (True, False)),
        *(
            (name, yes)
            for name in ("closes", "quiet", "late", "bounded", "surprising", "together")
            for yes in (True, False)
        ),
        *((name, n) for name in ("inputs", "outputs") for n in (1, 2)),
        *(("producers", n) for n in (1, 2, 3)),
        ("newest", True),
        *(("shards", n) for n in (1, 2, 3, 4)),
        *(("levels", n) for n in (2, 3, 4, 5)),
        *((name, n) for name in ("hosts", "drivers") for n in (1, 2, 3)),
        *(("joins", n) for n in (1, 2)),
        ("real cache", True),
        ("heavy", True),
        ("waiting", True),
        *(("observes", policy) for policy in Policy),
        *((form, True) for form in ("skew", "idle", "quantile")),
        *(("shared", policy) for policy in Policy),
    ],
    ids=str,
)
def test_choice_is_made_often_enough(what: object, chosen: Counter[object]) -> None:
    assert chosen[what] >= OFTEN


def test_all_windows_of_engine_are_chosen() -> None:
    theirs = {
        function
        for module in (windows, calendars)
        for _, function in getmembers(module, isclass)
        if function.__module__ == module.__name__ and hasattr(function, "assign") and function is not windows.WindowFn
    }
    assert theirs <= {type(Windowing(name).fn) for name in WINDOWINGS}


def test_all_triggers_of_engine_are_chosen() -> None:
    def inside(trigger: Trigger) -> set[type[Trigger]]:
        return {type(trigger)}.union(*map(inside, trigger.parts()))

    theirs = {
        trigger
        for module in (triggers, composites)
        for name, trigger in getmembers(module, isclass)
        if issubclass(trigger, Trigger) and not isabstract(trigger) and not name.startswith("_")
    }
    assert theirs == set[type[Trigger]]().union(*(inside(make(2)) for make in TRIGGERS.values()))


@pytest.fixture(scope="module")
def reached() -> Counter[str]:
    """Count rare code paths in the heavy scenarios of the 200, and in one whose windows wait."""
    counts: Counter[str] = Counter()

    def counted(of: Any, name: str, what: str, when: Callable[..., bool]) -> AbstractContextManager[object]:
        real = getattr(of, name)

        def count(*args: Any, **more: Any) -> Any:
            counts[what] += when(*args)
            return real(*args, **more)

        return patch.object(of, name, count)

    with (
        counted(sequences, "_sealed", "sealed rows", lambda view, start, tail: True),
        counted(sequences, "_all", "reads of sealed rows", lambda view, start, tail: True),
        counted(Frontier, "_read", "second reads of an index", lambda front: front._until != front.start),
        counted(_SortedKeys, "between", "several blocks of an overlay", lambda keys, *_: len(keys._blocks) > 1),
        counted(WindowBag, "store", "windows with entries", lambda bag: bag.entries > 0),
        counted(SortedRuns, "add", "runs beside others", lambda runs, groups: not runs.empty),
        counted(WindowBuffer, "_waits", "late elements of stored windows", WindowBuffer.is_stored),
    ):
        play(scenario_of(WAITING))
        for number in range(1, 5):
            play(scenario_of(number * HEAVY - 1))
    return counts


@pytest.mark.parametrize(
    "what",
    [
        "sealed rows",
        "reads of sealed rows",
        "second reads of an index",
        "several blocks of an overlay",
        "windows with entries",
        "runs beside others",
        "late elements of stored windows",
    ],
)
def test_rare_path_is_taken(what: str, reached: Counter[str]) -> None:
    assert reached[what] >= 2


def test_seed_gives_same_scenario() -> None:
    assert scenario_of(7) == scenario_of(7) != scenario_of(8)
