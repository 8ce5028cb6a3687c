"""Each of some mistakes in the engine or the store is found by the simulator."""

from __future__ import annotations

import pytest

from simulator import failure_of, scenario_of
from simulator.mutations import MUTATIONS, found_by, main

SEEDS = {
    "a hold dropped at a split": 1,
    "a manifest created twice": 6,
    "a marker ignored": 2,
    "a timer fired at <=": 14,
    "a compaction that loses a tombstone": 9,
    "a residual kept twice": 5,
    "a watermark taken as max": 1,
    "a late drop uncounted": 7,
    "a savepoint that references a swept file": 1,
    "a fence not checked": 6,
    "an input watermark that ignores what waits": 23,
    "panes numbered on when a session grows": 19,
    "what comes in a drain not truncated": 59,
    "timers of the clock before those of the watermark": 42,
    "the hold of a merged session lost": 140,
    "state committed when bundles end": 6,
    "an index that is read once": 49,
    "a scan that ends with a block of the overlay": 49,
    "a timer that keeps its first payload": 2,
    "a timer that fires where it was, too": 87,
    "a timer that is cleared and fires": 0,
    "a suspension that is not heard": 38,
    "what was seen is forgotten": 18,
    "what was not believed is forgotten": 0,
    "what is ahead of the clock believed": 13,
    "an input that stands waited for for ever": 78,
    "an input that stands not waited for": 57,
    "one of several that stands waited for": 57,
    "the end of one of several taken for that of all": 33,
    "a quantile of what came last alone": 29,
    "told though observed": 10,
    "the report of an abandoned run taken": 88,
    "savepoints lost by resuming from an older one": 177,
    "a savepoint forgotten that was asked for during a commit": 59,
    "late panes that wait for the expiry": 11,
    "what files of a side input are made one in, left out": 38,
    "a side input that waits for one of its producers": 46,
    "all firings of a side input read instead of the newest": 4,
    "a run of a window written over another": 29,
    "what comes to a window that has waited, lost": 29,
    "late elements ahead of those that wait": 24,
    "workers that die retried as often as a store that is away": 72,
    "a level that rests while something waits in it": 11,
    "one level more that rests": 0,
    "timers that are no more counted on": 0,
    "the end of time said before those have prepared who were to": 7,
    "all sources begin again with one that joins": 33,
    "a source that joins never begins": 33,
    "what a stage was told taken back for a source that joins": 51,
    "what has moved to another level stays where it was": 2,
    "state that is left at the level where it was": 2,
    "a copy built upon that is of before its level went": 565,
    "a takeover that is checked for only after failed tries": 11,
    "a takeover that is checked for only now and then": 30,
    "a coordinator that wakes up at once": 0,
    "a coordinator that runs micro-batches instead of waiting": 3,
    "a stage of restrictions that is due a moment later": 0,
    "a stage with timers that is due a moment later": 0,
    "elements that wait taken for what the budget left": 2,
}
"""By mistake, a seed that finds it."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found_by_its_seed(name: str) -> None:
    assert found_by(name, SEEDS[name])


@pytest.mark.parametrize("seed", sorted(set(SEEDS.values())))
def test_without_it_nothing_is_found(seed: int) -> None:
    assert failure_of(scenario_of(seed)) is None


def test_a_mistake_that_is_not_found_is_told(capsys) -> None:
    name = "a residual kept twice"
    assert main(["--seeds", "0..0", name]) == 1
    assert main(["--seeds", f"{SEEDS[name]}..{SEEDS[name]}", name]) == 0
    assert f"{name}: not found" in capsys.readouterr().out
