"""Runs the pipelines of the job service. Part of the composition root, like `runner`."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, TypeOptions
from typing_extensions import override

from arcbeam.errors import ArcbeamError, InvalidPipelineError, JobCancelledError, RequestRefusedError
from arcbeam.jobs.environments import of_workers, runnable, with_files
from arcbeam.jobs.execution import JobEvents, JobState, Level, MetricsNow, PipelineExecutor, StagedFileKind, Submission
from arcbeam.jobs.option_forms import environment_type, struct_of
from arcbeam.jobs.termination import bring_to_end
from arcbeam.model.commits import CommitMode
from arcbeam.model.rows import BundleReport
from arcbeam.options import WITHHELD, ArcbeamOptions, completed
from arcbeam.runner.job import Job, session_options
from arcbeam.runner.jobgraph import job_graph_to_store
from arcbeam.runner.sdkworkers import check_startable, how_to_restart
from arcbeam.runner.submission import script_of
from arcbeam.spark.session import driver
from arcbeam.spark.session.remote import is_connect
from arcbeam.spark.session.sessions import FAIR, active_session, is_local, open_session, unheeded
from arcbeam.spark.tasks.artifacts import StagedArtifact, worker_setup_for
from arcbeam.store.blobs.backends import open_blobs, shown
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import read_newest
from arcbeam.store.log.requests import RequestKind, refusal
from arcbeam.store.log.savepoints import split_path
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.interfaces import JobListener
from arcbeam.streaming.status.status import as_record
from arcbeam.translate import ParsedPipeline, validated
from arcbeam.translate.embedding import with_parts
from arcbeam.translate.proto import is_streaming, merged, parsed, pipeline_proto, plan_of

_LOG = logging.getLogger("arcbeam")

_MICRO_BATCH_SECONDS = 60.0
"""Minimal seconds between two messages about micro-batches to the followers of a job."""


def start(options: Mapping[str, Any]) -> None:
    """Open the session for all jobs of this process, and have its workers import what all jobs need.

    Args:
        options: pipeline options, by plain names.

    Raises:
        SetupError: there is no Spark to run on.
    """
    ours = PipelineOptions.from_dictionary(dict(options)).view_as(ArcbeamOptions)
    wanted = session_options(ours)
    # Short micro-batches of one job must not wait for the long stages of another.
    fair = replace(wanted, conf=(FAIR, *wanted.conf)) if wanted.remote is None else wanted
    open_session(fair)
    p = beam.Pipeline()
    _ = p | beam.Create([None])
    try:
        Job(plan_of(ParsedPipeline(pipeline_proto(p)), ours, name="start"), ours).run()
    except ArcbeamError as error:
        # Not fatal: each job that fails reports the cause to its own user.
        _LOG.warning("an empty pipeline does not run on this session: %s", error)


class SparkExecutor(PipelineExecutor):
    """An `arcbeam.jobs.execution.PipelineExecutor`: runs one submitted pipeline on Spark.

    Args:
        is_drain: as in `ArcbeamRunner`: truncate every splittable DoFn.
    """

    def __init__(self, is_drain: bool = False) -> None:
        self._is_drain = is_drain
        self._lock = threading.Lock()
        self._cancelled = False
        self._job: Job | None = None

    @override
    def check(self, submission: Submission) -> None:
        options = PipelineOptions.from_dictionary(dict(submission.options))
        options.view_as(ArcbeamOptions).check()
        pipeline = _pipeline(submission)
        validated(pipeline, allow_non_deterministic_keys=_any_keys(options))
        # A dead session answers nothing. `run` replaces it, and checks again.
        if (spark := active_session()) is not None and driver.death(spark) is None:
            folder = options.view_as(ArcbeamOptions).checkpoint_dir
            check_startable(
                pipeline.proto,
                environment_type(submission.options),
                local=is_local(spark),
                inherits=not is_connect(spark),
                folder=folder,
            )

    def resumable_state(self, submission: Submission) -> JobState | None:
        """See `PipelineExecutor`: a streaming job resumes from its folder."""
        try:
            submission = _with_secrets(submission)
        except InvalidPipelineError:
            return JobState.RUNNING  # `run` says which secrets are missing
        options = PipelineOptions.from_dictionary(dict(submission.options))
        folder = options.view_as(ArcbeamOptions).checkpoint_dir
        # On a cluster, a job without a folder had its state in a temporary folder of its run.
        exists = bool(folder) or (submission.home is not None and Path(submission.home).exists())
        if not exists or not is_streaming(_pipeline(submission), options):
            return None
        place = split_path(folder)[0] if folder else str(submission.home)
        return JobState.STOPPED if is_suspended(open_blobs(place)) else JobState.RUNNING

    @override
    def run(self, submission: Submission, events: JobEvents) -> JobState:
        submission = _with_secrets(submission)
        options = PipelineOptions.from_dictionary(dict(submission.options))
        ours = options.view_as(ArcbeamOptions)
        shards = ours.shards
        if submission.again or "shards" in submission.defaults:
            # A resumed job keeps its number of shards. The server's default is for new jobs.
            ours.shards = None
        if submission.again:
            # These options were for the first start.
            ours.from_savepoint, ours.force_resume, ours.discard_later_micro_batches = None, False, False
            ours.checkpoint_dir = split_path(ours.checkpoint_dir or "")[0] or None
        pipeline = _pipeline(submission)
        plan = plan_of(pipeline, ours, name=submission.name or "beam", drain=self._is_drain)
        spark = open_session(session_options(ours))
        if ignored := unheeded(spark, session_options(ours)):
            events.message(
                Level.WARNING,
                f"all jobs of this server run on one Spark session, which does not have {', '.join(ignored)}; "
                "give such options to the server: arcbeam serve -- PIPELINE_OPTIONS",
            )
        requested = environment_type(submission.options)
        folder = ours.checkpoint_dir or (str(submission.home) if submission.again and submission.home else None)
        check_startable(
            pipeline.proto,
            requested,
            local=is_local(spark),
            inherits=not is_connect(spark),
            folder=folder,
            again=submission.again,
        )
        if pipeline.any_workers and requested == "LOOPBACK":
            events.message(
                Level.WARNING,
                "transforms run in the submitting program (LOOPBACK): it must run until the job ends; if it ends "
                "before, the job continues only when that program is run again",
            )
        sdk_options = struct_of(_own(submission)) if pipeline.any_workers else b""
        script = script_of(submission)
        closed, main = (script.closed_outputs, script.main) if script is not None else (None, None)
        worker_setup = worker_setup_for(spark, options, _staged(submission), closed, main, sdk_options)
        job_graph = None
        if not plan.bounded:
            if not ours.checkpoint_dir and submission.home is not None and is_local(spark):
                ours.checkpoint_dir = str(submission.home)
            if ours.checkpoint_dir:
                events.message(Level.BASIC, f"this job keeps its state in {shown(ours.checkpoint_dir)}")
                serialized = pipeline.proto.SerializeToString()
                job_graph = job_graph_to_store(plan.name, serialized, _own(submission), worker_setup)
            else:
                events.message(
                    Level.WARNING,
                    "without a --checkpoint_dir that all executors can reach, this job cannot be resumed",
                )
            worker_setup = replace(worker_setup, restart=how_to_restart(requested, ours.checkpoint_dir))
        with self._lock:
            if self._cancelled:
                raise JobCancelledError(f"job '{plan.name}' was cancelled before it started")
            self._job = Job(
                plan, ours, worker_setup, _Reporter(events, bounded=plan.bounded), job_graph, shards, submission.job_id
            )
        # SUBTLE: a streaming job is running once it is taken over. Until then the server must remember the earlier
        # state (`Submission.again`).
        if plan.bounded:
            events.running()
        try:
            state = JobState(self._job.run())
        finally:
            events.metrics(self._job.attempted(), self._job.metrics())
            if (progress := self._job.snapshot()["progress"]) is not None:
                events.progress(progress)
        if state is JobState.DONE and submission.home is not None and ours.checkpoint_dir == str(submission.home):
            clear(submission.home)
        return state

    @override
    def ask(self, what: RequestKind, savepoint: str = "") -> str:
        with self._lock:
            job = self._job
        if job is None:
            raise refusal(what, "the job", "it has not begun to run", "try again when it is RUNNING: arcbeam jobs")
        future = job.ask(what, savepoint)
        if what is RequestKind.DRAIN:
            future.heard()
        else:
            future.wait()
        return future.path

    @override
    def status(self) -> Mapping[str, Any]:
        with self._lock:
            job = self._job
        status = None if job is None else job.status()
        if job is None or status is None:
            raise RequestRefusedError(
                "cannot show the status of the job: it has not begun, or it is a batch job",
                "try again when it is RUNNING; only streaming jobs (unbounded, or --streaming) have watermarks",
            )
        return as_record(status) | ({"folder": folder} if (folder := job.folder()) else {})

    @override
    def snapshot(self, whole: bool = True) -> Mapping[str, Any]:
        with self._lock:
            job = self._job
        return {} if job is None else job.snapshot(whole)

    @override
    def metrics(self) -> MetricsNow | None:
        with self._lock:
            job = self._job
        return None if job is None else MetricsNow(job.attempted(), job.metrics())

    @override
    def end(self, again: threading.Event) -> None:
        with self._lock:
            job = self._job
        if job is None:
            self.cancel()
        else:
            bring_to_end(job, again)

    @override
    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            job = self._job
        if job is not None:
            job.cancel()


class _Reporter(JobListener):
    """Passes events to a server's job. There are many micro-batches: only one a minute is reported."""

    def __init__(self, events: JobEvents, *, bounded: bool) -> None:
        self._events, self._bounded = events, bounded
        self._last = -_MICRO_BATCH_SECONDS

    @override
    def opened(self) -> None:
        self._events.running()

    @override
    def reported(self, report: BundleReport) -> None:
        if self._bounded:
            self._events.message(
                Level.DETAILED,
                f"{report.stage} shard {report.shard}: {report.elements_in} elements in {report.seconds:.2f} s",
            )

    @override
    def streaming(self, line: str) -> None:
        if time.monotonic() - self._last >= _MICRO_BATCH_SECONDS:
            self._last = time.monotonic()
            self._events.message(Level.DETAILED, line)

    @override
    def warned(self, text: str) -> None:
        self._events.message(Level.WARNING, text)

    @override
    def turned(self, state: str) -> None:
        if state == JobState.DRAINING:
            self._events.turned(JobState.DRAINING)


def clear(home: Path) -> None:
    """Remove the state of a job that is done, unless it has savepoints: a user may go back to them."""
    try:
        newest = read_newest(FolderBlobs(home))
    except StoreError as error:
        _LOG.warning("the state in '%s' is not removed: %s", home, error)
        return
    if isinstance(newest, Manifest) and not newest.pins:
        shutil.rmtree(home, ignore_errors=True)


def is_suspended(blobs: DurableBlobs) -> bool:
    """Return whether a job was suspended on request: then its last micro-batch is a savepoint.

    A suspension by SIGTERM creates no savepoint.
    """
    newest = read_newest(blobs)
    return (
        isinstance(newest, Manifest)
        and newest.mode is CommitMode.SUSPENDED
        and any(pin.micro_batch == newest.micro_batch for pin in newest.pins)
    )


def _any_keys(options: PipelineOptions) -> bool:
    return bool(options.view_as(TypeOptions).allow_non_deterministic_key_coders)


def _with_secrets(submission: Submission) -> Submission:
    """Return the submission with the secrets that were not stored, if an earlier server stored it.

    Raises:
        InvalidPipelineError: one is missing in the environment.
    """
    stored = dict(submission.options)
    if not (withheld := stored.pop(WITHHELD, None)):
        return submission
    return replace(submission, options=completed(stored, withheld[1:], {}))


def _pipeline(submission: Submission) -> ParsedPipeline:
    """Return the pipeline, with the environments in which it runs."""
    chosen = runnable(submission.pipeline, requested=environment_type(submission.options))
    files = submission.artifacts.files if submission.artifacts is not None else ()
    return ParsedPipeline(merged(parsed(with_files(chosen, files) if files else chosen)))


def _own(submission: Submission) -> dict[str, Any]:
    """Return a job's own options. Defaults of the server hold only while the job runs there."""
    return {name: value for name, value in submission.options.items() if name not in submission.defaults}


def _staged(submission: Submission) -> tuple[StagedArtifact, ...]:
    artifacts = submission.artifacts
    if artifacts is None:
        return ()
    lists = (StagedFileKind.REQUIREMENTS, StagedFileKind.PYPI_REQUIREMENTS)
    unused = (StagedFileKind.SUBMISSION_ENVIRONMENT, StagedFileKind.SCRIPT)
    pipeline = ParsedPipeline(parsed(runnable(submission.pipeline, requested=environment_type(submission.options))))
    whole = of_workers(pipeline.proto)
    # Embedded parts need the files that their environment has in SDK workers.
    alone = whole - with_parts(pipeline)
    found = [
        StagedArtifact(f.name, f.path, sha256=f.sha256) for f in artifacts.files if whole.intersection(f.environments)
    ]
    for file in artifacts.files:
        if file.kind not in unused and not alone.issuperset(file.environments):
            found.append(StagedArtifact(file.name, file.path, file.kind in lists))
    return tuple(found)
