"""One job: a plan on a Spark session, from its temporary folder to its metrics.

Part of the composition root, shared by `runner` (pipelines of this process) and `executor` (pipelines that were
submitted to a job server). Owns what happens around a run: session, settings, temporary location, warnings, progress.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable

from arcbeam.errors import ArcbeamError, JobCancelledError
from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.model.plan import Plan
from arcbeam.model.rows import BundleReport
from arcbeam.options import ArcbeamOptions
from arcbeam.progressline import ProgressLine, watched
from arcbeam.spark.batch.boundedjob import BatchRun
from arcbeam.spark.session import driver
from arcbeam.spark.session.sessions import SessionOptions, default_parallelism, is_own, open_session, prepared
from arcbeam.spark.steps.streamjob import StreamRun
from arcbeam.store.blobs.filesystems import user_folder
from arcbeam.store.jobtemp.claim import Claim, sweep
from arcbeam.store.jobtemp.location import JobLocation

_LOG = logging.getLogger("arcbeam")


class Job:
    """A job, to be run once.

    Args:
        plan: what to run.
        options: how.
        prelude: called in each worker before it opens its first processor of this job.
        on_report: told of each task's report as it arrives.

    Attributes:
        id: unique.

    Raises:
        SetupError: there is no Spark to run it on.
    """

    def __init__(
        self,
        plan: Plan,
        options: ArcbeamOptions,
        prelude: Callable[[], None] | None = None,
        on_report: Callable[[BundleReport], None] = lambda report: None,
    ) -> None:
        self.id = f"{plan.name}-{uuid.uuid4().hex[:12]}"
        self._plan, self._options, self._prelude, self._on_report = plan, options, prelude, on_report
        self._run: BatchRun | StreamRun | None = None
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._spark = open_session(session_options(options))

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for the end."""
        return self._cancelled.is_set()

    def run(self) -> None:
        """Runs to the end; blocks.

        Raises:
            UserCodeError, JobFailedError, …: why the job failed.
            JobCancelledError: `cancel` was called.
        """
        options, started = self._options, time.monotonic()
        # By user: another's folder could not be written to.
        root = options.arcbeam_temp or str(user_folder() / "jobs")
        location = JobLocation.under(root, self.id)
        if location.folder is not None:
            sweep(location.folder.parent)
        # What is kept for inspection must not be swept by the next job.
        claim = None if options.keep_job_temp else Claim(location)
        try:
            with prepared(self._spark):
                settings = Settings(
                    shards=options.shards or default_parallelism(self._spark),
                    bundle_elements=options.bundle_elements,
                    bundle_seconds=options.bundle_seconds,
                    group_memory_bytes=options.group_memory_mb << 20,
                    sdf_round_seconds=options.sdf_round_seconds,
                    **options.optimizations,
                )
                self._run = self._run_of(settings, location)
                if self.cancelled:
                    raise JobCancelledError(f"{self.id} was cancelled")
                with ProgressLine(self._run.standing):
                    outcome = self._run.run()
            _LOG.info("%s done in %.1f s: %s", self.id, time.monotonic() - started, outcome.summary())
        except Exception as e:
            if self.cancelled:
                raise JobCancelledError(f"{self.id} was cancelled") from e
            if isinstance(e, ArcbeamError):
                raise
            # It may die between Spark jobs, too.
            raise driver.lost(self._spark, e, is_own(self._spark)) or e  # noqa: B904
        finally:
            self._ended.set()
            if not options.keep_job_temp:
                location.delete_all()
            if claim is not None:
                claim.release()

    def _run_of(self, settings: Settings, location: JobLocation) -> BatchRun | StreamRun:
        around = self._plan, self._spark, settings, self.id, location
        if self._plan.bounded:
            return BatchRun(*around, self._reported, self._prelude, watched())
        store = self._options.checkpoint_dir or None
        if store is None:
            _LOG.info("%s keeps its state in a folder of its own, and cannot be resumed: see --checkpoint_dir", self.id)
        return StreamRun(*around, store, self._reported, self._prelude, self._options.shards)

    def cancel(self, timeout: float | None = None) -> None:
        """Interrupts the job's Spark jobs until the run has ended, or the timeout (seconds) is over."""
        self._cancelled.set()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended.wait(0.2) and (deadline is None or time.monotonic() < deadline):
            if self._run is not None:
                self._run.interrupt()

    def metrics(self) -> list[bytes]:
        """Serialized MonitoringInfos of what has been reported so far."""
        return self._run.metrics() if self._run else []

    def _reported(self, report: BundleReport) -> None:
        _repeat_warnings(report)
        self._on_report(report)


def session_options(options: ArcbeamOptions) -> SessionOptions:
    """What the options say about the session."""
    return SessionOptions(options.spark_master, tuple(options.spark_conf or ()), options.spark_remote)


def _repeat_warnings(report: BundleReport) -> None:
    """Issues on the driver what was issued on a worker."""
    for name, text in report.warnings:
        module, _, qualname = name.rpartition(".")
        category = getattr(sys.modules.get(module), qualname, None)
        known = isinstance(category, type) and issubclass(category, Warning)
        warnings.warn(text, category if known else UserWarning, stacklevel=2)
