"""The simulator finds each of the planted mistakes in the engine and the store."""

from __future__ import annotations

import pytest

from simulator import failure_of, scenario_of
from simulator.mutations import MUTATIONS, found_by, main
from tests.simulator.test_simulate import SEEDS as PLAYED

SEEDS = {
    "a hold dropped at a split": 1,
    "a manifest created twice": 6,
    "a marker ignored": 2,
    "a timer fired at <=": 14,
    "a compaction that loses a tombstone": 9,
    "a residual kept twice": 5,
    "a watermark combined by max": 1,
    "a late drop not counted": 7,
    "a savepoint that references a deleted file": 1,
    "a fence not checked": 6,
    "an input watermark that ignores buffered elements": 23,
    "an input watermark forgotten while elements are buffered": 17,
    "the input watermark of an idle shard forgotten": 5,
    "pane numbers continued when a session grows": 19,
    "elements that arrive in a drain not truncated": 59,
    "processing timers fired before event timers": 42,
    "the hold of a merged session lost": 140,
    "state committed when bundles end": 6,
    "an index read only once": 49,
    "a scan that ends with a block of the overlay": 49,
    "a timer that keeps its first payload": 2,
    "a moved timer that also fires at its old time": 87,
    "a cleared timer that fires": 0,
    "a suspension ignored": 38,
    "timestamps observed earlier forgotten": 18,
    "unconfirmed timestamps forgotten": 0,
    "timestamps ahead of the clock accepted": 13,
    "an idle input waited for forever": 78,
    "an input treated as idle at once": 57,
    "an idle input of a shared observer waited for": 57,
    "the end of one shared input taken for the end of all": 33,
    "a quantile of the newest micro-batch alone": 29,
    "an observed output that reports its stage's watermark": 10,
    "the report of an abandoned run accepted": 88,
    "savepoints lost by resuming from an older one": 177,
    "a savepoint forgotten that was requested during a commit": 59,
    "late panes delayed until the window expires": 11,
    "a merged file of a side input left out": 38,
    "a side input that waits for only one producer": 46,
    "all firings of a side input read instead of the newest": 4,
    "a run of a window that overwrites another": 29,
    "later elements of a stored window lost": 29,
    "late elements placed before buffered ones": 24,
    "dead workers retried as often as an unavailable store": 72,
    "a level treated as idle despite its work": 11,
    "one level too many treated as idle": 0,
    "removed timers still counted": 0,
    "the end of time reported before stages have prepared": 7,
    "all sources restarted when one joins": 33,
    "a joining source never started": 33,
    "a watermark lowered for a joining source": 51,
    "state not moved to the new level of its stage": 2,
    "state left at the old level of its stage": 2,
    "a copy reused from before its level was removed": 565,
    "a takeover checked only after failed attempts": 11,
    "a takeover checked only at intervals": 30,
    "a coordinator that wakes up at once": 0,
    "a coordinator that runs micro-batches instead of waiting": 3,
    "a stage with restrictions always due a moment later": 0,
    "a stage with timers always due a moment later": 0,
    "buffered elements taken for leftover work": 2,
    "a watermark that fires timers before results came": 2,
    "a timer that ends a batch lost": 7,
    "the state of windows that expire in a batch kept": 0,
    "runs of a window from two shards joined": 29,
    "the end of a window in only one of its new shards": 29,
    "the latest watermark of the old shards": 158,
    "key ranges not written": 158,
    "watermarks of the old shards lost": 765,
    "a divided lot of blocked elements held at its last element": 765,
}
"""A seed that finds each mistake."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_found_by_its_seed(name: str) -> None:
    assert found_by(name, SEEDS[name])


@pytest.mark.parametrize(
    "seed",
    # `test_simulate` plays many of them, too.
    [pytest.param(each, marks=[pytest.mark.long] * (each in PLAYED)) for each in sorted(set(SEEDS.values()))],
)
def test_seed_without_mistake_passes(seed: int) -> None:
    assert failure_of(scenario_of(seed)) is None


def test_search_reports_unfound_mistake(capsys) -> None:
    name = "a residual kept twice"
    assert main(["--seeds", "0..0", name]) == 1
    assert main(["--seeds", f"{SEEDS[name]}..{SEEDS[name]}", name]) == 0
    assert f"{name}: not found" in capsys.readouterr().out
