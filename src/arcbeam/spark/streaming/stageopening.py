"""Opens stages in a Python worker: for a task, or only for their `shutdown`.

Owns whether a stage's user code runs in this process or in an SDK worker.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from arcbeam.engine.task.taskstage import TaskStage
from arcbeam.spark.streaming.sampling import TaskSampling
from arcbeam.spark.streaming.workerjob import StreamingJob, worker_job
from arcbeam.spark.tasks.openstages import open_stages
from arcbeam.spark.tasks.sdkworkers import starts
from arcbeam.spark.tasks.shipping import WorkerSetup
from arcbeam.store.jobtemp.location import JobLocation


class StageOpener:
    """Opens the stages of a task, or returns them as they stayed open after an earlier task.

    Args:
        job: the job.
        sampling: of the task's stages.

    Attributes:
        opening: the name of the stage that is being opened; "" if none is.
    """

    def __init__(self, job: StreamingJob, sampling: TaskSampling) -> None:
        self._job, self._sampling = job, sampling
        self.opening = ""

    def open(self, stage: str) -> TaskStage:
        """Return a stage, by its uid."""
        self.opening = stage
        try:
            if not self._sampling.wants(stage):
                return self._kept_open(stage, stage)
            if self._job.physical.stages[stage].remote is None:
                return self._sampling.opened(stage, partial(self._kept_open, stage, sampled=True))
            return self._sampling.begun(stage, self._kept_open(stage, stage))
        finally:
            self.opening = ""

    def _kept_open(self, stage: str, key: Hashable, *, sampled: bool = False) -> TaskStage:
        job = self._job
        return open_stages.get(
            job.id,
            key,
            partial(opened, job, stage, sampled=sampled),
            job.location,
            job.worker_setup,
            quick=job.settings.quick_tasks,
            most=len(job.physical.layout.stages),
        )


@dataclass(frozen=True, slots=True)
class OpenGraceful:
    """Opens a stage in a worker only for its `shutdown`; returns None if no DoFn has one.

    Attributes:
        location: the job's temporary location.
        stage: the stage's uid.
    """

    location: JobLocation
    stage: str

    def __call__(self) -> TaskStage | None:
        """Open the stage."""
        job = worker_job(self.location).job
        if job.worker_setup is not None:
            job.worker_setup()
        # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
        from arcbeam.harness.bundle.graceful import offers

        return opened(job, self.stage) if offers(job.physical.stages[self.stage]) else None


def opened(job: StreamingJob, stage: str, *, sampled: bool = False) -> TaskStage:
    """Open a stage in this worker: its user code runs in this process, or in an SDK worker."""
    # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
    placed = job.physical.stages[stage]
    if placed.remote is not None or placed.merges_in_worker:
        from arcbeam.fnapi.environments.workers import StageWorkers
        from arcbeam.fnapi.service.provision import Provision
        from arcbeam.fnapi.stage.remotestage import open_with_workers

        setup = job.worker_setup
        given = (setup.sdk_options, setup.sdk_folders(), setup.restart) if isinstance(setup, WorkerSetup) else ()
        workers = StageWorkers(job.id, Provision(job.id, *given))
        made = open_with_workers(placed, job.settings, workers, sampled=sampled)
        starts.started(job.location, workers.environments)
        return made
    from arcbeam.harness.streaming.stagecode import EmbeddedCode
    from arcbeam.harness.streaming.stageparts import StageParts
    from arcbeam.harness.streaming.streamingstage import StreamingStage

    return StreamingStage(EmbeddedCode(StageParts(placed, job.settings, sampled=sampled)))
