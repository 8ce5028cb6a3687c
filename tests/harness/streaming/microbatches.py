"""Plans whose stages with keys run in streaming mode: the engine's stage on the SDK's bundle processor, in this
process.

For tests: one shard; around a stage there is nothing but what it asks for. What comes to it is cut into micro-batches
by a `Cut`; everything else of the plan runs as `tests.harness.drive` has it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arcbeam.engine.grouping.groupings import Elements, WindowedElement
from arcbeam.engine.protocol.layout import Placed
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget, MicroBatchPlan
from arcbeam.engine.protocol.reports import StageReport
from arcbeam.engine.rows.keyspace import Kind
from arcbeam.engine.task.bundles import BundleResult
from arcbeam.engine.task.stagecontext import StageContext
from arcbeam.engine.task.stagerun import StageRun
from arcbeam.engine.watermarks.clocks import Clock
from arcbeam.engine.watermarks.stages import StageFlow, Times
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.harness.streaming.runner import StreamingRunner
from arcbeam.harness.streaming.streamingstage import StreamingStage
from arcbeam.model.plan import Stage
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.testing.views import MemoryView
from tests.harness.drive import Driven, _collected, _Drive, _ListOutbox

_BEGINNING = Timestamp(0)
NUMBER = 7
"""The stage's, in its rows."""
STAYS = {Kind.CLOCK, Kind.ARRIVALS}
"""Rows that a job keeps when all is done."""


@dataclass(frozen=True)
class MicroBatch:
    """What happens in a micro-batch.

    Attributes:
        came: what comes, by key, in this order.
        upstream: how far the upstream watermark moves.
        now: the clock.
        looks: of the budget.
        runs: how often it is run: of all runs the last one counts.
        fresh: in a worker that has not run the stage before.
        drain: restrictions are truncated.
        takes: how far the clock is ahead of the micro-batch's recorded time when a restriction returns.
        late: how far the host's clock is behind the job's.
        pieces: into how many what is checkpointed is cut.
        until: the budget is not exhausted before it is set.
        prepare: nothing else is left to do.
    """

    came: Sequence[tuple[bytes, Elements]]
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
"""Runs micro-batches over what comes to a stage, which is given in the order in which it would come."""


class InMicroBatches(Driven):
    """See `Driven`; stages that read by key run in streaming mode.

    Args:
        cut: into micro-batches; None: all that comes is one micro-batch, as it comes, and the watermark is at the end
            behind it.

    Attributes:
        left: the rows of each such stage when all is done, but for those that stay.
        stage_reports: of all micro-batches.
        drops: what came too late.
    """

    _bounded = False

    def __init__(self, cut: Cut | None, **settings: Any) -> None:
        super().__init__(shards=1, **settings)
        self._cut = cut
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
        if stage.source is None or not (stage.splittable or stage.stable or keyed):
            super()._run(stage)
            return
        rows = [row for rows in self._exchanged(self._plan.channels[stage.source]) for row in rows]
        shard = Shard(stage, self._settings, self._sides, self._streaming.run_id)
        try:
            if self._cut is None:
                shard.run(MicroBatch(list(shard.stage.elements(rows)), MAX_TIMESTAMP))
            else:
                self._cut(shard, [(key, one) for key, some in shard.stage.elements(rows) for one in some])
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
    """A stage in its one shard, from micro-batch to micro-batch; also all that is around it."""

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
        self.stage = StreamingStage(self.of, self.settings)
        self.view = MemoryView()
        self.committed_output = MIN_TIMESTAMP
        self._looks = 0
        self._until: threading.Event | None = None
        self._came: Sequence[tuple[bytes, Elements]] = ()

    def run(self, micro_batch: MicroBatch) -> StageReport:
        """Runs a micro-batch; what it has done is real when this returns."""
        if micro_batch.fresh:
            self.stage.close()
            self.stage = StreamingStage(self.of, self.settings)
        seen = {name: len(of) for name, of in _collected.items()}
        committed = self.view.snapshot()
        for _ in range(micro_batch.runs):
            # What another run has done is as if it had not been.
            for name, of in _collected.items():
                del of[seen.get(name, 0) :]
            dropped = len(self.drops)
            self.view = MemoryView(committed)
            report, outbox, task = self._attempt(micro_batch)
            late, self.drops = self.drops[dropped:], self.drops[:dropped]
        self.drops += late
        self.rows += outbox.rows
        self.reports.append(task)
        self.stage_reports.append(report)
        self.micro_batches += 1
        self.now, self.drain = micro_batch.now, micro_batch.drain
        return report

    def settle(self, micro_batch: MicroBatch) -> None:
        """Runs a micro-batch, and as many without data as its budget leaves work for."""
        for _ in range(1000):
            if not self.run(micro_batch).leftover:
                return
            micro_batch = replace(micro_batch, came=())
        raise AssertionError("it never ends")

    def finish(self) -> None:
        """Runs micro-batches until nothing is left to do."""
        for _ in range(1000):
            report = self.run(MicroBatch((), MAX_TIMESTAMP, self.now, drain=self.drain))
            if not (report.leftover or report.uncommitted) and report.next_due is None:
                return
            self.now = max(self.now, report.next_due or self.now)
        raise AssertionError("it never ends")

    def left_over(self) -> bool:
        """Whether there are rows of anything that is not done."""
        return any(row[0] not in STAYS for row in self.left())

    def left(self) -> list[bytes]:
        """The keys of all rows."""
        return [row for row, _ in self.view.scan(b"")]

    def _attempt(self, micro_batch: MicroBatch) -> tuple[StageReport, _ListOutbox, BundleReport]:
        self._came, self._looks, self._until = micro_batch.came, micro_batch.looks, micro_batch.until
        outbox, task = _ListOutbox(), BundleReport(stage=self.of.id, shard=0)
        processor = self.stage.parts.processor
        processor.begin_task(outbox, 0, self.sides.writer, self.sides)
        spec = self.stage.spec(Placed(StageFlow("it", (), ("main",)), NUMBER, 0))
        task_clock = TaskClock(
            micro_batch.now, lambda: Timestamp(micro_batch.now + micro_batch.takes - micro_batch.late), running=int
        )
        runner = self._runner = StreamingRunner(self.stage.parts, self.view, spec.placed, task_clock)
        clock = Clock(self.view, NUMBER, ("main",))
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
            Times(),
            budget,
            drain=micro_batch.drain,
            pieces={"it": micro_batch.pieces},
            prepare=micro_batch.prepare,
            preparing=frozenset({"it"} if micro_batch.prepare else ()),
        )
        report, closed = StageRun(spec, place, self, {}).run(micro_batch.upstream, plan, ())  # type: ignore[arg-type]
        processor.end_task(task)
        self.closed.append(closed)
        return report, outbox, task

    # What is around the stage.

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        return self._came

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
