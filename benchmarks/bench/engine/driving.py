"""A large job without its tasks: driver, machine, commit log and status; the reports of tasks are made up.

Owns the made-up tasks, and counting what the driver asks of the object store. Must not know what is done with figures.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arcbeam.engine.coordinator import CommitDecided, Event, JobMachine, MicroBatchReported
from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.markers import NO_INPUT, digest
from arcbeam.engine.protocol.reports import Counts, Movable, Restrictions, StageReport, TaskReport
from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.harness.streaming.counters import Counters
from arcbeam.model.files import FileKind, Owned, Shard, ShardFile, TaskFiles
from arcbeam.model.rows import BundleReport, Passed
from arcbeam.model.timestamps import Duration, Timestamp, shifted
from arcbeam.spark.streaming.leveldata import LevelInput, LevelReport
from arcbeam.spark.tasks.jobproperties import encoded
from arcbeam.store.blobs.durable import BlobInfo, DurableBlobs
from arcbeam.store.blobs.objects import ObjectBlobs
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import JobShape, StageShape
from arcbeam.store.shards.compaction import worth_merging
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.driver.commits import LogCommits
from arcbeam.streaming.driver.driver import JobDriver
from arcbeam.streaming.driver.historywriter import HistoryWriter
from arcbeam.streaming.driverstate import started
from arcbeam.streaming.reportcodec import ReportReader
from arcbeam.streaming.status.status import status_of

_PAGE = 1_000
"""Names in an answer of an object store, and names in a request that deletes."""
_START = 1_700_000_000_000_000
_STEP = Duration(500_000)
_AHEAD = _START + 1_000_000_000_000
_HANDED = 160
"""Bytes of a restriction that may move."""
_MOVABLE = 16
_ROW = 100


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a job.

    Attributes:
        shards, levels: of the layout; each level has a stage.
        tasks: of each level.
        partitions: restrictions of the source.
        live: restrictions of all stages.
        active: the share of the shards that write state in a micro-batch.
    """

    shards: int = 1_024
    levels: int = 8
    tasks: int = 256
    partitions: int = 10_000
    live: int = 1_000_000
    active: float = 0.1


@dataclass(slots=True)
class Requests:
    """Requests to the store, by kind."""

    counted: Counter[str] = field(default_factory=Counter)
    bytes: int = 0

    @property
    def total(self) -> int:
        return sum(self.counted.values())


class CountedBlobs(DurableBlobs):
    """Counts requests as an object store bills them: a listing has a request for each thousand names."""

    def __init__(self, inner: ObjectBlobs) -> None:
        self.inner, self.requests = inner, Requests()

    def __str__(self) -> str:
        return str(self.inner)

    def get(self, name: str) -> bytes:
        self.requests.counted["get"] += 1
        return self.inner.get(name)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        self.requests.counted["get"] += 1
        return self.inner.get_range(name, start, length)

    def put(self, name: str, data: bytes) -> None:
        self.requests.counted["put"] += 1
        self.inner.put(name, data)

    def put_file(self, name: str, path: Any) -> None:
        self.requests.counted["put"] += 1
        self.inner.put_file(name, path)

    def create(self, name: str, data: bytes) -> bool:
        self.requests.counted["create"] += 1
        self.requests.bytes += len(data)
        return self.inner.create(name, data)

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        found = list(self.inner.list(prefix, after))
        self.requests.counted["list"] += max(1, -(-len(found) // _PAGE))
        return iter(found)

    def delete_each(self, names: Sequence[str]) -> None:
        self.requests.counted["delete"] += -(-len(names) // _PAGE)
        self.inner.delete_each(names)

    def delete(self, name: str) -> None:
        self.requests.counted["delete"] += 1
        self.inner.delete(name)


class Moment:
    """A clock that the tasks move."""

    def __init__(self) -> None:
        self.at = Timestamp(_START)

    def now(self) -> Timestamp:
        return self.at


class Inbox:
    """The driver's queue."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()

    def put(self, event: Event) -> None:
        self.events.append(event)


def layout_of(size: Size) -> Layout:
    """Return a chain of stages, one on each level."""
    stages: list[StagePlacement] = []
    for level in range(size.levels):
        inputs = (Port(_stage(level - 1), "out"),) if level else ()
        stages.append(StagePlacement(StageFlow(_stage(level), inputs, ("out",), size.shards), level + 1, level))
    return Layout(tuple(stages), size.shards, (size.tasks,) * size.levels)


def _stage(level: int) -> str:
    return f"Level {level}/GroupByKey and a ParDo with state"


class Tasks:
    """The tasks of a job: they keep what each shard reports, and change some of it in each micro-batch.

    Args:
        size: of the job.
        blobs: receives the files that the tasks write. They are empty: the driver only lists and deletes them.
    """

    def __init__(self, size: Size, blobs: ObjectBlobs) -> None:
        self._size, self._blobs = size, blobs
        self._layout = layout_of(size)
        self._random = random.Random(7)
        self._at = Timestamp(_START)
        self.files = 0
        self._held: dict[tuple[int, int], Timestamp] = {}

    def run(self, order: TaskAssignment) -> list[bytes]:
        """Return the reports of all tasks of a micro-batch, as they reach the driver."""
        self._at = shifted(self._at, _STEP)
        known, reports = NO_INPUT, []
        state = {(of.level, of.shard): of.files for of in order.shards}
        for level in range(self._size.levels):
            tokens = [f"{order.plan.micro_batch}.{level}.{task}".encode() for task in range(self._size.tasks)]
            if level >= order.plan.first:
                for task, token in enumerate(tokens):
                    reports.append(self._report(order, level, task, token, known, state))
                known = digest(known, tokens)
        return reports

    def _report(
        self, order: TaskAssignment, level: int, task: int, token: bytes, known: bytes, state: dict[Any, Any]
    ) -> bytes:
        owned = self._layout.range_of(level, task)
        stages, shards = [], []
        for shard in owned:
            active = self._random.random() < self._size.active or order.plan.head == 0
            stages.append(self._stage(level, shard, active))
            if active:
                shards.append(Shard(level, shard, self._written(order, level, shard, state.get((level, shard), ()))))
        report = TaskReport(level, task, token, known, tuple(stages), files=TaskFiles(tuple(shards)))
        passed = Passed(100_000, 1_000, int(self._at), int(self._at), 1_000 * int(self._at))
        bundles = BundleReport(
            _stage(level),
            task,
            worker=f"host-{task}:1",
            bundles=1,
            elements_in=1_000,
            elements_out={level: 1_000},
            passed={level: passed},
        )
        return LevelReport(report, (bundles,)).blob()

    def _stage(self, level: int, shard: int, active: bool) -> StageReport:
        if active or (level, shard) not in self._held:
            self._held[level, shard] = Timestamp(_AHEAD + self._random.randrange(1_000_000_000))
        held = self._held[level, shard]
        counts = Counts(100, 100) if active else Counts()
        if level > 1:
            hold = Hold(held, HolderKind.TIMER, "end of window", key=f"key {shard}")
            return StageReport(
                _stage(level), shard, self._at, Local(None, {"out": OutputTime(None, hold)}), next_event=held,
                counts=counts,
            )  # fmt: skip
        live = self._size.partitions if level == 0 else self._size.live - self._size.partitions
        live = live * (shard + 1) // self._size.shards - live * shard // self._size.shards
        pending = Hold(held, HolderKind.RESIDUAL, f"root {shard}~{shard:024x}", about="a file")
        movable = tuple(
            Movable(f"{level:02d}{shard:06d}{n:04d}".encode(), 1.0 + n / 7, bytes(_HANDED))
            for n in range(min(live - 1, _MOVABLE))
        )
        restrictions = Restrictions(live, live * 1.5, (), (), movable, min(live, 1_000))
        time = OutputTime(replace(pending, output="out"), None)
        return StageReport(
            _stage(level), shard, self._at, Local(pending, {"out": time}), next_due=Timestamp(_START), counts=counts,
            restrictions=restrictions,
        )  # fmt: skip

    def _written(
        self, order: TaskAssignment, level: int, shard: int, files: tuple[ShardFile, ...]
    ) -> tuple[ShardFile, ...]:
        micro_batch = order.plan.micro_batch
        first = worth_merging(files)
        if first is not None:
            run = files[first:]
            size = sum(file.size for file in run)
            merged = self._file(order, level, shard, "merged", size, run[0].first_micro_batch if first else 0)
            kind = FileKind.DELTA if first else FileKind.SNAPSHOT
            files = (*files[:first], replace(merged, kind=kind, last_micro_batch=run[-1].last_micro_batch))
        return (*files, self._file(order, level, shard, "delta", 20_000, micro_batch))

    def _file(self, order: TaskAssignment, level: int, shard: int, what: str, size: int, first: int) -> ShardFile:
        micro_batch = order.plan.micro_batch
        attempt = f"{micro_batch}.0.{level}.{shard}.{self._random.getrandbits(32):08x}.{what}"
        name = written_name(Written(level, shard, micro_batch, order.epoch, attempt, "delta"))
        self._blobs.put(name, b"")
        self.files += 1
        rows = tuple(Owned(bytes([kind, level]), size // _ROW // 3, size // 3) for kind in (1, 2, 3))
        key = self._random.randbytes(30)
        return ShardFile(
            name,
            FileKind.DELTA,
            size,
            self._random.getrandbits(32),
            size // _ROW,
            3,
            key,
            key,
            first,
            micro_batch,
            rows,
        )


@dataclass(slots=True)
class MicroBatchCost:
    """What a micro-batch cost the driver.

    Attributes:
        seconds: processor time of the driver.
        parts: the same, by part.
        requests: requests to the store.
        manifest: bytes.
        reports: bytes of the tasks' reports.
        plan: bytes of what is sent to the tasks.
    """

    seconds: float
    parts: dict[str, float]
    requests: int
    manifest: int
    reports: int
    plan: int


class DrivenJob:
    """A driver of a job whose tasks are made up. It is the cluster, the sinks and the watch of the driver, too.

    Args:
        size: of the job.
        blobs: the job's folder; a folder with a job resumes it.
        tasks: the tasks.
        clock: processor time, in seconds.
    """

    def __init__(
        self, size: Size, blobs: CountedBlobs, tasks: Tasks, clock: Callable[[], float] = time.process_time
    ) -> None:
        self._size, self._blobs, self._tasks, self._clock = size, blobs, tasks, clock
        self._moment, self._inbox, self._counters = Moment(), Inbox(), Counters()
        self._parts: Counter[str] = Counter()
        self._reader = ReportReader()
        self._outside = 0.0
        self._reports = self._plan = 0
        self._assignment: TaskAssignment | None = None
        layout = layout_of(size)
        shape = JobShape("plan", size.shards, tuple(StageShape(p.name, p.level, "cells") for p in layout.stages))
        began = clock()
        self.log = CommitLog.open(blobs, shape, self._moment.now(), driver="bench")
        history = self._history = HistoryWriter(blobs, self.log, self._moment)
        commits = LogCommits(self.log, layout, {}, _ignore, figures=self._figures)
        self._levels = {placed.name: placed.level for placed in layout.stages}
        self._ports = {(placed.name, placed.level): placed.ports[0] for placed in layout.stages}
        self._layout = layout
        self.machine = JobMachine(layout)
        self.driver = JobDriver(self.machine, commits, self, self, self._inbox, self._moment, self)
        self._handle(started(self.log.head, layout, self._moment.now()))
        self.recovery = clock() - began
        assert history is not None

    def micro_batch(self) -> MicroBatchCost:
        """Run a micro-batch, from the arrival of its reports to the start of the next one."""
        assert self._assignment is not None
        order, self._assignment = self._assignment, None
        blobs = self._tasks.run(order)
        self._moment.at = shifted(self._moment.at, _STEP)
        self._parts.clear()
        before, manifest = self._blobs.requests.total, self._blobs.requests.bytes
        began = self._clock()
        reports = [LevelReport.from_blob(blob, self._reader) for blob in blobs]
        bundles = [each for report in reports for each in report.bundles]
        self._counters.ran(order.plan.micro_batch, bundles)
        self._parts["reports"] += self._clock() - began
        tasks = tuple(report.task for report in reports)
        self._handle(MicroBatchReported(self._moment.now(), order.plan.micro_batch, order.plan.attempt, _STEP, tasks))
        seconds = self._clock() - began
        assert self.log.head.micro_batch == order.plan.micro_batch
        return MicroBatchCost(
            seconds,
            dict(self._parts),
            self._blobs.requests.total - before,
            self._blobs.requests.bytes - manifest,
            sum(map(len, blobs)),
            self._plan,
        )

    def _handle(self, event: Event | None) -> None:
        while event is not None:
            self.driver.handle(event)
            event = self._inbox.events.popleft() if self._inbox.events else None

    def _figures(self) -> dict[str, Any]:
        return self._counters.figures(self.log.head.micro_batch + 1, self._levels, self._ports)

    # The cluster.

    def run(self, order: TaskAssignment) -> None:
        began = self._clock()
        given = [
            encoded(LevelInput(order.of_level(level, {placed.name for placed in self._layout.at(level)}, ())))
            for level in range(order.plan.first, self._size.levels)
        ]
        self._plan, self._assignment = sum(map(len, given)), order
        self._parts["assignments"] += self._clock() - began

    def abandon(self, micro_batch: int, attempt: int) -> None:
        raise AssertionError

    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        raise AssertionError

    def shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        raise AssertionError

    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        raise AssertionError

    def publish(self, micro_batch: int, committables: Sequence[Any]) -> None:
        raise AssertionError

    # The watch.

    def handled(self, event: Event, commands: Sequence[Any]) -> None:

        if isinstance(event, CommitDecided):
            began = self._clock()
            self._counters.committed(event.micro_batch, self.machine.head.times, _STEP)  # type: ignore[union-attr]
            status_of(self.log.head)
            self._parts["status"] += self._clock() - began
        self._history.handled(event)

    def begins(self, command: Any) -> None:
        pass

    def warn(self, text: str) -> None:
        raise AssertionError(text)

    def swept(self, swept: Any) -> None:
        if isinstance(swept, Exception):
            raise swept


def _ignore(text: str) -> None:
    del text
