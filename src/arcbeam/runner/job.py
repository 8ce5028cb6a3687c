"""One job: a plan on a Spark session, from its temporary folder to its metrics.

Part of the composition root. `runner` (pipelines of this process) and `executor` (pipelines of a job server) share it.
Owns what surrounds a run: session, settings, temporary location, warnings, progress.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from typing_extensions import override

from arcbeam import errors, secrets
from arcbeam.console.progressline import ProgressLine, announce, watched
from arcbeam.engine.coordinator import EndState
from arcbeam.errors import ArcbeamError, JobCancelledError, RequestRefusedError
from arcbeam.explain import as_json
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.jobs.termination import OnSigterm
from arcbeam.model import texts
from arcbeam.model.plan import Plan
from arcbeam.model.rows import SHARDS_MAX, BundleReport, LogLine
from arcbeam.monitoring import tracing
from arcbeam.monitoring.prometheus import Counter, MonitoredJob, exposing, label_of
from arcbeam.options import SHARDS_MIN, ArcbeamOptions, given
from arcbeam.runner.jobgraph import StoredJobGraph
from arcbeam.runner.ownpage import details_of, own_page
from arcbeam.runner.requestfuture import RequestFuture
from arcbeam.runner.stagelog import StageLog
from arcbeam.spark import daemon
from arcbeam.spark.batch.boundedjob import BatchRun
from arcbeam.spark.session import driver
from arcbeam.spark.session.remote import impatient
from arcbeam.spark.session.sessions import SessionOptions, default_parallelism, open_session, pooled, prepared
from arcbeam.spark.sparkpage import SparkPage
from arcbeam.spark.streaming import streamingjob
from arcbeam.spark.tasks.lostattempts import LeftLines
from arcbeam.store.blobs.backends import shown
from arcbeam.store.blobs.errors import FencedError
from arcbeam.store.blobs.private import own_folder
from arcbeam.store.jobtemp.claim import Claim, sweep
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.log.jobname import job_label, resume_command
from arcbeam.store.log.requests import RequestKind, refusal
from arcbeam.store.log.savepoints import named_now, path_of, place_of
from arcbeam.streaming.interfaces import JobListener
from arcbeam.streaming.restore.restore import RestoreOptions
from arcbeam.streaming.status.status import Status, as_record

_LOG = logging.getLogger("arcbeam")

_MESSAGES = 1000
"""Number of messages that a job keeps in memory. The log has all."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a streaming job to users.

    Attributes:
        time: seconds since 1970.
        level: as in `logging`: INFO for a micro-batch or a change of state; WARNING.
        text: for people.
    """

    time: float
    level: int
    text: str


class Job(JobListener):
    """A job. It runs once.

    Args:
        plan: what to run.
        options: how.
        worker_setup: called in each worker before it opens its first processor of this job.
        listener: gets the job's events, too.
        job_graph: the job graph that a streaming job stores, so that it can be resumed without this program.
        shards: of a new job without the option; None: see the option's help.
        id: of the job at a job server; "": a new one.

    Attributes:
        id: unique among the jobs of a process. A job that another process resumes has another id, or its server's.
        name: of the job, for people: each line of the log begins with it.
        lines: what its tasks have logged last.
        spark_page: Spark's own page.
        on_sigterm: what a SIGTERM to the process does to the job.
        sigterm_seconds: how long that may take.

    Raises:
        InvalidPipelineError: a SIGTERM is to suspend the job, but it has no folder to resume from.
        SetupError: there is no Spark to run it on.
    """

    def __init__(
        self,
        plan: Plan,
        options: ArcbeamOptions,
        worker_setup: Callable[[], None] | None = None,
        listener: JobListener | None = None,
        job_graph: StoredJobGraph | None = None,
        shards: int | None = None,
        id: str = "",
    ) -> None:
        token = uuid.uuid4().hex[:12]
        self.name, self.id = plan.name, id or f"{texts.slug(plan.name) or 'job'}-{token}"
        # SUBTLE: not the server's id: a driver that was killed may have left a temporary location of that name.
        self._run_id = f"{id}-{token}" if id else self.id
        self._plan, self._options, self._worker_setup = plan, options, worker_setup
        self.on_sigterm = OnSigterm.of(options.on_sigterm, bounded=plan.bounded, kept=bool(options.checkpoint_dir))
        self.sigterm_seconds = float(options.sigterm_seconds)
        self._listener, self._job_graph, self._shards = listener or JobListener(), job_graph, shards
        self._at_server = bool(id)
        self._observed = self._at_server or options.page_port is not None
        self._run: BatchRun | streamingjob.StreamRun | None = None
        self._started, self._streaming = time.monotonic(), False
        self._messages: deque[Message] = deque(maxlen=_MESSAGES)
        # A bounded job's page knows its stages by name.
        self.lines = StageLog({stage.id: stage.name for stage in plan.stages} if plan.bounded else {})
        self.spark_page = SparkPage()
        self._cancelled = threading.Event()
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._trace: tracing.Committed = tracing.nothing
        tracing.check(options.otlp_endpoint, plan.bounded)
        secrets.install(secrets.parted(given(options)).secrets)
        self._spark = open_session(session_options(options))

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled."""
        return self._cancelled.is_set()

    @property
    def ended(self) -> bool:
        """Whether its run has ended."""
        return self._ended.is_set()

    @property
    def state(self) -> str:
        """Beam's name of the state while the job runs."""
        run = self._run
        return run.state() if isinstance(run, streamingjob.StreamRun) else "RUNNING"

    def run(self) -> str:
        """Run to the end; blocks.

        Returns:
            The final state, in Beam's terms. A suspended job is STOPPED.

        Raises:
            UserCodeError, JobFailedError, …: the job failed.
            JobCancelledError: `cancel` was called.
        """
        options, started = self._options, time.monotonic()
        root = options.arcbeam_temp or str(own_folder("jobs"))
        location = JobLocation.under(root, self._run_id, secrets=self._secrets())
        if location.folder is not None:
            sweep(location.folder.parent)
        # Files that are kept for inspection must not be swept by the next job.
        claim = None if options.keep_job_temp else Claim(location)
        try:
            with self._patience(), prepared(self._spark), pooled(self._spark, self._run_id):
                self.spark_page.find(self._spark)
                settings = TaskSettings(
                    shards=options.shards
                    or self._shards
                    or default_shards(self._plan, default_parallelism(self._spark)),
                    bundle_elements=options.bundle_elements,
                    bundle_seconds=options.bundle_seconds,
                    group_memory_bytes=options.group_memory_mb << 20,
                    sdf_round_seconds=options.sdf_round_seconds,
                    shutdown_seconds=options.shutdown_seconds,
                    micro_batch_seconds=options.micro_batch_seconds,
                    backlog_micro_batch_seconds=max(options.micro_batch_seconds, options.backlog_micro_batch_seconds),
                    **options.optimizations,
                )
                if self._at_server:
                    # It runs jobs of several users, and does not unpickle what is theirs.
                    settings = replace(settings, driver_publishing=False)
                self._run = self._run_of(settings, location)
                if self.cancelled:
                    raise JobCancelledError(f"job '{self.name}' was cancelled")
                self._begun.set()
                for text in self._plan.warnings:
                    _LOG.warning("%s: %s", self.name, text)
                    self.warned(text)
                with (
                    ProgressLine(self._run.progress),
                    exposing(options.metrics_endpoint, lambda: [self.exposed()]),
                    tracing.tracing(options.otlp_endpoint, self.name, self._run_id) as self._trace,
                    own_page(self, options.page_port, lambda: given(options)),
                ):
                    outcome = self._run.run()
            _LOG.info("%s: done in %.1f s: %s", self.name, time.monotonic() - started, outcome.summary())
            if isinstance(outcome, streamingjob.StreamingOutcome) and outcome.state is EndState.STOPPED:
                self._log_end(f"suspended at micro-batch {outcome.head}", kept=True)
            return outcome.state.name if isinstance(outcome, streamingjob.StreamingOutcome) else "DONE"
        except Exception as e:
            self._log_failure(e)
            if self.cancelled:
                raise JobCancelledError(f"job '{self.name}' was cancelled") from e
            if isinstance(e, ArcbeamError):
                raise
            # Spark's driver may die between Spark jobs, too.
            raise driver.lost(self._spark, e) or e  # noqa: B904
        finally:
            self._ended.set()
            if self._plan.bounded:
                for each in LeftLines(location).new():
                    self.logged(*each)
            if not options.keep_job_temp:
                location.delete_all()
            if claim is not None:
                claim.release()

    def _patience(self) -> contextlib.AbstractContextManager[None]:
        """How long PySpark waits for a Connect server. A batch job waits as long as the session is configured."""
        return contextlib.nullcontext() if self._plan.bounded else impatient(self._spark)

    def _log_failure(self, error: Exception) -> None:
        """Log in one line what remains of a job that was cancelled or failed.

        A failed job without state leaves nothing to report: its error names the cause.
        """
        run, cancelled = self._run, self.cancelled or isinstance(error, JobCancelledError)
        if isinstance(run, BatchRun) and cancelled:
            published = "some of its output may be published; " if run.half_published else ""
            _LOG.warning("%s: cancelled; %sit keeps no state: run it again from the beginning", self.name, published)
        if not isinstance(run, streamingjob.StreamRun) or not (cancelled or run.kept):
            return
        status = run.status()
        if status is None:
            if cancelled:
                self._log("cancelled before it began to run; nothing is committed: submit or resume it again")
        elif isinstance(error, FencedError | errors.SubmitterLostError):
            # A takeover was reported when this driver noticed it.
            why = "another driver runs the job" if isinstance(error, FencedError) and not cancelled else error.message
            self._log(f"ended at micro-batch {status.micro_batch}: {why}")
        else:
            how = "cancelled" if cancelled else "failed"
            self._log_end(f"{how} at micro-batch {status.micro_batch}", kept=run.kept)

    def _log_end(self, how: str, *, kept: bool) -> None:
        run = self._run
        assert isinstance(run, streamingjob.StreamRun)
        resume = f"resume it: {resume_command(shown(run.store), self._job_graph is not None)}"
        resume = f"remove the cause of its error, then {resume}" if how.startswith("failed") else resume
        restart = "without --checkpoint_dir it keeps no state: run it again from the beginning"
        self._log(f"{how}; {resume if kept else restart}")

    def _log(self, text: str) -> None:
        """Log how the job ended."""
        _LOG.warning("%s: %s", self.name, text)
        self.warned(text)

    def _secrets(self) -> dict[str, str]:
        """Return the secrets that the job's workers need, without those of the session."""
        found = secrets.parted(given(self._options)).secrets
        store, _ = place_of(self._options.checkpoint_dir or "", self._options.from_savepoint or "")
        if "checkpoint_dir" in found:
            found["checkpoint_dir"] = store
        return {name: value for name, value in found.items() if not name.startswith("spark_")}

    def _run_of(self, settings: TaskSettings, location: JobLocation) -> BatchRun | streamingjob.StreamRun:
        around = self._plan, self._spark, settings, self._run_id, location
        if self._plan.bounded:
            # A server's job may be looked at from any machine.
            return BatchRun(*around, self.reported, self._worker_setup, watched() or self._observed)
        store, how = self._take_over()
        if store is None:
            _LOG.info(
                "%s: it cannot be resumed: its state is in a temporary folder; to keep it, set --checkpoint_dir",
                self.name,
            )
        samples = self._options.page_samples
        details = partial(details_of, self, of_folder=True)
        return streamingjob.StreamRun(*around, store, self, self._worker_setup, how, samples, details)

    def _take_over(self) -> tuple[str | None, RestoreOptions]:
        """Return the job's folder, and how to resume the job there."""
        options, kept = self._options, self._job_graph
        store, savepoint = place_of(options.checkpoint_dir or "", options.from_savepoint or "")
        return store or None, RestoreOptions(
            savepoint,
            options.force_resume,
            options.renamed_stages,
            options.shards,
            kept.job_graph if kept is not None and store else None,
            kept.files if kept is not None else {},
            options.allow_dropped_state,
            options.discard_later_micro_batches,
        )

    def ask(self, what: RequestKind, savepoint: str = "") -> RequestFuture:
        """Send a request to a running streaming job.

        Args:
            what: the request.
            savepoint: name of the savepoint that it creates; "": a name with the time.

        Raises:
            RequestRefusedError: the request cannot succeed.
        """
        if self._plan.bounded:
            raise refusal(
                what,
                self._label(),
                "it is a batch job",
                "cancel it, or submit it with --streaming; a pipeline with an unbounded input always streams",
            )
        run = self._begun_run(what)
        if what in (RequestKind.SAVEPOINT, RequestKind.SUSPEND) and not run.kept:
            raise refusal(
                what,
                self._label(),
                "its state is in a temporary folder that is removed when it ends",
                "submit it with a --checkpoint_dir; this job can only be drained or cancelled",
            )
        if what is RequestKind.DRAIN and not savepoint and (drain := run.draining()) is not None:
            # Without a name for the savepoint, the running drain is the answer.
            return RequestFuture(drain, "", self._label())
        name = "" if what is RequestKind.CANCEL else savepoint or named_now(what)
        return RequestFuture(run.ask(what, name), path_of(run.store, name) if run.kept and name else "", self._label())

    def _label(self) -> str:
        """Return the job's name in messages."""
        return job_label(self.name, self.folder())

    def folder(self) -> str:
        """Return the folder that keeps the job's state, for people; "" if it keeps none."""
        run = self._run
        return shown(run.store) if isinstance(run, streamingjob.StreamRun) and run.kept else ""

    def _begun_run(self, what: RequestKind) -> streamingjob.StreamRun:
        """Return the run; wait until it has begun."""
        while not self._begun.wait(0.1):
            if self._ended.is_set():
                raise refusal(what, self._label(), "it ended before it began to run", "submit it again")
        run = self._run
        assert isinstance(run, streamingjob.StreamRun)
        return run

    def ask_to_end(self) -> None:
        """See `arcbeam.jobs.termination.Endable`.

        A suspension by a signal creates no savepoint: the job resumes from its newest micro-batch. Otherwise a job that
        is stopped every night would get one more savepoint each time, and keep its files.
        """
        run = self._begun_run(RequestKind.SUSPEND)
        try:
            if self.on_sigterm is OnSigterm.DRAIN:
                if run.draining() is None:
                    RequestFuture(run.ask(RequestKind.DRAIN, named_now(RequestKind.DRAIN)), "", self._label()).heard()
            else:
                RequestFuture(run.ask(RequestKind.SUSPEND), "", self._label()).wait()
        except RequestRefusedError:
            # The last line of a job that ends anyway reports how it ended.
            if not run.ends:
                raise

    def cancel(self, timeout: float | None = None) -> None:
        """Interrupt the job's Spark jobs until the run has ended, or the timeout (seconds) has passed."""
        self._cancelled.set()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended.wait(0.2) and (deadline is None or time.monotonic() < deadline):
            if self._run is not None:
                self._run.interrupt()

    def messages(self) -> list[Message]:
        """Return the last 1000 messages of the job."""
        return list(self._messages)

    def status(self) -> Status | None:
        """Return a streaming job's status after its newest micro-batch; None for a batch job, and before it begins."""
        run = self._run
        return run.status() if isinstance(run, streamingjob.StreamRun) else None

    def snapshot(self, whole: bool = True) -> dict[str, Any]:
        """Return what the job does now, as JSON values; callable from any thread.

        Args:
            whole: with the stages of a streaming job, which may be hundreds, and the plan of a bounded one.

        Returns:
            `status` of a streaming job, as `as_record`, or None; `progress` of a bounded job: `stages`, each as
            `StageProgress`, its `plan`, `log` and `spark`, or None; `folder` of a job that keeps its state, for people,
            or "".
        """
        run, status = self._run, self.status()
        if status is not None and not whole:
            status = replace(status, stages=())
        stages = [asdict(stage) for stage in run.stages()] if isinstance(run, BatchRun) else []
        more = {}
        if whole and stages:
            more = {"plan": as_json(self._plan), "log": self.lines.newest(), "spark": self.spark_page.address}
        return {
            "status": None if status is None else as_record(status),
            "progress": {"stages": stages, **more} if self._plan.bounded else None,
            "folder": self.folder(),
        }

    def exposed(self) -> MonitoredJob:
        """Return the job with its metrics, for Prometheus."""
        run, label = self._run, label_of(self.name, self.folder())
        counters = [
            Counter(of.key.step, of.key.metric.namespace, of.key.metric.name, of.committed)
            for of in JobMetrics(self.metrics()).query()[JobMetrics.COUNTERS]
        ]
        return MonitoredJob(label, self.status(), None if run is None else run.progress(), counters)

    def metrics(self) -> list[bytes]:
        """Return serialized MonitoringInfos of what counts so far: in a streaming job, of what is committed."""
        return self._run.metrics() if self._run else []

    def attempted(self) -> list[bytes]:
        """Return those of all reports, in a streaming job also of runs that failed."""
        run = self._run
        return run.attempted() if isinstance(run, streamingjob.StreamRun) else self.metrics()

    # `JobListener`.

    @override
    def opened(self) -> None:
        self._listener.opened()

    @override
    def reported(self, report: BundleReport) -> None:
        _repeat_warnings(report)
        self.logged(report.stage, report.worker, report.lines)
        # A bounded job keeps its reports.
        report.lines = []
        self._listener.reported(report)

    @override
    def logged(self, stage: str, worker: str, lines: Sequence[LogLine]) -> None:
        self.lines.add(stage, worker, lines)

    @override
    def streaming(self, line: str) -> None:
        if not self._streaming:
            self._streaming = True
            seconds = time.monotonic() - self._started
            announce(f"{self.name}: first micro-batch committed ({seconds:.1f} s after the job began)")
        assert isinstance(self._run, streamingjob.StreamRun)
        self._trace(self._run)
        self._keep(logging.INFO, line)
        self._listener.streaming(line)

    @override
    def warned(self, text: str) -> None:
        self._keep(logging.WARNING, text)
        self._listener.warned(text)

    @override
    def turned(self, state: str) -> None:
        self._keep(logging.INFO, f"the job is {state}")
        self._listener.turned(state)

    def _keep(self, level: int, text: str) -> None:
        self._messages.append(Message(time.time(), level, text))


def default_shards(plan: Plan, tasks: int) -> int:
    """Return the number of shards of a new job.

    Args:
        plan: the job's plan.
        tasks: how many tasks Spark runs at the same time.
    """
    # A job on bounded input ends before it has to grow.
    return min(max(1 if plan.bounded or plan.finite else SHARDS_MIN, tasks), SHARDS_MAX)


def session_options(options: ArcbeamOptions) -> SessionOptions:
    """Return the options of the session."""
    return SessionOptions(options.spark_master, tuple(options.spark_conf or ()), options.spark_remote, daemon.MODULE)


def _repeat_warnings(report: BundleReport) -> None:
    """Issue a worker's warnings on the driver."""
    for name, text in report.warnings:
        module, _, qualname = name.rpartition(".")
        category = getattr(sys.modules.get(module), qualname, None)
        known = isinstance(category, type) and issubclass(category, Warning)
        warnings.warn(text, category if known else UserWarning, stacklevel=2)
