"""Streaming jobs in this process, without Spark: the real driver, tasks, SDK stages and folder.

Only what Spark does is replaced: the tasks of a micro-batch run one after the other, one for each level, on the
driver's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from typing_extensions import override

from arcbeam.engine.coordinator import (
    Event,
    Finalized,
    MicroBatchFailed,
    MicroBatchReported,
    Published,
    ShutDown,
    TornDown,
)
from arcbeam.errors import JobCancelledError, WorkerLostError
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.commits import Committable
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.options import ArcbeamOptions
from arcbeam.spark.streaming import streamingjob
from arcbeam.spark.streaming.cluster import may_go_better
from arcbeam.spark.streaming.leveldata import LevelInput, LevelReport
from arcbeam.spark.streaming.leveltask import LevelTask
from arcbeam.spark.streaming.rows import ORDER, SCHEMA, reports_in
from arcbeam.spark.streaming.streamingjob import StreamRun
from arcbeam.spark.tasks.openstages import open_stages
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.interfaces import Cluster, JobListener
from arcbeam.streaming.reportcodec import ReportReader
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.proto import pipeline_proto, plan_of

Fault = Callable[[TaskAssignment], BaseException | None]


def hangs(order: TaskAssignment) -> BaseException | None:
    """No task of a micro-batch gets a free core."""
    return TimeoutError()


def dies(order: TaskAssignment) -> BaseException | None:
    """A worker dies in each run of micro-batch 2."""
    return WorkerLostError("a worker died", died=True, step="Meter/Read") if order.plan.micro_batch > 1 else None


class InProcess(Cluster):
    """See `arcbeam.spark.streaming.cluster.SparkCluster`, which has the same arguments and attributes.

    Attributes:
        fault: the failure of a run of a micro-batch; a TimeoutError: it never ends.
    """

    fault: Fault | None = None

    def __init__(self, spark: object, job: Any, inbox: Any, clock: Any, slots: int, on_reports: Any, *_: Any) -> None:
        self._job, self._inbox, self._clock, self._on_reports = job, inbox, clock, on_reports
        self._reader = ReportReader()
        self.failure: Any = None
        self.planned = 0.0

    @override
    def run(self, order: TaskAssignment) -> None:
        plan, began = order.plan, time.monotonic()
        failed = None if self.fault is None else self.fault(order)
        if isinstance(failed, TimeoutError):
            return
        try:
            if failed is not None:
                raise failed
            reports = [LevelReport.from_blob(blob, self._reader) for blob in self._levels(order)]
        except Exception as e:
            self.failure, died = e, isinstance(e, WorkerLostError) and e.died
            event: Event = MicroBatchFailed(
                self._clock.now(), plan.micro_batch, plan.attempt, str(e), may_go_better(e), False, died
            )
        else:
            self._on_reports(plan.micro_batch, [each for report in reports for each in report.bundles])
            took = Duration(round((time.monotonic() - began) * 1e6))
            tasks = tuple(report.task for report in reports)
            event = MicroBatchReported(self._clock.now(), plan.micro_batch, plan.attempt, took, tasks)
        self._inbox.put(event)

    def _levels(self, order: TaskAssignment) -> Iterator[bytes]:
        physical, first = self._job.physical, order.plan.first
        rows: list[dict[str, Any]] = []
        for level in range(first, len(physical.layout.tasks)):
            stages = {placed.name for placed in physical.layout.at(level)}
            task = LevelTask(
                self._job.location, level, LevelInput(order.of_level(level, stages, physical.sides_of[level]))
            )
            rows.sort(key=lambda row: tuple(row[name] for name in ORDER))
            arrived = pa.RecordBatch.from_pylist(rows, SCHEMA)
            rows = [row for batch in task(iter([arrived])) for row in batch.to_pylist()]
        return reports_in((row["stage"], row["blob"]) for row in rows)

    def publish(self, micro_batch: int, committables: Sequence[Committable], *, again: bool) -> None:
        self._inbox.put(Published(self._clock.now(), micro_batch))

    @override
    def abandon(self, micro_batch: int, attempt: int) -> None: ...

    @override
    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        self._inbox.put(Finalized(self._clock.now(), micro_batch))

    @override
    def shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        self._inbox.put(ShutDown(self._clock.now()))

    @override
    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        open_stages.close_job(self._job.id)
        self._inbox.put(TornDown(self._clock.now()))

    def sweep(self, micro_batch: int) -> None: ...

    def close(self, *, hasty: bool = False) -> None: ...


@contextmanager
def without_spark(fault: Fault | None = None) -> Iterator[None]:
    """Streaming jobs in the block run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamingjob, "SparkCluster", InProcess)
        patch.setattr(streamingjob, "default_parallelism", lambda _: 1)
        patch.setattr(InProcess, "fault", staticmethod(fault) if fault is not None else None)
        yield


def run_of(build: Callable[[beam.Pipeline], object], folder: Path, listener: JobListener, **how: Any) -> StreamRun:
    """Return a run of a pipeline, with its job in `folder / "job"`; use it in a block of `without_spark`."""
    options = PipelineOptions(["--streaming"])
    p = beam.Pipeline(options=options)
    build(p)
    plan = plan_of(ParsedPipeline(pipeline_proto(p, options)), options.view_as(ArcbeamOptions), name="blocked")
    settings = TaskSettings(shards=1, quick_tasks=False, backlog_micro_batch_seconds=0.5)
    location = JobLocation.under(str(folder / "temporary"), "blocked")
    return StreamRun(plan, None, settings, folder.name, location, str(folder / "job"), listener, **how)  # type: ignore[arg-type]


def ends_cancelled(run: StreamRun) -> None:
    """Run a job to its end, which must be a cancellation."""
    with pytest.raises(JobCancelledError):
        run.run()
