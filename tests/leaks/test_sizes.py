"""What a job keeps does not grow with its micro-batches: sizes after ten times the work, over as many live keys.

The engine, the store and the driver of a job run in the simulator, without faults. What grows with the work must be
named in `GROWS`, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.store.shards.compaction import scan
from arcbeam.testing.faults import UnreliableBlobs
from simulator.judging.watching import Watcher
from simulator.playing.driver import Driver
from simulator.playing.jobs import Job
from simulator.playing.world import World
from simulator.scenario.kinds import MAIN, Event, Expand, Group, Join, Keep, Kind, Pace, Pass, Source
from simulator.scenario.plans import Pipeline, Stage
from simulator.scenario.scenarios import Request, RequestKind, Scenario
from simulator.scenario.windowings import Windowing
from tests.leaks.sizes import in_folder, in_modules, in_objects

FEW, TIMES = 12, 10
"""Micro-batches after which sizes are taken first, and how many times as many follow until the next time."""
LAST = 8
"""Sizes go up and down: the largest of this many commits counts."""
PIECE = 4
"""The number of elements in a micro-batch."""
KEYS = (b"a", b"b", b"c", b"d", b"e")
IN, SIDE = Port("source-1", MAIN), Port("source-2", MAIN)
TENS = Windowing("fixed", 10)

KINDS: dict[str, tuple[Kind, ...]] = {
    "windows": (Group(TENS), Group(TENS, "repeated watermark", lateness=15, combined=True)),
    "sliding": (Group(Windowing("sliding", 12), "early and late", accumulating=True, lateness=6, closes=True),),
    "sessions": (
        Group(Windowing("sessions", 3), "repeated watermark"),
        Group(Windowing("sessions", 3), "early and late", combined=True, lateness=9),
    ),
    "the clock": (Group(TENS, "clock"), Group(Windowing("global"), "count or clock")),
    "state": (
        Keep(TENS, "end", lateness=5),
        Keep(TENS, "expiration", lateness=5),
        Keep(TENS, "each"),
        Keep(TENS, "drawers"),
    ),
    "timers": (Keep(TENS, "debounce"), Keep(TENS, "clock"), Keep(TENS, "order")),
    "side inputs": (Join(SIDE, TENS), Keep(TENS, "end", side=SIDE)),
    "splittable": (Expand(3, Pace(2, 3, 1000, 1, 0.5)), Expand(2, side=SIDE)),
    "observed": (Pass(delay=3, jump=50), Pass(delay=2, quantile=0.5), Pass(delay=2, idle=20_000)),
}
GROWS = {".machine._state.made": "names of existing savepoints: the simulator deletes them without the driver"}
"""What may grow, by a part of its path: why."""


def pipeline_of(kinds: tuple[Kind, ...], micro_batches: int) -> Pipeline:
    """Two sources that advance at the same pace, and stages that read the first; the second is a side input."""
    count = micro_batches * PIECE
    stages = [
        Stage(f"source-{n}", 0, Source(tuple(_events(n, count)), Pace(PIECE, PIECE, 1_000, 0, 0)))
        for n in ((1, 2) if any(getattr(kind, "side", None) for kind in kinds) else (1,))
    ]
    for kind in kinds:
        stages.append(Stage(f"{type(kind).__name__.lower()}-{len(stages) + 1}", 1, kind, (IN,)))
    return Pipeline(tuple(stages), 2)


def _events(source: int, count: int) -> Iterator[Event]:
    for at in range(count):
        # Out of order by a little.
        yield Event(b"%d-%06d" % (source, at), KEYS[at % len(KEYS)], at + (at * 7 % 5))


class Measured(World):
    """A simulation whose sizes are taken after each commit.

    Attributes:
        sizes: by commit.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sizes: dict[int, Counter[str]] = {}

    def committed(self, driver: Driver) -> None:
        super().committed(driver)
        commit = self.watcher.commits
        if any(at - LAST <= commit < at for at in (FEW, FEW * TIMES)):
            self.sizes[commit] = self._sizes(driver)

    def _sizes(self, driver: Driver) -> Counter[str]:
        head = self.watcher.head
        assert head is not None
        apart = (World, Watcher, Job, Driver, UnreliableBlobs)
        roots = (driver.machine, driver._driver, driver._commits, driver.log, driver.job.copies, head)
        found = in_objects(*roots, apart=apart)
        found += in_modules("arcbeam.engine", "arcbeam.store", "arcbeam.streaming", "arcbeam.model")
        found += in_folder(self._blobs.data)
        for shard in head.shards:
            found["rows of state"] += sum(1 for _ in scan(self._blobs, shard.files))
            found["files of a shard"] = max(found["files of a shard"], len(shard.files))
        return found


def largest(sizes: dict[int, Counter[str]], before: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for commit in range(before - LAST, before):
        found |= sizes.get(commit, Counter())
    return found


def grown(few: Counter[str], many: Counter[str]) -> dict[str, tuple[int, int]]:
    """The sizes that have grown beyond their usual variation. Files of a shard are merged, so they vary more."""
    found = {}
    for path, size in sorted(many.items()):
        usual = 2.5 if path.startswith(("bytes", "longest")) else 1.5
        if size > usual * few[path] + 12 and not any(part in path for part in GROWS):
            found[path] = few[path], size
    return found


SAMPLE = ("sliding", "timers", "side inputs")
"""The others are long."""


@pytest.mark.parametrize(
    "kind", [kind if kind in SAMPLE else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS]
)
def test_nothing_grows_with_micro_batches(kind: str, tmp_path: Path) -> None:
    pipeline = pipeline_of(KINDS[kind], FEW * TIMES + 5)
    requests = tuple(
        Request(what, at) for at in range(3, FEW * TIMES, 5) for what in (RequestKind.SAVEPOINT, RequestKind.RELEASE)
    )
    world = Measured(Scenario(1, pipeline, ((1, 2),), 1, looks=1000, requests=requests), tmp_path)
    try:
        world.run()
    finally:
        world.close()
    assert world.watcher.commits > FEW * TIMES
    assert grown(largest(world.sizes, FEW), largest(world.sizes, FEW * TIMES)) == {}
