"""What a task of a level receives of its micro-batch, and what it reports to the driver."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.model.rows import BundleReport
from arcbeam.streaming.assignment import SampleOrder, TaskAssignment
from arcbeam.streaming.reportcodec import ReportReader, packed
from arcbeam.streaming.task.finalizing import Confirmed


@dataclass(frozen=True, slots=True)
class LevelReport:
    """A task's report to the driver.

    Attributes:
        task: the report to the job's machine.
        bundles: the reports of the stages' bundles.
        failed: why earlier attempts of the task failed; see `lostattempts.earlier`.
    """

    task: TaskReport
    bundles: tuple[BundleReport, ...]
    failed: tuple[str, ...] = ()

    def blob(self) -> bytes:
        """Return the report as bytes."""
        return pickle.dumps((packed(self.task), self.bundles, self.failed), protocol=5)

    @staticmethod
    def from_blob(blob: bytes, reader: ReportReader) -> LevelReport:
        """Return the report in bytes, which must come from this job."""
        task, bundles, failed = pickle.loads(blob)
        return LevelReport(reader.read(task), bundles, failed)


@dataclass(frozen=True, slots=True)
class LevelInput:
    """The data of a micro-batch for the tasks of a level.

    Attributes:
        order: the assignment, with the state of this level.
        confirmed: attempts that have been committed since the last micro-batch.
        samples: requests for samples of stages of the level.
    """

    order: TaskAssignment
    confirmed: tuple[Confirmed, ...] = ()
    samples: tuple[SampleOrder, ...] = ()


def property_of(level: int) -> str:
    """Return the name of the Spark job's property with the data of a micro-batch for the tasks of a level."""
    return f"arcbeam.level.{level}"


def error_stage(plan: MicroBatchPlan) -> str:
    """Return the name under which the errors of a run of a micro-batch are recorded."""
    return f"step-{plan.micro_batch}-{plan.attempt}"
