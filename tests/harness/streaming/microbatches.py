"""Plans whose keyed stages run in streaming mode, in this process: the engine's stage, on the SDK's bundle processor.

For tests: there is one shard, and only what the stage itself needs. A `Cut` divides its input into micro-batches. The
rest of the plan runs as in `tests.harness.drive`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arcbeam.engine.grouping.groupings import Combined, KeyElements, WindowedElement
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget, MicroBatchPlan
from arcbeam.engine.protocol.reports import StageReport
from arcbeam.engine.rows.keyspace import RowKind
from arcbeam.engine.task.bundles import BundleResult
from arcbeam.engine.task.stagecontext import StageContext
from arcbeam.engine.task.stagerun import StageRun
from arcbeam.engine.watermarks.clocks import Clock
from arcbeam.engine.watermarks.stages import StageFlow, WatermarkTimes
from arcbeam.fnapi.environments.workers import StageWorkers
from arcbeam.fnapi.stage.remotestage import open_with_workers
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.harness.streaming.stagecode import EmbeddedCode
from arcbeam.harness.streaming.stageparts import StageParts
from arcbeam.harness.streaming.streamingstage import StreamingStage
from arcbeam.model.plan import Stage
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE
from arcbeam.testing.views import MemoryView
from tests.harness.drive import Driven, _collected, _Drive, _ListOutbox

_BEGINNING = Timestamp(0)
NUMBER = 7
"""The stage's number in its rows."""
STAYS = {RowKind.CLOCK, RowKind.ARRIVALS}
"""Kinds of rows that a job keeps after its end."""


@dataclass(frozen=True)
class MicroBatch:
    """The events of a micro-batch.

    Attributes:
        arrived: the arriving elements, by key, in this order.
        upstream: the new upstream watermark.
        now: the job's clock.
        looks: number of checks until the budget is exhausted.
        runs: number of runs; the last one counts.
        fresh: whether to use a worker that has not run the stage before.
        drain: whether restrictions are truncated.
        takes: by how much the clock is ahead of the micro-batch's recorded time when a restriction returns.
        late: by how much the host's clock lags the job's.
        pieces: number of pieces into which a checkpointed rest is split.
        until: the budget is not exhausted before this is set.
        prepare: whether no other work is left.
    """

    arrived: Sequence[tuple[bytes, KeyElements | Combined]]
    upstream: Timestamp
    now: Timestamp = _BEGINNING
    looks: int = 1_000_000
    runs: int = 1
    fresh: bool = False
    drain: bool = False
    takes: Duration = Duration(0)  # noqa: RUF009  # a number to everybody but the type checker
    late: Duration = Duration(0)  # noqa: RUF009  # as above
    pieces: int = 1
    until: threading.Event | None = None
    prepare: bool = False


Cut = Callable[["Shard", list[tuple[bytes, WindowedElement]]], None]
"""Runs micro-batches over the input of a stage, which is passed in its order of arrival."""


class InMicroBatches(Driven):
    """See `Driven`; keyed stages run in streaming mode.

    Args:
        cut: divides into micro-batches; None: the whole input is one micro-batch, after which the watermark is at the
            end.
        before: with that, the watermark at which the input arrives; None: at the beginning.

    Attributes:
        left: the rows of each such stage at the end, except for kinds that stay.
        stage_reports: reports of all micro-batches.
        drops: the elements that were too late.
    """

    _bounded = False

    def __init__(self, cut: Cut | None, before: Timestamp | None = None, **settings: Any) -> None:
        super().__init__(shards=1, **settings)
        self._cut, self.before = cut, before
        self.left: list[bytes] = []
        self.stage_reports: list[StageReport] = []
        self.drops: list[Any] = []

    def _drive(self, *around: Any) -> list[BundleReport]:
        return _StreamingDrive(self, self._cut, *around).run()


class _StreamingDrive(_Drive):
    def __init__(self, streaming: InMicroBatches, cut: Cut | None, *around: Any) -> None:
        super().__init__(*around)
        self._streaming, self._cut = streaming, cut

    def _run(self, stage: Stage) -> None:
        keyed = stage.source is not None and self._plan.channels[stage.source].routing == "keyed"
        if stage.remote is None and (stage.source is None or not (stage.splittable or stage.stable or keyed)):
            super()._run(stage)
            return
        self._build_sides(stage)
        shard = Shard(stage, self._settings, self._sides, self._streaming.run_id)
        try:
            if stage.source is None:
                arrived: list[tuple[bytes, KeyElements | Combined]] = [
                    (b"", [(b"", MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)])
                ]
            else:
                rows = [row for rows in self._exchanged(self._plan.channels[stage.source]) for row in rows]
                arrived = list(shard.stage.elements(rows))
            if self._cut is None:
                if self._streaming.before is not None:
                    shard.run(MicroBatch((), self._streaming.before))
                shard.run(MicroBatch(arrived, MAX_TIMESTAMP))
            else:
                self._cut(
                    shard, [(key, one) for key, some in arrived if not isinstance(some, Combined) for one in some]
                )
            shard.finish()
        finally:
            shard.stage.close()
        self._reports += shard.reports
        self._outputs[stage.id] = [shard.rows]
        self._streaming.left += [row for row in shard.left() if row[0] not in STAYS]
        self._streaming.stage_reports += shard.stage_reports
        self._streaming.drops += shard.drops


@dataclass
class Shard:
    """A stage in its only shard, over many micro-batches, with all of its surroundings."""

    of: Stage
    settings: Any
    sides: Any
    run_id: str
    rows: list[Any] = field(default_factory=list)
    reports: list[BundleReport] = field(default_factory=list)
    stage_reports: list[StageReport] = field(default_factory=list)
    drops: list[Any] = field(default_factory=list)
    closed: list[BundleResult] = field(default_factory=list)
    micro_batches: int = 0
    now: Timestamp = _BEGINNING
    drain: bool = False

    def __post_init__(self) -> None:
        self.stage = self.opened()
        self.view = MemoryView()
        self.committed_output = self._reached = MIN_TIMESTAMP
        self._looks = 0
        self._until: threading.Event | None = None
        self._arrived: Sequence[tuple[bytes, KeyElements | Combined]] = ()

    def run(self, micro_batch: MicroBatch) -> StageReport:
        """Run a micro-batch, and commit it."""
        if micro_batch.fresh:
            self.stage.close()
            self.stage = self.opened()
        seen = {name: len(of) for name, of in _collected.items()}
        committed = self.view.snapshot()
        for _ in range(micro_batch.runs):
            # Changes of an earlier run are discarded.
            for name, of in _collected.items():
                del of[seen.get(name, 0) :]
            dropped = len(self.drops)
            self.view = MemoryView(committed)
            report, outbox, task = self._attempt(micro_batch)
            late, self.drops = self.drops[dropped:], self.drops[:dropped]
        self._reached = max(self._reached, micro_batch.upstream)
        self.drops += late
        self.rows += outbox.rows
        self.reports.append(task)
        self.stage_reports.append(report)
        self.micro_batches += 1
        self.now, self.drain = micro_batch.now, micro_batch.drain
        return report

    def opened(self, *, sampled: bool = False) -> StreamingStage:
        """Return the stage, newly opened."""
        if self.of.merges_in_worker or self.of.remote is not None:
            return open_with_workers(self.of, self.settings, StageWorkers(self.run_id))
        return StreamingStage(EmbeddedCode(StageParts(self.of, self.settings, sampled=sampled)))

    def settle(self, micro_batch: MicroBatch) -> None:
        """Run a micro-batch, and further ones without input as long as its budget leaves work."""
        for _ in range(1000):
            if not self.run(micro_batch).leftover:
                return
            micro_batch = replace(micro_batch, arrived=())
        raise AssertionError("it never ends")

    def finish(self) -> None:
        """Run micro-batches until no work is left."""
        for _ in range(1000):
            report = self.run(MicroBatch((), MAX_TIMESTAMP, self.now, drain=self.drain))
            if not (report.leftover or report.uncommitted) and report.next_due is None:
                return
            self.now = max(self.now, report.next_due or self.now)
        raise AssertionError("it never ends")

    def left_over(self) -> bool:
        """Return whether there are rows of unfinished work."""
        return any(row[0] not in STAYS for row in self.left())

    def left(self) -> list[bytes]:
        """Return the keys of all rows."""
        return [row for row, _ in self.view.scan(b"")]

    def _attempt(self, micro_batch: MicroBatch) -> tuple[StageReport, _ListOutbox, BundleReport]:
        self._arrived, self._looks, self._until = micro_batch.arrived, micro_batch.looks, micro_batch.until
        outbox, task = _ListOutbox(), BundleReport(stage=self.of.id, shard=0)
        processor = self.stage.parts.processor
        processor.begin_task(outbox, 0, self.sides.writer, self.sides)
        spec = self.stage.spec(StagePlacement(StageFlow("it", (), ("main",)), NUMBER, 0))
        task_clock = TaskClock(
            micro_batch.now, lambda: Timestamp(micro_batch.now + micro_batch.takes - micro_batch.late), running=int
        )
        runner = self._runner = self.stage.code.runner(self.view, spec.placed, task_clock)
        clock = Clock(self.view, NUMBER, ("main",), self._reached)
        place = StageContext(
            spec.placed,
            0,
            self.micro_batches,
            micro_batch.now,
            self.committed_output,
            self.view,
            clock,
            runner,
            self,
            self,  # type: ignore
        )
        budget = MicroBatchBudget(Duration(1), 1, 1)
        plan = MicroBatchPlan(
            self.micro_batches,
            0,
            micro_batch.now,
            self.micro_batches - 1,
            WatermarkTimes(),
            budget,
            drain=micro_batch.drain,
            pieces={"it": micro_batch.pieces},
            prepare=micro_batch.prepare,
            preparing=frozenset({"it"} if micro_batch.prepare else ()),
        )
        report, closed = StageRun(spec, place, self, {}).run(micro_batch.upstream, plan, ())  # type: ignore[arg-type]
        self.stage.end(task, late=0, closed=0)
        self.closed.append(closed)
        return report, outbox, task

    # The stage's surroundings.

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        return self._arrived

    def late(self, stage: str, shard: int, drop: Any) -> None:
        self.drops.append(drop)
        self._runner.late(drop)

    def exhausted(self) -> bool:
        if self._until is not None:
            return self._until.is_set()
        self._looks -= 1
        return self._looks <= 0

    def part(self, fraction: float) -> Any:
        return self
