"""The life of jobs: prepared, run on a separate thread, cancelled, ended.

Owns the transitions between states, the threads of running jobs, and the messages about errors. Must not know gRPC or
protos (`service` does), nor how a pipeline runs (the executor does).
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
    JobState,
    Level,
    MetricsNow,
    PipelineExecutor,
    StagedFile,
    StagedFileKind,
    Submission,
    error_text,
)
from arcbeam.jobs.registry import JobEvent, JobRecord, RecordedEvents, Registry, StateChanged
from arcbeam.model import texts
from arcbeam.store.log.requests import RequestKind, refusal
from arcbeam.store.log.savepoints import split_path

_LOG = logging.getLogger("arcbeam.jobs")

KEPT_JOBS = 1000
"""Number of ended jobs to keep. Older ones are forgotten first."""

PREPARED_SECONDS = 24 * 3600
"""A job that was prepared and not started for this time counts as ended in the number above."""


@dataclass(frozen=True, slots=True)
class _Live:
    executor: PipelineExecutor
    thread: threading.Thread


class Jobs:
    """All jobs of a server, running and past.

    `resume` resumes the jobs that ran when the last server ended and have state. The others are FAILED, with a message.

    Args:
        registry: stores them.
        executors: run them.
        folder: for their staged files; its sibling `state` is for what they keep.
        defaults: pipeline options for jobs that do not set them.
        clock: seconds since 1970.
        plain: returns the options by plain names, from their form in the registry.
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
        # Jobs that resume when the next server starts: their end here is not final.
        self._left: set[str] = set()
        self._resumed: list[str] = []
        self._adopt()

    def _adopt(self) -> None:
        known = {record.id: record for record in self.registry.jobs()}
        kept = {record.id for record in known.values() if record.state is JobState.STOPPED}
        for record in known.values():
            resumable = self._resumable(record) if record.state in UNDER_WAY - {JobState.CANCELLING} else None
            if resumable is JobState.STOPPED and record.state is JobState.RUNNING:
                kept.add(record.id)
                self._move(record.id, JobState.STOPPED)
            elif resumable is not None:
                self._resumed.append(record.id)
                kept.add(record.id)
            elif record.state is JobState.CANCELLING:
                text = "the job was cancelled; the job server ended before it could report that"
                self.registry.log(record.id, Level.ERROR, text, self.now())
                self._move(record.id, JobState.CANCELLED)
            elif record.state in UNDER_WAY:
                self.registry.log(
                    record.id,
                    Level.ERROR,
                    f"the job server ended while this job was {record.state}: its work is lost, run it again",
                    self.now(),
                )
                self._move(record.id, JobState.FAILED)
        if self._folder.is_dir():
            for left in self._folder.iterdir():
                if left.name not in kept:
                    shutil.rmtree(left, ignore_errors=True)
        # SUBTLE: the homes stay. A registry that was lost, or restored from a backup, does not know all jobs whose
        # state is there. `prepare` removes the state of jobs that it forgets.

    @property
    def _homes(self) -> Path:
        return self._folder.parent / "state"

    def _resumable(self, record: JobRecord) -> JobState | None:
        """The state in which a job can resume, as its executor says."""
        if record.files is None:
            return None
        try:
            return self._executors().resumable_state(self._submission(record, self._plain(record.options)))
        except Exception:
            _LOG.exception("cannot check whether job %s can be resumed", record.id)
            return None

    def resume(self) -> None:
        """Resume the jobs that ran when the last server ended and have state. Call it when pipelines can run."""
        for id in self._resumed:
            self.registry.log(
                id,
                Level.WARNING,
                "the job server was restarted: this job resumes from its last commit",
                self.now(),
            )
            try:
                self._start(id, self._plain(self.registry.job(id).options), (*UNDER_WAY,))
            except ArcbeamError as error:
                self.registry.log(id, Level.ERROR, error_text(error), self.now())
                self._move(id, JobState.FAILED)
        self._resumed = []

    def now(self) -> int:
        """Return µs since 1970."""
        return round(self._clock() * 1e6)

    def prepare(self, name: str, pipeline: bytes, options: Mapping[str, Any], raw: bytes, needs_files: bool) -> str:
        """Accept a pipeline.

        Args:
            name: of the job, for people.
            pipeline: a serialized Pipeline proto.
            options: by plain names.
            raw: the options in their form in the registry.
            needs_files: files will be staged before the job can run.

        Returns:
            The new job's id.

        Raises:
            SubmissionError: the pipeline cannot run; no job was created.
        """
        slug = texts.slug(name) or "job"
        id = f"{slug}-{uuid.uuid4().hex[:12]}"
        self._executors().check(Submission(id, name or slug, pipeline, {**self._defaults, **options}))
        self.registry.add(id, name or slug, pipeline, raw, None if needs_files else "[]", self.now())
        for forgotten in self.registry.forget(KEPT_JOBS, self.now() - PREPARED_SECONDS * 1_000_000):
            shutil.rmtree(self.folder(forgotten), ignore_errors=True)
            shutil.rmtree(self._homes / forgotten, ignore_errors=True)
        return id

    def folder(self, id: str) -> Path:
        """Return the folder for a job's staged files."""
        return self._folder / id

    def staged(self, id: str, files: Sequence[StagedFile]) -> None:
        """Record that all files of a prepared job are staged."""
        rows = [
            {
                "name": file.name,
                "path": str(file.path.relative_to(self.folder(id))),
                "kind": file.kind.name,
                "role": file.role,
                "sha256": file.sha256,
                "environments": file.environments,
                "role_payload": file.role_payload.hex(),
            }
            for file in files
        ]
        self.registry.set_files(id, json.dumps(rows))

    def run(self, id: str, options: Mapping[str, Any]) -> None:
        """Start a job that is prepared or suspended, and return.

        Args:
            id: of the job.
            options: its pipeline options by plain names.

        Raises:
            JobNotFoundError: there is no such job.
            SubmissionError: it has already been started, or its files are not staged.
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
                StagedFileKind[row["kind"]],
                row["role"],
                row["sha256"],
                tuple(row["environments"]),
                bytes.fromhex(row.get("role_payload", "")),
            )
            for row in json.loads(files)
        )
        return Artifacts(folder, staged) if staged else None

    def cancel(self, id: str) -> JobState:
        """Cancel a job, and return its state: CANCELLING until the executor has ended. Does not wait.

        A job that has not started ends at once; one that has ended stays as it is.

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
        """End a run on a separate thread: it takes as long as the run does."""

        def work() -> None:
            try:
                end()
            except Exception as error:
                _LOG.exception("'%s' of job %s failed", what, id)
                with contextlib.suppress(ArcbeamError, sqlite3.Error):
                    self.registry.log(id, Level.ERROR, f"'{what}' failed: {texts.safe_text(repr, error)}", self.now())

        thread = threading.Thread(target=work, name=f"{what}-{id}", daemon=True)
        thread.start()
        return thread

    def ask(self, id: str, what: RequestKind, savepoint: str = "") -> str:
        """Send a request to a streaming job; see `PipelineExecutor.ask`.

        Raises:
            JobNotFoundError: there is no such job.
            RequestRefusedError: it is not running, or the request cannot succeed.
        """
        record = self.registry.job(id)
        with self._lock:
            live = self._live.get(id)
        if live is None and what is RequestKind.DRAIN and record.state in (JobState.DRAINED, JobState.DONE):
            return ""  # a repeated request, after a lost answer, succeeds
        if live is None:
            raise refusal(what, f"job '{id}'", f"it is {record.state}", record.state.request_remedy)
        return live.executor.ask(what, savepoint)

    def status(self, id: str) -> Mapping[str, Any]:
        """Return a streaming job's status; see `PipelineExecutor.status`.

        Raises:
            JobNotFoundError: there is no such job.
            RequestRefusedError: it is not running, is a batch job, or has not begun.
        """
        record = self.registry.job(id)
        with self._lock:
            live = self._live.get(id)
        if live is None:
            raise RequestRefusedError(
                f"cannot show the status of job '{id}': it is {record.state}, and no driver is running it",
                "give its folder instead of its id, if it has a --checkpoint_dir",
            )
        return live.executor.status()

    def snapshot(self, id: str, whole: bool = True) -> Mapping[str, Any]:
        """Return what a job does now; see `PipelineExecutor.snapshot`. Empty if it does not run."""
        with self._lock:
            live = self._live.get(id)
        return {} if live is None else live.executor.snapshot(whole)

    def home(self, record: JobRecord) -> str:
        """Return the folder or URL with a streaming job's state, with secrets; "" if it has none."""
        given = self.options(record).get("checkpoint_dir")
        if given:
            return split_path(str(given))[0]
        home = self._homes / record.id
        return str(home) if home.is_dir() else ""

    def options(self, record: JobRecord) -> Mapping[str, Any]:
        """Return a job's options by plain names, with the server's defaults."""
        return {**self._defaults, **self._plain(record.options)}

    def metrics(self, id: str) -> MetricsNow:
        """Return a job's current metrics; empty if it has none.

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
        """Yield all events of a job, past and future, until the job ends or is suspended.

        Args:
            id: of the job.
            states_only: omit messages.
            alive: called repeatedly, and after `Registry.wake`: whether the caller still listens.

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
        """End all runs and wait for their end; refuse new jobs.

        Jobs that can resume when the next server starts end as their options say (`--on_sigterm`). If they were not
        drained, they keep their state. All others are cancelled.

        Args:
            grace: seconds to wait for cancelled jobs at most; the others have their own limits.
            again: is set by a second signal: then all are cancelled.
        """
        again = again or threading.Event()
        with self._lock:
            self._closed = True
            live = dict(self._live)
        ending: list[threading.Thread] = []
        for id, each in live.items():
            record = self.registry.job(id)
            if record.state is not JobState.CANCELLING and self._resumable(record) is not None:
                self._left.add(id)
                self.registry.log(
                    id,
                    Level.WARNING,
                    "the job server is stopping: this job resumes when the server starts again",
                    self.now(),
                )
                ending.append(self._beside(id, "end", partial(each.executor.end, again)))
                continue
            self.registry.log(id, Level.WARNING, "the job server is stopping: this job is cancelled", self.now())
            self.cancel(id)
        while any(thread.is_alive() for thread in ending):
            # Not `join`, so that a second signal is handled: Python does so between two sleeps.
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
            state = executor.run(submission, RecordedEvents(self.registry, self._move, self.now, submission.job_id))
        except BaseException as e:  # SystemExit too: one job never takes the server down
            error = e
        try:
            self._end(submission.job_id, error, state or JobState.DONE)
        except (ArcbeamError, sqlite3.Error):
            _LOG.exception("the end of %s could not be recorded", submission.job_id)

    def _end(self, id: str, error: BaseException | None, state: JobState = JobState.DONE) -> None:
        # Also a suspended job: the next server finds it RUNNING, and resumes it.
        left = id in self._left and (isinstance(error, JobCancelledError) or state is JobState.STOPPED)
        if left and self._resumable(self.registry.job(id)) is JobState.STOPPED:
            # It was suspended on request, and stays so. At most its last calls were interrupted.
            left, error, state = False, None, JobState.STOPPED
        if not left and (error is not None or state is not JobState.STOPPED):
            # Before the last state: an observer of that state finds the files removed.
            shutil.rmtree(self.folder(id), ignore_errors=True)
        with self._lock:
            self._live.pop(id, None)
            if left:
                return
            cancelled = self.registry.job(id).state is JobState.CANCELLING or isinstance(error, JobCancelledError)
            if cancelled and (error is not None or state is JobState.STOPPED):
                shutil.rmtree(self.folder(id), ignore_errors=True)
                how = f"the cancelled run ended with: {texts.safe_text(repr, error or state)}"
                self.registry.log(id, Level.DEBUG, how, self.now())
                # As an error: a submitter's runner shows errors when a job has not succeeded.
                self.registry.log(id, Level.ERROR, "the job was cancelled", self.now())
                self._move(id, JobState.CANCELLED)
            elif error is None:
                self._move(id, state)
            else:
                self.registry.log(id, Level.ERROR, error_text(error), self.now())
                self._move(id, JobState.FAILED)
