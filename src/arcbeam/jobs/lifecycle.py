"""The life of jobs: prepared, run on a thread of their own, cancelled, ended.

Owns which state follows which, the threads of running jobs, and what an error becomes for the user. Knows neither gRPC
nor protos: `service` speaks those; nor how a pipeline runs: that is the executor's.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import sqlite3
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcbeam.errors import ArcbeamError, JobCancelledError, SubmissionError
from arcbeam.jobs.execution import (
    Artifacts,
    ExecutorFactory,
    FileKind,
    JobState,
    Level,
    PipelineExecutor,
    StagedFile,
    Submission,
)
from arcbeam.jobs.registry import JobEvent, Registry, StateChanged
from arcbeam.model import texts

_LOG = logging.getLogger("arcbeam.jobs")

KEPT_JOBS = 1000
"""Ended jobs beyond so many are forgotten, the oldest first."""

PREPARED_SECONDS = 24 * 3600
"""A job that was prepared and not started for so long counts as ended, there."""

MESSAGES_PER_JOB = 10_000
"""Beyond so many, only warnings and errors of a job are kept, and twice as many of them."""

_MAY_BECOME: Mapping[JobState, frozenset[JobState]] = {
    JobState.STARTING: frozenset({JobState.STOPPED}),
    JobState.RUNNING: frozenset({JobState.STARTING}),
    JobState.CANCELLING: frozenset({JobState.STARTING, JobState.RUNNING}),
    JobState.DONE: frozenset({JobState.STARTING, JobState.RUNNING, JobState.CANCELLING}),
    JobState.FAILED: frozenset({JobState.STARTING, JobState.RUNNING, JobState.CANCELLING}),
    JobState.CANCELLED: frozenset({JobState.STOPPED, JobState.STARTING, JobState.RUNNING, JobState.CANCELLING}),
}
"""For each state, those that it may follow."""


@dataclass(frozen=True, slots=True)
class _Live:
    executor: PipelineExecutor
    thread: threading.Thread


class Jobs:
    """All jobs of a server, running and past.

    Jobs that were running when the last server died are FAILED, and say so.

    Args:
        registry: where they are kept.
        executors: what runs them.
        folder: for their staged files.
        defaults: pipeline options for jobs that do not set them.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        registry: Registry,
        executors: ExecutorFactory,
        folder: Path,
        defaults: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self._executors = executors
        self._folder = folder
        self._defaults = dict(defaults or {})
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}  # jobs with a thread; guarded by _lock
        self._closed = False
        self._adopt()

    def _adopt(self) -> None:
        known = {record.id: record for record in self.registry.jobs()}
        for record in known.values():
            if record.state in _MAY_BECOME[JobState.FAILED]:
                self.registry.log(
                    record.id,
                    Level.ERROR,
                    f"the job server ended while this job was {record.state}: what it was doing is lost, run it again",
                    self.now(),
                )
                self._move(record.id, JobState.FAILED)
        if self._folder.is_dir():
            for left in self._folder.iterdir():
                if left.name not in known or known[left.name].state is not JobState.STOPPED:
                    shutil.rmtree(left, ignore_errors=True)

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
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60].strip("-.") or "job"
        id = f"{slug}-{uuid.uuid4().hex[:12]}"
        self._executors().check(Submission(id, name or slug, pipeline, {**self._defaults, **options}))
        self.registry.add(id, name or slug, pipeline, raw, None if needs_files else "[]", self.now())
        old = self.registry.forget(KEPT_JOBS, self.now() - PREPARED_SECONDS * 1_000_000)
        for forgotten in old:
            shutil.rmtree(self.folder(forgotten), ignore_errors=True)
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
        """Starts a prepared job and returns.

        Args:
            id: of the job.
            options: its pipeline options by plain names.

        Raises:
            JobNotFoundError: there is no such job.
            SubmissionError: it was started before, or its files are not staged.
        """
        with self._lock:
            record = self.registry.job(id)
            if self._closed:
                raise SubmissionError("the job server is stopping")
            if record.files is None:
                raise SubmissionError(
                    f"the files of job '{id}' were not staged", "stage them at the endpoint that Prepare returned"
                )
            if not self._move(id, JobState.STARTING):
                raise SubmissionError(
                    f"job '{id}' cannot be started: it is {record.state}", "prepare the pipeline again"
                )
            artifacts = self._artifacts(id, record.files)
            submission = Submission(
                id, record.name, self.registry.pipeline(id), {**self._defaults, **options}, artifacts
            )
            executor = self._executors()
            thread = threading.Thread(target=self._work, args=(submission, executor), name=f"job-{id}", daemon=True)
            self._live[id] = _Live(executor, thread)
        try:
            thread.start()
        except RuntimeError as e:  # no more threads
            self._end(id, e)

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
        """Cancels a job: for real if it runs, at once if it has not started; one that has ended is left as it is.

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
            try:
                live.executor.cancel()
            except Exception as error:
                _LOG.exception("cancelling %s", id)
                self.registry.log(id, Level.ERROR, f"cancelling did not work: {texts.said(repr, error)}", self.now())
        return self.registry.job(id).state

    def follow(
        self, id: str, states_only: bool = False, alive: Callable[[], bool] = lambda: True
    ) -> Iterator[JobEvent]:
        """All events of a job from its beginning, those to come too; ends with the job's end.

        Args:
            id: of the job.
            states_only: leave the messages out.
            alive: asked now and then, and after `Registry.wake`: whether somebody still listens.

        Raises:
            JobNotFoundError: there is no such job.
        """
        after = 0
        self.registry.job(id)
        while alive():
            version = self.registry.version()
            events = self.registry.events(id, after, states_only)
            for event in events:
                yield event
                after = event.seq
                if isinstance(event, StateChanged) and event.state.terminal:
                    return
            if not events:
                self.registry.wait(version, seconds=5.0)

    def close(self, grace: float) -> None:
        """Cancels what runs and waits for it, some seconds at most; new jobs are refused."""
        with self._lock:
            self._closed = True
            live = dict(self._live)
        for id in live:
            self.registry.log(id, Level.WARNING, "the job server is stopping: this job is cancelled", self.now())
            self.cancel(id)
        deadline = time.monotonic() + grace
        for each in live.values():
            each.thread.join(max(0.0, deadline - time.monotonic()))

    def _move(self, id: str, to: JobState) -> bool:
        moved = self.registry.transition(id, to, _MAY_BECOME[to], self.now())
        if moved:
            _LOG.info("job %s is %s", id, to)
        return moved

    def _work(self, submission: Submission, executor: PipelineExecutor) -> None:
        error: BaseException | None = None
        try:
            executor.run(submission, _Events(self, submission.job_id))
        except BaseException as e:  # SystemExit too: one job never takes the server down
            error = e
        try:
            self._end(submission.job_id, error)
        except (ArcbeamError, sqlite3.Error):
            _LOG.exception("the end of %s could not be recorded", submission.job_id)

    def _end(self, id: str, error: BaseException | None) -> None:
        # Before the last state: whoever sees that finds the files gone.
        shutil.rmtree(self.folder(id), ignore_errors=True)
        with self._lock:
            self._live.pop(id, None)
            cancelled = self.registry.job(id).state is JobState.CANCELLING or isinstance(error, JobCancelledError)
            if error is None:
                self._move(id, JobState.DONE)
            elif cancelled:
                self.registry.log(
                    id, Level.DEBUG, f"how the cancelled run ended: {texts.said(repr, error)}", self.now()
                )
                # As an error: that is what a submitter's runner repeats when a job has not ended well.
                self.registry.log(id, Level.ERROR, "the job was cancelled", self.now())
                self._move(id, JobState.CANCELLED)
            else:
                self.registry.log(id, Level.ERROR, error_text(error), self.now())
                self._move(id, JobState.FAILED)


class _Events:
    """The `JobEvents` of one job: everything goes to the registry."""

    def __init__(self, jobs: Jobs, id: str) -> None:
        self._jobs = jobs
        self._id = id
        self._count = 0
        self._lock = threading.Lock()

    def running(self) -> None:
        """See `JobEvents.running`."""
        self._safely(lambda: self._jobs._move(self._id, JobState.RUNNING))

    def message(self, level: Level, text: str, time: float | None = None) -> None:
        """See `JobEvents.message`."""
        with self._lock:
            self._count += 1
            count = self._count
        at = self._jobs.now() if time is None else round(time * 1e6)
        if count > MESSAGES_PER_JOB * (2 if level >= Level.WARNING else 1):
            if count != MESSAGES_PER_JOB + 1:
                return
            level, text = Level.WARNING, f"more than {MESSAGES_PER_JOB} messages: only warnings and errors from here on"
        self._safely(lambda: self._jobs.registry.log(self._id, level, text, at))

    def metrics(self, attempted: Sequence[bytes], committed: Sequence[bytes]) -> None:
        """See `JobEvents.metrics`."""
        self._safely(lambda: self._jobs.registry.set_metrics(self._id, attempted, committed))

    def _safely(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except (ArcbeamError, sqlite3.Error):
            _LOG.exception("an event of %s could not be recorded", self._id)


def error_text(error: BaseException) -> str:
    """What the user is told: our own errors as they are (with step and user traceback), others with our traceback."""
    if isinstance(error, ArcbeamError):
        return texts.said(str, error, 2 * texts.LONGEST)
    return texts.said(lambda e: "".join(traceback.format_exception(e)).rstrip(), error)
