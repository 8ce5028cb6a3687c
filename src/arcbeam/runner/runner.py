"""Composition root: `ArcbeamRunner` connects translation, Spark, the store and the job's life cycle.

Owns the submission of a pipeline in this process. `result` owns what the user gets back.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions, SetupOptions
from apache_beam.portability.python_urns import EMBEDDED_PYTHON
from apache_beam.runners.runner import PipelineResult, PipelineRunner
from apache_beam.transforms import core

from arcbeam.errors import InvalidPipelineError
from arcbeam.harness.encoding.script.mainmodule import MainModule
from arcbeam.harness.encoding.script.names import referred_to, words_in
from arcbeam.jobs.environments import runnable
from arcbeam.options import ArcbeamOptions, given
from arcbeam.runner.job import Job, session_options
from arcbeam.runner.jobgraph import job_graph_to_store
from arcbeam.runner.result import ArcbeamResult
from arcbeam.runner.submission import environment_of, submit
from arcbeam.spark.session.sessions import open_session, unheeded
from arcbeam.spark.tasks.artifacts import staged_by, worker_setup_for
from arcbeam.store.blobs.claims import work_folder
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.proto import leaves, merged, parsed, pipeline_proto, plan_of

_LOG = logging.getLogger("arcbeam")


class ArcbeamRunner(PipelineRunner):  # type: ignore[misc]  # Beam is untyped
    """Runs a Beam pipeline on Spark: on the active SparkSession, else on one built from the options.

    With `--job_endpoint`, a job server runs it; the result is then the SDK's own.

    Args:
        is_drain: truncate every splittable DoFn, as a drain does.
    """

    def __init__(self, is_drain: bool = False) -> None:
        super().__init__()
        self._is_drain = is_drain
        self._is_interactive = False

    def is_interactive(self) -> None:
        """Beam's `InteractiveRunner` drives this runner, which therefore waits for its jobs.

        It reads what a pipeline has written as soon as `run_pipeline` returns.
        """
        self._is_interactive = True

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> PipelineResult:
        """Submit the pipeline. An interactive pipeline has ended when this returns.

        Raises:
            SubmissionError: it cannot run; nothing was started.
            SetupError: there is no Spark to run it on.
            UserCodeError, JobFailedError, …: an interactive pipeline failed.
        """
        ours = options.view_as(ArcbeamOptions)
        endpoint = options.view_as(PortableOptions).job_endpoint
        if endpoint:
            proto = pipeline_proto(pipeline, options, environment_of(options))
        else:
            _check_environment(options)
            proto = _all_embedded(pipeline_proto(pipeline, options))
        parsed_pipeline = ParsedPipeline(proto)
        if self._is_interactive and parsed_pipeline.has_unbounded_input:
            raise InvalidPipelineError(
                "InteractiveRunner cannot run a pipeline with an unbounded input on arcbeam: recorded streams are not "
                "supported",
                "give it a bounded input, such as beam.Create with a sample; or run the pipeline with ArcbeamRunner",
            )
        serialized = proto.SerializeToString()
        main = _script_for(serialized, options.view_as(SetupOptions).pickle_library)
        declared = _declared_outputs(pipeline)
        result = (
            submit(proto, options, main, declared)
            if endpoint
            else self._run(parsed_pipeline, serialized, ours, main, declared)
        )
        if self._is_interactive:
            result.wait_until_finish()
        return result

    def _run(
        self,
        pipeline: ParsedPipeline,
        serialized: bytes,
        options: ArcbeamOptions,
        main: MainModule,
        declared: dict[str, tuple[str, ...]],
    ) -> ArcbeamResult:
        """Start the job in this process."""
        name = options.view_as(GoogleCloudOptions).job_name or script_name() or "beam"
        plan = plan_of(pipeline, options, name=name, drain=self._is_drain)
        with work_folder("staging") as folder:
            files = staged_by(options, folder)
            spark = open_session(session_options(options))
            if ignored := unheeded(spark, session_options(options)):
                _LOG.warning("running on the active Spark session, which does not have %s", ", ".join(ignored))
            worker_setup = worker_setup_for(spark, options, files, declared, main)
        # A pipeline with truncations must not get them again when it is resumed.
        resumable = not plan.bounded and options.checkpoint_dir and not self._is_drain
        job_graph = job_graph_to_store(name, serialized, given(options), worker_setup) if resumable else None
        return ArcbeamResult(plan, Job(plan, options, worker_setup, job_graph=job_graph))


def _check_environment(options: PipelineOptions) -> None:
    """Refuse another environment than the embedded one: this runner would not use it."""
    kind = options.view_as(PortableOptions).environment_type
    if kind not in (None, EMBEDDED_PYTHON):
        raise InvalidPipelineError(
            f"--environment_type={kind} is for job servers; ArcbeamRunner runs user code in Spark's Python workers",
            "omit it, or submit with --runner=PortableRunner to a job server: arcbeam serve",
        )


def _all_embedded(proto: Any) -> Any:
    """Return a pipeline in which this process's environment replaces equal ones, which expansion services bring.

    Raises:
        UnsupportedPipelineError: transforms need other environments; it lists all of them.
    """
    if all(each.urn == EMBEDDED_PYTHON for each in proto.components.environments.values()):
        return proto
    return merged(parsed(runnable(proto.SerializeToString(), workers=False)))


def _script_for(serialized: bytes, pickle_library: str) -> MainModule:
    """Return the names of the script that a serialized pipeline may look up in the workers.

    Raises:
        InvalidPipelineError: the pipeline refers to a name that cannot be sent.
    """
    if pickle_library.startswith("dill"):
        return MainModule.here()
    main = MainModule.here(words_in(serialized))
    reasons = dict(main.names.unsent)
    for name in referred_to(reasons, serialized):
        raise InvalidPipelineError(
            f"'{name}' of the script cannot be sent to the workers: {reasons[name]}",
            "define it in a module that the workers can import (--setup_file, --files_to_stage)",
        )
    return main


def script_name() -> str:
    """Return the name of this process's script, as a file name; "" without a script, as in a notebook."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not file:
        return ""
    path = Path(file)
    stem = path.resolve().parent.name if path.name == "__main__.py" else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem)


def _declared_outputs(pipeline: Any) -> dict[str, tuple[str, ...]]:
    """Return the transforms whose `with_outputs` lists their tags, with the tags. Any other tag is a mistake."""
    declared = {}
    for applied in leaves(pipeline):
        outer = getattr(applied.parent, "transform", None)
        if isinstance(outer, core._MultiParDo) and outer._tags and not outer._allow_unknown_tags:
            declared[str(applied.full_label)] = tuple(map(str, outer._tags))
    return declared
