"""Composition root: `ArcbeamRunner` wires translation, Spark, the store and the job's life together.

Owns what a pipeline of this process is put through, and the result that its user holds.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any, ClassVar

from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    TypeOptions,
)
from apache_beam.options.value_provider import RuntimeValueProvider
from apache_beam.pipeline import PipelineVisitor
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.runners.pipeline_utils import (
    group_by_key_input_visitor,
    merge_common_environments,
    merge_superset_dep_environments,
)
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState
from apache_beam.transforms import core, environments

from arcbeam.errors import InvalidPipelineError, UserCodeError
from arcbeam.job import Job, session_options
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.model.plan import Plan
from arcbeam.options import ArcbeamOptions
from arcbeam.spark.session.sessions import open_session
from arcbeam.spark.tasks.artifacts import prelude_for, staged_by
from arcbeam.spark.tasks.mainmodule import MainClasses
from arcbeam.translate import translate


class ArcbeamRunner(PipelineRunner):  # type: ignore[misc]  # Beam is untyped
    """Runs a Beam pipeline on Spark: on the active SparkSession, else on one built from the options.

    Args:
        is_drain: put a truncation in front of every splittable DoFn, as a drain would.
    """

    submissions: ClassVar[int] = 0
    """How many pipelines of this process have come here."""

    def __init__(self, is_drain: bool = False) -> None:
        super().__init__()
        self._is_drain = is_drain

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> ArcbeamResult:
        """Submits the pipeline.

        Raises:
            SubmissionError: it cannot run; nothing was started.
            SetupError: there is no Spark to run it on.
        """
        ArcbeamRunner.submissions += 1
        RuntimeValueProvider.set_runtime_options({})
        ours = options.view_as(ArcbeamOptions)
        ours.check()
        debug = options.view_as(DebugOptions)
        experiments = list(debug.experiments or [])
        if "beam_fn_api" not in experiments:
            debug.experiments = [*experiments, "beam_fn_api"]
        allow = options.view_as(TypeOptions).allow_non_deterministic_key_coders
        try:
            pipeline.visit(group_by_key_input_visitor(not allow))
        except ValueError as e:
            raise InvalidPipelineError(str(e)) from e
        try:
            proto = pipeline.to_runner_api(default_environment=environments.EmbeddedPythonEnvironment.default())
        except ValueError as e:
            # The SDK's word for a key without a deterministic encoding; it names the step and the type.
            raise InvalidPipelineError(
                str(e),
                "register a deterministic coder for the key's type, or map keys to primitive types or tuples of them",
            ) from e
        except Exception as e:
            culprit = _unpicklable(pipeline)
            if not culprit:
                raise
            cause: BaseException = e
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise InvalidPipelineError(
                f"'{culprit}' cannot be pickled: {type(cause).__name__}: {cause}",
                "make connections, clients and generators in setup() or start_bundle(), not in the constructor",
            ) from e
        proto = merge_common_environments(merge_superset_dep_environments(proto))
        name = options.view_as(GoogleCloudOptions).job_name or "beam"
        plan = translate(
            proto,
            name=name,
            fusion=not ours.no_fusion,
            drain=self._is_drain,
            allow_non_deterministic_keys=bool(allow),
        )
        if not plan.stages:
            raise InvalidPipelineError("the pipeline has no transforms", "apply at least one before run()")
        with tempfile.TemporaryDirectory(prefix="arcbeam-staging-") as folder:
            files = staged_by(options, Path(folder))
            spark = open_session(session_options(ours))
            prelude = prelude_for(spark, options, files, _declared_outputs(pipeline), MainClasses.here())
        return ArcbeamResult(plan, Job(plan, ours, prelude))


class _Leaves(PipelineVisitor):  # type: ignore[misc]  # Beam is untyped
    """Collects the leaves of a pipeline."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def visit_transform(self, transform_node: Any) -> None:
        self.found.append(transform_node)


def _leaves(pipeline: Any) -> list[Any]:
    visitor = _Leaves()
    pipeline.visit(visitor)
    return visitor.found


def _unpicklable(pipeline: Any) -> str:
    """The full name of the first transform that does not serialize; "" if each does."""
    for applied in _leaves(pipeline):
        context = PipelineContext(default_environment=environments.EmbeddedPythonEnvironment.default())
        try:
            if applied.transform is not None:
                applied.to_runner_api(context)
        except Exception:
            return str(applied.full_label)
    return ""


def _declared_outputs(pipeline: Any) -> dict[str, tuple[str, ...]]:
    """The steps whose `with_outputs` lists their tags, with the tags: any other tag is a mistake."""
    declared = {}
    for applied in _leaves(pipeline):
        outer = getattr(applied.parent, "transform", None)
        if isinstance(outer, core._MultiParDo) and outer._tags and not outer._allow_unknown_tags:
            declared[str(applied.full_label)] = tuple(map(str, outer._tags))
    return declared


class ArcbeamResult(PipelineResult):  # type: ignore[misc]  # Beam is untyped
    """A submitted job, running on a thread of its own.

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
        threading.Thread(target=self._work, name=f"job-{job.id}", daemon=True).start()

    def _work(self) -> None:
        try:
            self._job.run()
            self._state = PipelineState.DONE
        except BaseException as e:
            self._error = e
            self._state = PipelineState.CANCELLED if self._job.cancelled else PipelineState.FAILED
        finally:
            self._ended.set()

    def wait_until_finish(self, duration: float | None = None) -> str:
        """Waits.

        Args:
            duration: milliseconds to wait at most; None: until the job ends.

        Returns:
            The state.

        Raises:
            UserCodeError, JobFailedError, …: why the job failed.
        """
        try:
            self._ended.wait(None if duration is None else duration / 1000)
        except KeyboardInterrupt:
            self.cancel()
            raise
        if self._error is not None and not self._job.cancelled:
            if isinstance(self._error, UserCodeError):
                # It holds the user's own traceback; ours, which would grow each time it is raised, helps nobody.
                raise self._error.with_traceback(None)
            raise self._error
        state: str = self.state
        return state

    def cancel(self) -> str:
        """Cancels the job's Spark jobs and waits for its end."""
        if not self._ended.is_set():
            self._job.cancel()
            self._ended.wait()
        state: str = self.state
        return state

    def metrics(self) -> JobMetrics:
        """User metrics; empty until the job ends."""
        return JobMetrics(self._job.metrics(), True)

    def monitoring_metrics(self) -> JobMetrics:
        """User and system metrics; empty until the job ends."""
        return JobMetrics(self._job.metrics(), False)
