"""Sorted runs of a window: payloads are read by key, in order, once, however they were cut."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from arcbeam.engine.grouping.sortedruns import (
    LARGE_RUN_BYTES_MIN,
    MERGED_RUNS,
    ROW_BYTES,
    RUNS_AFTER_LARGE_MAX,
    SortedRuns,
)
from arcbeam.testing.views import MemoryView

PLACE = b"here"


def some(chance: random.Random, size: int = 40) -> dict[bytes, list[bytes]]:
    keys = [chance.choice([b"", b"a", b"b\0", b"b", b"\xff" * 5, b"%d" % chance.randrange(100)]) for _ in range(size)]
    return {key: [chance.randbytes(chance.choice([0, 3, 200])) for _ in range(chance.randint(1, 3))] for key in keys}


@pytest.mark.parametrize("seed", range(40))
def test_runs_are_read_by_key_in_order(seed: int) -> None:
    chance = random.Random(seed)
    view = MemoryView()
    view.put(b"hera", b"another's")
    view.put(b"hero", b"another's")
    expected: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for _ in range(chance.choice([0, 1, 5, 40])):
        groups = some(chance, chance.choice([1, 40, 400]))
        if chance.random() < 0.05:
            groups[b"b"] = [bytes(LARGE_RUN_BYTES_MIN)]
        SortedRuns(view, PLACE).add(groups)
        for key, payloads in groups.items():
            expected[key] += payloads
    more = some(chance) if chance.random() < 0.7 else {}
    for key, payloads in more.items():
        expected[key] += payloads
    found: defaultdict[bytes, list[bytes]] = defaultdict(list)
    while True:
        runs = SortedRuns(view, PLACE)
        merged, more = runs.merged(more), {}
        room = chance.randint(1, 60)
        for key, payloads in merged:
            assert key not in found
            found[key] = list(payloads)
            room -= 1
            if not room:
                break
        if rest := merged.stop_reading():
            runs.add(rest)
        if merged.empty:
            runs.clear()
            break
    assert found == expected
    assert [key for key, _ in view.scan(b"")] == [b"hera", b"hero"]


def test_small_runs_are_merged_but_large_ones_stay() -> None:
    view = MemoryView()
    runs = SortedRuns(view, PLACE)
    large = {b"%d" % n: [bytes(ROW_BYTES)] for n in range(200)}
    runs.add(large)
    rows = sum(1 for _ in view.scan(b""))
    for micro_batch in range(10 * RUNS_AFTER_LARGE_MAX):
        runs.add({b"key": [b"%d" % micro_batch], b"%03d" % micro_batch: [b""]})
        assert sum(1 for _ in view.scan(b"")) < rows + RUNS_AFTER_LARGE_MAX + 1
    assert runs_of(view) < 4 * MERGED_RUNS
    found = {key: list(payloads) for key, payloads in runs.merged({})}
    assert found[b"key"] == [b"%d" % micro_batch for micro_batch in range(10 * RUNS_AFTER_LARGE_MAX)]
    assert found.keys() == large.keys() | {b"key"} | {
        b"%03d" % micro_batch for micro_batch in range(10 * RUNS_AFTER_LARGE_MAX)
    }


def runs_of(view: MemoryView) -> int:
    return len(view.get(PLACE) or b"") // 12


@pytest.mark.parametrize("size", [10, 100, 1_000, 20_000])
def test_bytes_are_rewritten_few_times(size: int) -> None:
    view = MemoryView()
    micro_batches = min(1_500, (3 << 20) // size)
    most = 0
    for micro_batch in range(micro_batches):
        before = view.written
        SortedRuns(view, PLACE).add({b"%d" % (micro_batch % 50): [bytes(size)]})
        most = max(most, view.written - before)
        assert runs_of(view) < 5 * MERGED_RUNS + micro_batch * size / LARGE_RUN_BYTES_MIN
    assert view.written < 7 * micro_batches * (size + 20) + 12 * micro_batches * runs_of(view)
    assert most < MERGED_RUNS * LARGE_RUN_BYTES_MIN


@pytest.mark.parametrize("seed", range(5))
def test_runs_of_any_size_stay_few(seed: int) -> None:
    chance = random.Random(seed)
    view = MemoryView()
    sizes = [1, 30, 300, 3_000, 30_000]
    large = 0
    for _ in range(400):
        size = LARGE_RUN_BYTES_MIN if chance.random() < 0.005 else chance.choice(sizes)
        large += size == LARGE_RUN_BYTES_MIN
        if chance.random() < 0.1:
            chance.shuffle(sizes)
        SortedRuns(view, PLACE).add({b"key": [bytes(size)]})
        assert runs_of(view) < RUNS_AFTER_LARGE_MAX * (1 + large) + 400 * 30_000 / LARGE_RUN_BYTES_MIN
    ((key, payloads),) = ((key, list(payloads)) for key, payloads in SortedRuns(view, PLACE).merged({}))
    assert (key, len(payloads)) == (b"key", 400)


def test_one_row_of_each_run_is_in_memory() -> None:
    view = MemoryView()
    runs = SortedRuns(view, PLACE)
    runs.add({b"%06d" % n: [bytes(100)] for n in range(2_000)})
    rows = [len(value) for key, value in view.scan(PLACE) if key != PLACE]
    assert len(rows) > 10
    assert max(rows) < ROW_BYTES + 200
    merged = iter(runs.merged({}))
    for _ in range(1_000):
        next(merged)
    left = sum(1 for key, _ in view.scan(PLACE) if key != PLACE)
    assert abs(left - len(rows) / 2) <= 1
