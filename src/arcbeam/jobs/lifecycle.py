"""The life of jobs: prepared, run on a thread of their own, cancelled, ended.

Owns which state follows which, the threads of running jobs, and what an error becomes for the user. Knows neither gRPC
nor protos: `service` speaks those; nor how a pipeline runs: that is the executor's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from arcbeam.errors import ArcbeamError, JobCancelledError, RequestRefusedError, SubmissionError
from arcbeam.jobs.execution import (
    MAY_BECOME,
    UNDER_WAY,
    Artifacts,
    ExecutorFactory,
    FileKind,
    JobState,
    Level,
    MetricsNow,
    PipelineExecutor,
    StagedFile,
    Submission,
    error_text,
)
from arcbeam.jobs.registry import JobEvent, JobRecord, Registry, StateChanged
from arcbeam.model import texts
from arcbeam.store.log.requests import Asked, refusal

_LOG = logging.getLogger("arcbeam.jobs")

KEPT_JOBS = 1000
"""Ended jobs beyond so many are forgotten, the oldest first."""

PREPARED_SECONDS = 24 * 3600
"""A job that was prepared and not started for so long counts as ended, there."""

MESSAGES_PER_JOB = 10_000
"""Beyond so many, only warnings and errors of a job are kept, and twice as many of them."""


@dataclass(frozen=True, slots=True)
class _Live:
    executor: PipelineExecutor
    thread: threading.Thread


class Jobs:
    """All jobs of a server, running and past.

    Of the jobs that were running when the last server ended, those that can go on do so at `resume`; the others are
    FAILED, and say so.

    Args:
        registry: where they are kept.
        executors: what runs them.
        folder: for their staged files, and beside it for what they keep (`state`).
        defaults: pipeline options for jobs that do not set them.
        clock: seconds since 1970.
        plain: the options by plain names, of the form that the registry keeps.
    """

    def __init__(
        self,
        registry: Registry,
        executors: ExecutorFactory,
        folder: Path,
        defaults: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
        plain: Callable[[bytes], Mapping[str, Any]] = lambda raw: {},
    ) -> None:
        self.registry = registry
        self._executors = executors
        self._folder = folder
        self._defaults = dict(defaults or {})
        self._clock = clock
        self._plain = plain
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}  # jobs with a thread; guarded by _lock
        self._closed = False
        # Jobs that go on when the next server starts: their ends here are none.
        self._left: set[str] = set()
        self._resumed: list[str] = []
        self._adopt()

    def _adopt(self) -> None:
        known = {record.id: record for record in self.registry.jobs()}
        kept = {record.id for record in known.values() if record.state is JobState.STOPPED}
        for record in known.values():
            standing = self._standing(record) if record.state in UNDER_WAY - {JobState.CANCELLING} else None
            if standing is JobState.STOPPED and record.state is JobState.RUNNING:
                kept.add(record.id)
                self._move(record.id, JobState.STOPPED)
            elif standing is not None:
                self._resumed.append(record.id)
                kept.add(record.id)
            elif record.state is JobState.CANCELLING:
                text = "the job was cancelled: the job server ended before it could say so"
                self.registry.log(record.id, Level.ERROR, text, self.now())
                self._move(record.id, JobState.CANCELLED)
            elif record.state in UNDER_WAY:
                self.registry.log(
                    record.id,
                    Level.ERROR,
                    f"the job server ended while this job was {record.state}: what it was doing is lost, run it again",
                    self.now(),
                )
                self._move(record.id, JobState.FAILED)
        if self._folder.is_dir():
            for left in self._folder.iterdir():
                if left.name not in kept:
                    shutil.rmtree(left, ignore_errors=True)
        # SUBTLE: not so the homes. A registry that was lost, or is from a backup, knows nothing of jobs whose state is
        # there; what is forgotten on purpose is removed then (`prepare`).

    @property
    def _homes(self) -> Path:
        return self._folder.parent / "state"

    def _standing(self, record: JobRecord) -> JobState | None:
        """See `PipelineExecutor.standing`."""
        if record.files is None:
            return None
        try:
            return self._executors().standing(self._submission(record, self._plain(record.options)))
        except Exception:
            _LOG.exception("whether %s can go on", record.id)
            return None

    def resume(self) -> None:
        """Starts again what ran when the last server ended, and can go on. To be called when pipelines can run."""
        for id in self._resumed:
            self.registry.log(
                id, Level.WARNING, "the job server had ended: this job goes on from what it has committed", self.now()
            )
            try:
                self._start(id, self._plain(self.registry.job(id).options), (*UNDER_WAY,))
            except ArcbeamError as error:
                self.registry.log(id, Level.ERROR, error_text(error), self.now())
                self._move(id, JobState.FAILED)
        self._resumed = []

    def now(self) -> int:
        """µs since 1970."""
        return round(self._clock() * 1e6)

    def prepare(self, name: str, pipeline: bytes, options: Mapping[str, Any], raw: bytes, needs_files: bool) -> str:
        """Takes a pipeline in.

        Args:
            name: what the user calls the job.
            pipeline: a serialized Pipeline proto.
            options: by plain names.
            raw: the options in the form that the registry keeps.
            needs_files: files will be staged before the job can run.

        Returns:
            The new job's id.

        Raises:
            SubmissionError: the pipeline cannot run; no job was made.
        """
        slug = texts.slug(name) or "job"
        id = f"{slug}-{uuid.uuid4().hex[:12]}"
        self._executors().check(Submission(id, name or slug, pipeline, {**self._defaults, **options}))
        self.registry.add(id, name or slug, pipeline, raw, None if needs_files else "[]", self.now())
        old = self.registry.forget(KEPT_JOBS, self.now() - PREPARED_SECONDS * 1_000_000)
        for forgotten in old:
            shutil.rmtree(self.folder(forgotten), ignore_errors=True)
            shutil.rmtree(self._homes / forgotten, ignore_errors=True)
        return id

    def folder(self, id: str) -> Path:
        """Where the files of a job are staged."""
        return self._folder / id

    def staged(self, id: str, files: Sequence[StagedFile]) -> None:
        """Records that all files of a prepared job are there."""
        rows = [
            {
                "name": file.name,
                "path": str(file.path.relative_to(self.folder(id))),
                "kind": file.kind.name,
                "role": file.role,
                "sha256": file.sha256,
                "environments": file.environments,
            }
            for file in files
        ]
        self.registry.set_files(id, json.dumps(rows))

    def run(self, id: str, options: Mapping[str, Any]) -> None:
        """Starts a job that is prepared, or was suspended, and returns.

        Args:
            id: of the job.
            options: its pipeline options by plain names.

        Raises:
            JobNotFoundError: there is no such job.
            SubmissionError: it was started before, or its files are not staged.
        """
        self._start(id, options, (JobState.STOPPED,))

    def _start(self, id: str, options: Mapping[str, Any], of: Collection[JobState]) -> None:
        with self._lock:
            record = self.registry.job(id)
            if self._closed:
                raise SubmissionError("the job server is stopping")
            if record.files is None:
                raise SubmissionError(
                    f"the files of job '{id}' were not staged", "stage them at the endpoint that Prepare returned"
                )
            if record.state not in of or not self._move(id, JobState.STARTING):
                raise SubmissionError(
                    f"job '{id}' cannot be started: it is {record.state}", "prepare the pipeline again"
                )
            submission = self._submission(record, options)
            executor = self._executors()
            thread = threading.Thread(target=self._work, args=(submission, executor), name=f"job-{id}", daemon=True)
            self._live[id] = _Live(executor, thread)
        try:
            thread.start()
        except RuntimeError as e:  # no more threads
            self._end(id, e)

    def _submission(self, record: JobRecord, options: Mapping[str, Any]) -> Submission:
        return Submission(
            record.id,
            record.name,
            self.registry.pipeline(record.id),
            {**self._defaults, **options},
            self._artifacts(record.id, record.files or "[]"),
            self._homes / record.id,
            self._has_run(record.id),
            frozenset(self._defaults.keys() - options.keys()),
        )

    def _has_run(self, id: str) -> bool:
        states = self.registry.events(id, 0, states_only=True)
        return any(isinstance(event, StateChanged) and event.state is JobState.RUNNING for event in states)

    def _artifacts(self, id: str, files: str) -> Artifacts | None:
        folder = self.folder(id)
        staged = tuple(
            StagedFile(
                row["name"],
                folder / row["path"],
                FileKind[row["kind"]],
                row["role"],
                row["sha256"],
                tuple(row["environments"]),
            )
            for row in json.loads(files)
        )
        return Artifacts(folder, staged) if staged else None

    def cancel(self, id: str) -> JobState:
        """Cancels a job: for real if it runs, at once if it has not started; one that has ended is left as it is. Does
        not wait for a run's end.

        Returns:
            Its state afterwards: CANCELLING until the executor has ended.

        Raises:
            JobNotFoundError: there is no such job.
        """
        with self._lock:
            live = self._live.get(id)
            if live is None:
                if self._move(id, JobState.CANCELLED):
                    shutil.rmtree(self.folder(id), ignore_errors=True)
            else:
                self._move(id, JobState.CANCELLING)
        if live is not None:
            self._beside(id, "cancel", live.executor.cancel)
        return self.registry.job(id).state

    def _beside(self, id: str, what: str, end: Callable[[], None]) -> threading.Thread:
        """Has a run end; on a thread, because that takes as long as the run does."""

        def work() -> None:
            try:
                end()
            except Exception as error:
                _LOG.exception("'%s' of %s", what, id)
                with contextlib.suppress(ArcbeamError, sqlite3.Error):
                    said = f"'{what}' did not work: {texts.said(repr, error)}"
                    self.registry.log(id, Level.ERROR, said, self.now())

        thread = threading.Thread(target=work, name=f"{what}-{id}", daemon=True)
        thread.start()
        return thread

    def ask(self, id: str, what: Asked, savepoint: str = "") -> str:
        """Asks something of a job that streaming runs; see `PipelineExecutor.ask`.

        Raises:
            JobNotFoundError: there is no such job.
            RequestRefusedError: it does not run, or nothing comes of it.
        """
        record = self.registry.job(id)
        with self._lock:
            live = self._live.get(id)
        if live is None and what is Asked.DRAIN and record.state in (JobState.DRAINED, JobState.DONE):
            return ""  # who asks twice has what was wanted
        if live is None:
            raise refusal(what, f"job '{id}'", f"it is {record.state}", record.state.request_remedy)
        return live.executor.ask(what, savepoint)

    def status(self, id: str) -> Mapping[str, Any]:
        """Where a job that streaming runs stands; see `PipelineExecutor.status`.

        Raises:
            JobNotFoundError: there is no such job.
            RequestRefusedError: it does not run, or not in a streaming job, or has not begun to.
        """
        record = self.registry.job(id)
        with self._lock:
            live = self._live.get(id)
        if live is None:
            raise RequestRefusedError(
                f"cannot show where job '{id}' is: it is {record.state}, and no driver runs it",
                "name its folder instead of its id, if it has a --checkpoint_dir",
            )
        return live.executor.status()

    def metrics(self, id: str) -> MetricsNow:
        """The metrics of a job as they are now; empty if it has none.

        Raises:
            JobNotFoundError: there is no such job.
        """
        with self._lock:
            live = self._live.get(id)
        now = None if live is None else live.executor.metrics()
        kept = self.registry.metrics(id)
        return now if now is not None else MetricsNow(kept.attempted, kept.committed)

    def follow(
        self, id: str, states_only: bool = False, alive: Callable[[], bool] = lambda: True
    ) -> Iterator[JobEvent]:
        """All events of a job from its beginning, those to come too; ends with the job's end, or where it is suspended.

        Args:
            id: of the job.
            states_only: leave the messages out.
            alive: asked now and then, and after `Registry.wake`: whether somebody still listens.

        Raises:
            JobNotFoundError: there is no such job.
        """
        after, started, state = 0, False, JobState.STOPPED
        self.registry.job(id)
        while alive():
            version = self.registry.version()
            events = self.registry.events(id, after, states_only)
            for event in events:
                yield event
                after = event.seq
                if isinstance(event, StateChanged):
                    state, started = event.state, started or event.state is not JobState.STOPPED
                    if state.terminal:
                        return
            if not events and started and state is JobState.STOPPED:
                return
            if not events:
                self.registry.wait(version, seconds=5.0)

    def close(self, grace: float, again: threading.Event | None = None) -> None:
        """Ends what runs and waits for it; new jobs are refused.

        What can go on when the next server starts ends as its options say (`--on_sigterm`), and is as it was, if it was
        not drained; all else is cancelled.

        Args:
            grace: seconds to wait for what was cancelled, at most; who ends in another way has its own time.
            again: is set when nobody waits for that any longer: all is cancelled then.
        """
        again = again or threading.Event()
        with self._lock:
            self._closed = True
            live = dict(self._live)
        ending: list[threading.Thread] = []
        for id, each in live.items():
            record = self.registry.job(id)
            if record.state is not JobState.CANCELLING and self._standing(record) is not None:
                self._left.add(id)
                self.registry.log(
                    id, Level.WARNING, "the job server is stopping: this job goes on when it starts again", self.now()
                )
                ending.append(self._beside(id, "end", partial(each.executor.end, again)))
                continue
            self.registry.log(id, Level.WARNING, "the job server is stopping: this job is cancelled", self.now())
            self.cancel(id)
        while any(thread.is_alive() for thread in ending):
            # Not `join`: a second signal is to be heard, which is acted upon between two naps.
            time.sleep(0.05)
        deadline = time.monotonic() + grace
        for each in live.values():
            each.thread.join(max(0.0, deadline - time.monotonic()))

    def _move(self, id: str, to: JobState) -> bool:
        moved = self.registry.transition(id, to, MAY_BECOME[to], self.now())
        if moved:
            _LOG.info("job %s is %s", id, to)
        return moved

    def _work(self, submission: Submission, executor: PipelineExecutor) -> None:
        error: BaseException | None = None
        state: JobState | None = None
        try:
            state = executor.run(submission, _Events(self, submission.job_id))
        except BaseException as e:  # SystemExit too: one job never takes the server down
            error = e
        try:
            self._end(submission.job_id, error, state or JobState.DONE)
        except (ArcbeamError, sqlite3.Error):
            _LOG.exception("the end of %s could not be recorded", submission.job_id)

    def _end(self, id: str, error: BaseException | None, state: JobState = JobState.DONE) -> None:
        # Also one that was suspended: the next server finds it running, and has it go on.
        left = id in self._left and (isinstance(error, JobCancelledError) or state is JobState.STOPPED)
        if left and self._standing(self.registry.job(id)) is JobState.STOPPED:
            # By somebody who means it to stay so. Only its last calls may have been broken off.
            left, error, state = False, None, JobState.STOPPED
        if not left and (error is not None or state is not JobState.STOPPED):
            # Before the last state: whoever sees that finds the files gone.
            shutil.rmtree(self.folder(id), ignore_errors=True)
        with self._lock:
            self._live.pop(id, None)
            if left:
                return
            cancelled = self.registry.job(id).state is JobState.CANCELLING or isinstance(error, JobCancelledError)
            if cancelled and (error is not None or state is JobState.STOPPED):
                shutil.rmtree(self.folder(id), ignore_errors=True)
                how = f"how the cancelled run ended: {texts.said(repr, error or state)}"
                self.registry.log(id, Level.DEBUG, how, self.now())
                # As an error: that is what a submitter's runner repeats when a job has not ended well.
                self.registry.log(id, Level.ERROR, "the job was cancelled", self.now())
                self._move(id, JobState.CANCELLED)
            elif error is None:
                self._move(id, state)
            else:
                self.registry.log(id, Level.ERROR, error_text(error), self.now())
                self._move(id, JobState.FAILED)


class _Events:
    """The `JobEvents` of one job: everything goes to the registry."""

    def __init__(self, jobs: Jobs, id: str) -> None:
        self._jobs = jobs
        self._id = id
        self._counts = {False: 0, True: 0}
        self._lock = threading.Lock()

    def running(self) -> None:
        """See `JobEvents.running`."""
        self._safely(lambda: self._jobs._move(self._id, JobState.RUNNING))

    def turned(self, state: JobState) -> None:
        """See `JobEvents.turned`."""
        self._safely(lambda: self._jobs._move(self._id, state))

    def message(self, level: Level, text: str) -> None:
        """See `JobEvents.message`."""
        warns = level >= Level.WARNING
        with self._lock:
            # Each kind by itself: a micro-batch a minute says more, in weeks, than there is room for.
            self._counts[warns] += 1
            count = self._counts[warns]
        if count > MESSAGES_PER_JOB * (2 if warns else 1):
            if warns or count != MESSAGES_PER_JOB + 1:
                return
            level, text = Level.WARNING, f"more than {MESSAGES_PER_JOB} messages: only warnings and errors from here on"
        self._safely(lambda: self._jobs.registry.log(self._id, level, text, self._jobs.now()))

    def metrics(self, attempted: Sequence[bytes], committed: Sequence[bytes]) -> None:
        """See `JobEvents.metrics`."""
        self._safely(lambda: self._jobs.registry.set_metrics(self._id, attempted, committed))

    def _safely(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except (ArcbeamError, sqlite3.Error):
            _LOG.exception("an event of %s could not be recorded", self._id)
