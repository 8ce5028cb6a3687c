"""What becomes of the error of a task's attempt: whether Spark tries it again, and what the user is shown."""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.errors import ArcbeamError, UserCodeError
from arcbeam.fnapi.lost import SdkWorkerLostError, SdkWorkerNotStartedError, WorkerAccount
from arcbeam.harness.bundle import usererrors
from arcbeam.spark.streaming.leveldata import error_stage
from arcbeam.spark.streaming.rows import InputLostError
from arcbeam.spark.tasks import failure, lostattempts
from arcbeam.spark.tasks.sdkworkers import losses, starts
from arcbeam.store.jobtemp.location import JobLocation


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task whose attempt has failed.

    Attributes:
        plan: its micro-batch.
        of: the task in the run of the micro-batch.
        number: the number of the attempt, from 0.
        stage: the name of the stage that ran last.
        step: the transform that failed; the stage if it is unknown.
        about: what user code was processing when it was called last.
    """

    plan: MicroBatchPlan
    of: lostattempts.TaskRun
    number: int
    stage: str
    step: str
    about: str


def raised_to_spark(
    failed: FailedTask, location: JobLocation, error: BaseException, lost: WorkerAccount | None
) -> BaseException:
    """Return what to raise to Spark. A recorded error ends this run of the micro-batch, but not a later run.

    Args:
        failed: the task.
        location: the job's temporary location.
        error: with which it failed.
        lost: how the SDK worker ended that the task has lost; None: it has lost none.
    """
    if isinstance(error, InputLostError):
        return error
    described: ArcbeamError | None = None
    if isinstance(error, SdkWorkerNotStartedError):
        described = starts.described(location, error)
    elif lost is None:
        described = usererrors.described(error, failed.step)
    elif lost.idle:
        # Perhaps many have ended together, with their pool: each attempt replaces one, so Spark may try again.
        error = SdkWorkerLostError(str(lost))
    else:
        died = losses.described(lost, failed.step, failed.stage)
        if failed.number > 0:
            # Spark would have two more attempts, and the driver has more tries. One task alone is retried once.
            described = died
        else:
            losses.record_loss(location, error_stage(failed.plan), died)
            error = SdkWorkerLostError(died.message)
    if isinstance(described, UserCodeError):
        context = f"in micro-batch {failed.plan.micro_batch}", failed.about, usererrors.element_of(error)
        described = described.about(", ".join(filter(None, context)))
    if described is not None:
        return failure.record(location, error_stage(failed.plan), described)
    escaped = failure.unrecorded(error, failed.step)
    lostattempts.record_failure(location, failed.of, failed.number, escaped)
    return escaped
