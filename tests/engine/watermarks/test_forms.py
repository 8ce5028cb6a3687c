"""Whatever the observers and shards: watermarks never decrease, and follow the formula.

The input is chosen, and runs twice: once as it is, and once with other cuts (bundles, the order in which shards report,
tasks, and drivers that resume from the commit).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port, marker_time, output_time
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.idleness import mark_idle
from arcbeam.engine.watermarks.observed import later
from arcbeam.engine.watermarks.sketches import Recent, sketched
from arcbeam.engine.watermarks.stages import StageFlow, Watermarks, WatermarkTimes, upstream_watermarks
from arcbeam.model.observers import Observer, ObserverPaths, Policy, all_observers
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.testing.views import MemoryView

T = TypeVar("T")
_SHARDS = 3
_OUT, _GROUPED = Port("read", "main"), Port("group", "main")


@dataclass(frozen=True)
class MicroBatch:
    """The input of a micro-batch.

    Attributes:
        after: the time since the previous micro-batch.
        seen: by shard, times of elements; all observers see them.
        holds: by shard, the watermark of its source; None: it has ended.
    """

    after: int
    seen: tuple[tuple[int, ...], ...]
    holds: tuple[int | None, ...]


@st.composite
def _observers(draw: st.DrawFn, depth: int = 2) -> Observer:
    upstream: ObserverPaths = (None,)
    if depth > 1 and draw(st.booleans()):
        upstream = tuple(draw(st.lists(st.none() | _observers(depth - 1), min_size=1, max_size=2)))
    return Observer(
        "",
        Duration(draw(st.sampled_from((0, 1, 5, 30)))),
        draw(st.sampled_from(Policy)),
        upstream,
        draw(st.none() | st.sampled_from((Duration(3), Duration(20)))),
        draw(st.none() | st.sampled_from((0.5, 0.75, 0.9))),
    )


def _named(paths: ObserverPaths, name: str = "o") -> ObserverPaths:
    return tuple(
        each and replace(each, name=f"{name}{n}", upstream=_named(each.upstream, f"{name}{n}."))
        for n, each in enumerate(paths)
    )


_WAYS = st.lists(st.none() | _observers(), min_size=1, max_size=2).map(tuple).map(_named)
_TIMES = st.integers(-60, 60)
_HOLDS = st.none() | st.just(int(MIN_TIMESTAMP)) | _TIMES


@st.composite
def _micro_batches(draw: st.DrawFn) -> list[MicroBatch]:
    """Some micro-batches; sources often do not move."""
    holds: list[int | None] = [draw(_HOLDS) for _ in range(_SHARDS)]
    micro_batches = []
    for _ in range(draw(st.integers(1, 8))):
        seen = tuple(tuple(draw(st.lists(_TIMES, max_size=4))) for _ in range(_SHARDS))
        micro_batches.append(MicroBatch(draw(st.sampled_from((0, 2, 3, 25))), seen, tuple(holds)))
        holds = [draw(_HOLDS) if draw(st.integers(0, 3)) == 0 else hold for hold in holds]
    return micro_batches


_MICRO_BATCHES = _micro_batches()


@dataclass
class Job:
    """A source with observers, and a grouping that reads it, from micro-batch to micro-batch.

    Attributes:
        cuts: the random choice of cuts; None: no cuts.
    """

    paths: ObserverPaths
    cuts: random.Random | None = None
    views: list[MemoryView] = field(default_factory=lambda: [MemoryView() for _ in range(_SHARDS)])
    times: WatermarkTimes = field(default_factory=WatermarkTimes)
    now: int = 0

    def __post_init__(self) -> None:
        self.marks = self._begun()

    def _begun(self) -> Watermarks:
        flows = [
            StageFlow("read", (), ("main",), _SHARDS, {"main": self.paths}),
            StageFlow("group", (_OUT,), ("main",), _SHARDS),
        ]
        return Watermarks(flows, self.times)

    def run(self, micro_batch: MicroBatch) -> WatermarkTimes:
        """Commit a micro-batch; return the watermarks."""
        self.now += micro_batch.after
        if self.cuts and self.cuts.random() < 0.4:
            self._driver_begins()
        if self.cuts and self.cuts.random() < 0.2:
            self._is_lost(micro_batch)
        locals = [self._local(micro_batch, shard, self.views[shard]) for shard in range(_SHARDS)]
        received = self._received(locals)
        for shard in self._shuffled(range(_SHARDS)):
            self.marks.report("read", shard, locals[shard])
        for shard in self._shuffled(range(_SHARDS)):
            self.marks.report("group", shard, Local(None, {"main": OutputTime()}))
        before, self.times = self.times, self.marks.advance()
        self.times.check_after(before)
        assert all(self.times.seen[name] >= time for name, time in before.seen.items())
        assert received == max(before.outputs.get(_OUT, MIN_TIMESTAMP), received), "the watermark decreased"
        assert self.times.outputs[_OUT] >= received
        # The tasks of the micro-batch do not know what was seen in it.
        assert self.times.inputs["group"] == max(received, before.inputs.get("group", MIN_TIMESTAMP))
        return self.times

    def _driver_begins(self) -> None:
        """A driver resumes from the commit; later reports are lost."""
        recent = {name: Recent.decoded(of.encoded()) for name, of in self.times.recent.items()}
        self.times = replace(self.times, recent=recent)
        self.marks = self._begun()

    def _is_lost(self, micro_batch: MicroBatch) -> None:
        """A driver dies after the micro-batch and before its commit: state and watermarks are as they were."""
        views = [MemoryView(dict(view.scan(b"", b"\xff" * 8))) for view in self.views]
        for shard, view in enumerate(views):
            self.marks.report("read", shard, self._local(micro_batch, shard, view))
        self.marks.advance()
        self._driver_begins()

    def _local(self, micro_batch: MicroBatch, shard: int, view: MemoryView) -> Local:
        reported = micro_batch.holds[shard]
        hold = None if reported is None else Hold(Timestamp(reported), HolderKind.RESIDUAL, "it")
        seen: dict[str, Timestamp] = {}
        sketches: dict[str, bytes] = {}
        for observer in all_observers(self.paths):
            for times in self._cut(micro_batch.seen[shard]):
                if observer.quantile is None:
                    seen = later(seen, {observer.name: Timestamp(max(times))})
                else:
                    sketches[observer.name] = sketched(times, sketches.get(observer.name, b""))
        local = Local(hold, {"main": OutputTime(hold)}, None, seen, sketches)
        return mark_idle(view, 1, {"main": self.paths}, MAX_TIMESTAMP, local, Timestamp(self.now))[0]

    def _cut(self, times: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the times in bundles."""
        left = self._shuffled(times)
        while left:
            count = self.cuts.randint(1, len(left)) if self.cuts else len(left)
            yield left[:count]
            left = left[count:]

    def _received(self, locals: Sequence[Local]) -> Timestamp:
        """Return the time that the grouping's tasks receive, for any number of tasks."""
        tasks: list[list[Local]] = [[]]
        for local in locals:
            if self.cuts and tasks[-1] and self.cuts.random() < 0.5:
                tasks.append([])
            tasks[-1].append(local)
        markers = [
            {_OUT: min(marker_time(self.paths, output_time(MAX_TIMESTAMP, local, "main")) for local in task)}
            for task in tasks
        ]
        return upstream_watermarks(self._shuffled(markers), {_OUT: len(tasks)}, self.times.outputs)[_OUT]

    def _shuffled(self, things: Sequence[T]) -> list[T]:
        return self.cuts.sample(list(things), len(things)) if self.cuts else list(things)


@pytest.mark.contract("WM-01", "WM-02", "WM-03", "WM-04", "ENG-01", "ENG-08")
@given(_WAYS, _MICRO_BATCHES, st.integers(0, 1000))
def test_watermarks_are_independent_of_cuts(
    paths: ObserverPaths, micro_batches: Sequence[MicroBatch], chance: int
) -> None:
    whole, cut = Job(paths), Job(paths, random.Random(chance))
    exact = all(observer.quantile is None for observer in all_observers(paths))
    for micro_batch in micro_batches:
        once, again = whole.run(micro_batch), cut.run(micro_batch)
        if exact:
            assert once == again


@pytest.mark.contract("WM-01", "WM-02", "WM-04")
@given(_WAYS, _MICRO_BATCHES)
def test_output_follows_formula(paths: ObserverPaths, micro_batches: Sequence[MicroBatch]) -> None:
    job, latest, output = Job(paths), Latest(paths), MIN_TIMESTAMP
    for micro_batch in micro_batches:
        latest.add(micro_batch)
        times = job.run(micro_batch)
        for observer in all_observers(paths):
            if observer.quantile is not None and observer.name in times.seen:
                # A quantile of recent times, so within their range.
                assert min(latest.all) <= times.seen[observer.name] <= max(latest.all)
            elif latest.all and observer.quantile is None:
                assert times.seen[observer.name] == max(latest.all)
        output = max(output, min(latest.there(each, times.seen) for each in paths))
        assert times.outputs[_OUT] == output


class Latest:
    """The times so far, and since when each shard has reported the same; computed independently."""

    def __init__(self, paths: ObserverPaths) -> None:
        # Idleness is known per output: the least patient observer decides.
        self._patience = min(
            (each.idle_after for each in all_observers(paths) if each.idle_after is not None), default=None
        )
        self.all: list[int] = []
        self._root_watermark: list[int | None] = [0] * _SHARDS
        self._since = [-1_000] * _SHARDS
        self._now, self._begun = 0, False

    def add(self, micro_batch: MicroBatch) -> None:
        """Add a committed micro-batch."""
        self._now += micro_batch.after
        self.all += [time for times in micro_batch.seen for time in times]
        for shard, reported in enumerate(micro_batch.holds):
            if reported != self._root_watermark[shard] or not self._begun:
                self._since[shard] = self._now
        self._root_watermark, self._begun = list(micro_batch.holds), True

    def there(self, observer: Observer | None, seen: Mapping[str, Timestamp], patience: int | None = None) -> int:
        """Return the time of a way."""
        if observer is None:
            return self._input(patience)
        if observer.idle_after is not None and self._input(None) < MAX_TIMESTAMP:
            patience = self._patience
        reported = min(self.there(each, seen, patience) for each in observer.upstream)
        known = seen.get(observer.name)
        lagging = MIN_TIMESTAMP if known is None else known - observer.delay
        if reported in (MIN_TIMESTAMP, MAX_TIMESTAMP):
            return reported if reported == MAX_TIMESTAMP else lagging
        return min(reported, lagging) if observer.policy is Policy.MIN else max(reported, lagging)

    def _input(self, patience: int | None) -> int:
        reported = [MAX_TIMESTAMP if each is None else each for each in self._root_watermark]
        if patience is None:
            return min(reported)
        loud = [
            each
            for each, since in zip(reported, self._since, strict=True)
            if each < MAX_TIMESTAMP and (each == MIN_TIMESTAMP or self._now - since < patience)
        ]
        return min(loud, default=MIN_TIMESTAMP)
