"""The user's handle of a job that was submitted in this process: its state, and methods to control it.

Owns the job's thread, and the translation of its end into Beam's terms.
"""

from __future__ import annotations

import threading

from apache_beam.runners.runner import PipelineResult, PipelineState

from arcbeam.errors import JobCancelledError, UserCodeError
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.jobs.termination import SIGTERMS, TERMINATED, await_event
from arcbeam.model.plan import Plan
from arcbeam.runner.job import Job, Message
from arcbeam.runner.requestfuture import RequestFuture
from arcbeam.runner.unawaited import UNAWAITED
from arcbeam.store.log.requests import RequestKind
from arcbeam.streaming.status.status import Status


class ArcbeamResult(PipelineResult):  # type: ignore[misc]  # Beam is untyped
    """A submitted job. It runs on a separate thread.

    If the program ends before the job, the process waits for the job.

    Its `state` is RUNNING, DRAINING or CANCELLING while it runs, and then DONE, DRAINED, STOPPED (suspended: it can be
    resumed), CANCELLED or FAILED.

    Attributes:
        job_id: unique.
        plan: the translated pipeline.
    """

    def __init__(self, plan: Plan, job: Job) -> None:
        super().__init__(PipelineState.RUNNING)
        self.job_id, self.plan, self._job = job.id, plan, job
        self._error: BaseException | None = None
        # SUBTLE: not the thread's `join`: after Ctrl-C interrupts it, it treats the thread as ended (Python 3.11).
        self._ended = threading.Event()
        # Before the job runs: a SIGTERM without a known job kills the process, and the job could not report its end.
        SIGTERMS.add(job)
        UNAWAITED.add(self)
        threading.Thread(target=self._work, name=f"job-{job.id}", daemon=True).start()

    def _work(self) -> None:
        try:
            self._state = self._job.run()
        except BaseException as e:
            self._error = e
            cancelled = self._job.cancelled or isinstance(e, JobCancelledError)
            self._state = PipelineState.CANCELLED if cancelled else PipelineState.FAILED
        finally:
            if self._state != PipelineState.FAILED:
                UNAWAITED.remove(self)
            self._ended.set()

    @property
    def name(self) -> str:
        """Of the job, for people."""
        return self._job.name

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    @property
    def state(self) -> str:
        """The current state."""
        if not self._ended.is_set():
            return self._job.state
        UNAWAITED.remove(self)
        return self._state

    def wait_until_finish(self, duration: float | None = None) -> str:
        """Wait for the end of the job.

        Args:
            duration: milliseconds to wait at most; None: until the job ends. If the job runs longer, the end of the
                program cancels it.

        Returns:
            The state.

        Raises:
            UserCodeError, JobFailedError, …: the job failed.
            SystemExit: with code 143, if a SIGTERM to this process suspended or cancelled the job. The program must
                not continue as if the job were done. It is raised when all jobs of this process that the signal
                concerns have ended. A job that drained because of the signal is DRAINED, without this exception.
        """
        SIGTERMS.add(self._job)
        try:
            await_event(self._ended, None if duration is None else duration / 1000)
        except KeyboardInterrupt:
            self.cancel()
            raise
        if self._ended.is_set():
            UNAWAITED.remove(self)
        else:
            UNAWAITED.give_up(self)
        signalled = self._ended.is_set() and SIGTERMS.ended(self._job)
        if signalled and self._state in (PipelineState.STOPPED, PipelineState.CANCELLED):
            SIGTERMS.await_notice()
            raise SystemExit(TERMINATED)
        if self._error is not None and self._state != PipelineState.CANCELLED:
            if isinstance(self._error, UserCodeError):
                # It has the user's own traceback. Ours is of no use, and would grow each time it is raised.
                raise self._error.with_traceback(None)
            raise self._error
        return self.state

    def cancel(self) -> str:
        """End the job at once, and wait for its end. A streaming job can be resumed from its last commit."""
        if not self._ended.is_set():
            self._job.cancel()
            await_event(self._ended)
        return self.state

    def savepoint(self, name: str | None = None) -> str:
        """Trigger a savepoint of a streaming job. The job continues. Returns when the savepoint is committed.

        Args:
            name: up to 100 letters, digits, '.', '_' and '-'; None: a name with the time.

        Returns:
            The savepoint's path, for `arcbeam resume`, `arcbeam inspect` and --checkpoint_dir.

        Raises:
            RequestRefusedError: the name is invalid or taken, or the job has ended, is a batch job, or has no
                --checkpoint_dir.
        """
        return self._request(RequestKind.SAVEPOINT, name).path

    def drain(self, savepoint: str | None = None) -> str:
        """Drain a streaming job: stop reading, fire all windows and timers, then end.

        Returns when the drain is committed, before the job ends. From then, also a new driver continues to drain.

        Args:
            savepoint: name of the final savepoint; None: a name with the time.

        Returns:
            The state: DRAINING, or the final state.

        Raises:
            RequestRefusedError: the job is being suspended, has ended, or is a batch job.
        """
        self._request(RequestKind.DRAIN, savepoint)
        if not self.ended:
            UNAWAITED.add(self)
        return self.state

    def suspend(self, savepoint: str | None = None) -> str:
        """Stop a streaming job with a savepoint, and wait for its end. Windows and timers do not fire because of it.

        Args:
            savepoint: its name; None: a name with the time.

        Returns:
            The savepoint's path. To resume the job, submit it with its folder, or use `arcbeam resume`.

        Raises:
            RequestRefusedError: the job is draining, has ended, is a batch job, or has no --checkpoint_dir.
        """
        path = self._request(RequestKind.SUSPEND, savepoint).path
        self.wait_until_finish()
        return path

    def _request(self, what: RequestKind, savepoint: str | None) -> RequestFuture:
        asking = self._job.ask(what, savepoint or "")
        asking.wait()
        return asking

    def status(self) -> Status | None:
        """Return a streaming job's status after its newest micro-batch: watermarks, and what each waits for.

        Returns:
            The content of `arcbeam status`; None for a batch job, and before the first commit.
        """
        return self._job.status()

    def messages(self) -> list[Message]:
        """Return the last 1000 messages of a streaming job: micro-batches, changes of state, warnings."""
        return self._job.messages()

    def metrics(self) -> JobMetrics:
        """Return user metrics: committed values, and attempted ones of all runs, committed or not."""
        return JobMetrics(self._job.metrics(), True, self._job.attempted())

    def monitoring_metrics(self) -> JobMetrics:
        """Return the same, with the SDK's own metrics."""
        return JobMetrics(self._job.metrics(), False, self._job.attempted())
