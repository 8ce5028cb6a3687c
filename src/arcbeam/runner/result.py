"""What the user holds of a job that was submitted in this process: its state, and ways to steer it.

Owns the job's thread, and the translation of its end into Beam's terms.
"""

from __future__ import annotations

import threading

from apache_beam.runners.runner import PipelineResult, PipelineState

from arcbeam.errors import JobCancelledError, UserCodeError
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.jobs.termination import SIGTERMS, TERMINATED, await_event
from arcbeam.model.plan import Plan
from arcbeam.runner.job import Asking, Job, Message
from arcbeam.store.log.requests import Asked
from arcbeam.streaming.status.status import Status


class ArcbeamResult(PipelineResult):  # type: ignore[misc]  # Beam is untyped
    """A submitted job, running on a thread of its own.

    Its `state` is RUNNING, DRAINING or CANCELLING while it runs, and then DONE, DRAINED, STOPPED (suspended: it can be
    resumed), CANCELLED or FAILED.

    Attributes:
        job_id: unique.
        plan: what was made of the pipeline.
    """

    def __init__(self, plan: Plan, job: Job) -> None:
        super().__init__(PipelineState.RUNNING)
        self.job_id, self.plan, self._job = job.id, plan, job
        self._error: BaseException | None = None
        # SUBTLE: not the thread's `join`: one that Ctrl-C interrupts takes the thread for ended (Python 3.11).
        self._ended = threading.Event()
        # Before it runs: a SIGTERM that finds no job kills, and the job could not report how it ended.
        SIGTERMS.add(job)
        threading.Thread(target=self._work, name=f"job-{job.id}", daemon=True).start()

    def _work(self) -> None:
        try:
            self._state = self._job.run()
        except BaseException as e:
            self._error = e
            cancelled = self._job.cancelled or isinstance(e, JobCancelledError)
            self._state = PipelineState.CANCELLED if cancelled else PipelineState.FAILED
        finally:
            self._ended.set()

    @property
    def state(self) -> str:
        """The state as it is now."""
        return self._state if self._ended.is_set() else self._job.state

    def wait_until_finish(self, duration: float | None = None) -> str:
        """Waits.

        Args:
            duration: milliseconds to wait at most; None: until the job ends.

        Returns:
            The state.

        Raises:
            UserCodeError, JobFailedError, …: why the job failed.
            SystemExit: with code 143, if a SIGTERM to this process has suspended or cancelled the job: what the program
                does with a job that is done is not to be done. It is raised when all jobs of this process have ended
                that were told to. One that was drained for it is DRAINED, as ever.
        """
        SIGTERMS.add(self._job)
        try:
            await_event(self._ended, None if duration is None else duration / 1000)
        except KeyboardInterrupt:
            self.cancel()
            raise
        told = self._ended.is_set() and SIGTERMS.ended(self._job)
        if told and self._state in (PipelineState.STOPPED, PipelineState.CANCELLED):
            SIGTERMS.await_told()
            raise SystemExit(TERMINATED)
        if self._error is not None and self._state != PipelineState.CANCELLED:
            if isinstance(self._error, UserCodeError):
                # It holds the user's own traceback; ours, which would grow each time it is raised, helps nobody.
                raise self._error.with_traceback(None)
            raise self._error
        return self.state

    def cancel(self) -> str:
        """Ends the job at once, and waits for that. A streaming job can be resumed from what it has committed."""
        if not self._ended.is_set():
            self._job.cancel()
            await_event(self._ended)
        return self.state

    def savepoint(self, name: str | None = None) -> str:
        """Gives a micro-batch of a streaming job a name, and keeps it; the job goes on. Waits until that is committed.

        Args:
            name: up to 100 letters, digits, '.', '_' and '-'; None: one that says when this was.

        Returns:
            The savepoint's path, for `arcbeam resume`, `arcbeam inspect` and --checkpoint_dir.

        Raises:
            RequestRefusedError: the name is none, or taken; the job has ended, runs in phases, or has no
                --checkpoint_dir.
        """
        return self._asked(Asked.SAVEPOINT, name).path

    def drain(self, savepoint: str | None = None) -> str:
        """Has a streaming job finish what it has, and take in nothing more: all windows and timers fire.

        Waits until it is committed that the job drains, which then outlives its driver; not for the end.

        Args:
            savepoint: name of the last micro-batch; None: one that says when this was.

        Returns:
            The state: DRAINING, or how the job has ended.

        Raises:
            RequestRefusedError: the job is being suspended, has ended, or runs in phases.
        """
        self._asked(Asked.DRAIN, savepoint)
        return self.state

    def suspend(self, savepoint: str | None = None) -> str:
        """Stops a streaming job so that it can go on later, and waits for that: no window and no timer fires for it.

        Args:
            savepoint: name of the last micro-batch; None: one that says when this was.

        Returns:
            The savepoint's path. The job goes on where it is when it is submitted, or resumed, with its folder.

        Raises:
            RequestRefusedError: the job is draining, has ended, runs in phases, or has no --checkpoint_dir.
        """
        path = self._asked(Asked.SUSPEND, savepoint).path
        self.wait_until_finish()
        return path

    def _asked(self, what: Asked, savepoint: str | None) -> Asking:
        asking = self._job.ask(what, savepoint or "")
        asking.wait()
        return asking

    def status(self) -> Status | None:
        """Where a streaming job stands, as of its newest micro-batch: watermarks, what each waits for, and what would
        free it.

        Returns:
            The same that `arcbeam status` shows; None of a job that runs in phases, and before the first commit.
        """
        return self._job.status()

    def messages(self) -> list[Message]:
        """What a streaming job has said so far, the last thousand: each micro-batch, where it is heading, warnings."""
        return self._job.messages()

    def metrics(self) -> JobMetrics:
        """User metrics as they are now: committed values, and attempted ones of all that ran, committed or not."""
        return JobMetrics(self._job.metrics(), True, self._job.attempted())

    def monitoring_metrics(self) -> JobMetrics:
        """The same, with the SDK's own."""
        return JobMetrics(self._job.metrics(), False, self._job.attempted())
