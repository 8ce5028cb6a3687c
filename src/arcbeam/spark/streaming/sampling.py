"""Samples of stages, in the task of a micro-batch that carries a request for them.

Owns the stages that are open only for that, beside those that run in every other micro-batch, and the files with what
they have taken. Must not know who requests samples.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from arcbeam.engine.task.taskstage import TaskStage
from arcbeam.errors import ArcbeamError
from arcbeam.model.rows import BundleReport
from arcbeam.spark.tasks.openstages import open_stages
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.streaming.assignment import SampleOrder
from arcbeam.streaming.status.samples import record_samples

_LOG = logging.getLogger("arcbeam.task")

_open: Final[set[tuple[str, Hashable]]] = set()
"""Sampled stages that stay open for the next micro-batch, because they have had no element yet: job and key."""


def _key(stage: str) -> Hashable:
    return "sampled", stage


class TaskSampling:
    """The requests for samples that a task carries out.

    Args:
        orders: the requests of the micro-batch.
        job: the id of the job's run.
        level: the level of the task.
        task: its number.
        blobs: the job's folder.
    """

    def __init__(self, orders: Sequence[SampleOrder], job: str, level: int, task: int, blobs: DurableBlobs) -> None:
        self._job, self._level, self._task, self._blobs = job, level, task, blobs
        self._requests: dict[str, list[str]] = {}
        for order in orders:
            self._requests.setdefault(order.stage, []).append(order.request)
        self._stages: dict[str, Any] = {}
        self._staying: set[str] = set()
        for job_id, key in [each for each in _open if each[0] == job and each[1] not in map(_key, self._requests)]:
            # No request is open any more.
            self._close(job_id, key)

    def wants(self, stage: str) -> bool:
        """Return whether there is a request for a stage."""
        return stage in self._requests

    def opened(self, stage: str, open: Callable[[Hashable], TaskStage]) -> TaskStage:
        """Return the stage that takes samples.

        Args:
            stage: its uid.
            open: returns the open stage of a key, or opens one.
        """
        _open.add((self._job, _key(stage)))
        found = self._stages[stage] = open(_key(stage))
        return found

    def begun(self, stage: str, open: TaskStage) -> TaskStage:
        """Return a stage that takes samples in this task, and otherwise runs like every other one.

        It shares an SDK worker with other stages, so it is not opened and closed for samples.

        Args:
            stage: its uid.
            open: the open stage; its user code runs in an SDK worker.
        """
        found: Any = open
        found.code.begin_samples()
        self._staying.add(stage)
        self._stages[stage] = open
        return open

    def mark(self, reports: Sequence[BundleReport]) -> None:
        """Mark the reports of stages with samples. Most are closed when the task ends: no worker holds them then."""
        for report in reports:
            if report.stage in self._stages and self._stages[report.stage].samples():
                report.sampled = True
                if report.stage not in self._staying:
                    report.needs_teardown, report.graceful = False, ()

    def ended(self) -> None:
        """The task has succeeded: write what was taken, and close the stages that have taken something."""
        for stage, open in self._stages.items():
            if outputs := open.samples():
                self._record(stage, outputs, None)
            if stage in self._staying:
                open.code.end_samples()
            elif outputs:
                self._close(self._job, _key(stage))

    def failed(self, stage: str, failure: dict[str, Any] | None) -> None:
        """The task has failed: write what was taken, and the failure. The caller closes all stages of the job.

        Args:
            stage: that ran last.
            failure: as from `arcbeam.harness.bundle.samples.failure_record`.
        """
        for name, open in self._stages.items():
            outputs = open.samples()
            if outputs or (failure is not None and name == stage):
                self._record(name, outputs, failure if name == stage else None)

    def _record(self, stage: str, outputs: Sequence[dict[str, Any]], failure: dict[str, Any] | None) -> None:
        for request in self._requests[stage]:
            try:
                record_samples(self._blobs, request, self._level, self._task, {"outputs": outputs, "failure": failure})
            except ArcbeamError as e:
                # Samples must not make a micro-batch fail.
                _LOG.warning("could not write samples of stage %r: %s", stage, e)

    @staticmethod
    def _close(job: str, key: Hashable) -> None:
        _open.discard((job, key))
        open_stages.discard(job, key)
