"""From a pipeline to its plan: one path for all callers, which run it, explain it, or receive it as a proto.

Owns what the SDK's runners do to a pipeline before they make its proto, and the errors for what cannot become a proto.
A proto made in another way has other coders, so no other module calls `Pipeline.to_runner_api`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from apache_beam.internal.cloudpickle import cloudpickle
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions, StandardOptions, TypeOptions
from apache_beam.options.value_provider import RuntimeValueProvider
from apache_beam.pipeline import PipelineVisitor
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.runners.pipeline_utils import (
    group_by_key_input_visitor,
    merge_common_environments,
    merge_superset_dep_environments,
)
from apache_beam.transforms import ParDo, userstate
from apache_beam.transforms.environments import EmbeddedPythonEnvironment
from apache_beam.transforms.sideinputs import SIDE_INPUT_PREFIX

from arcbeam.errors import InvalidPipelineError
from arcbeam.model.plan import Plan
from arcbeam.options import ArcbeamOptions
from arcbeam.sizes import by_identity
from arcbeam.translate.lower import translate
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline


def pipeline_proto(pipeline: Any, options: PipelineOptions | None = None, environment: Any = None) -> Any:
    """Return the proto of a pipeline of this process, with the types and coders that runners set.

    Args:
        pipeline: `apache_beam.Pipeline`. Sets the types of the inputs of groupings in it.
        options: the options to run with (default: the pipeline's own).
        environment: the SDK's environment of transforms without one (default: embedded Python, without files).

    Raises:
        InvalidPipelineError: the pipeline cannot become a proto; the message names the transform.
    """
    options = pipeline.options if options is None else options
    if "__mp_main__" in sys.modules:
        # The script in a child that `multiprocessing` has spawned: no worker can import it.
        cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])
    RuntimeValueProvider.set_runtime_options({})
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
        with _looking_once(), _main_input_alone():
            default = environment or EmbeddedPythonEnvironment.default()
            return merged(pipeline.to_runner_api(default_environment=default))
    except ValueError as e:
        # The SDK's error for a key without a deterministic encoding; it names the transform and the type.
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


_looking = threading.RLock()


@contextlib.contextmanager
def _looking_once() -> Iterator[None]:
    """Make the SDK look for state and timers only once in each DoFn.

    The SDK inspects the signatures of all methods of a DoFn, four times for each ParDo's proto. Without this patch,
    that takes three quarters of the time for a pipeline's proto. Pipelines in other threads are not affected.
    """
    found: dict[int, tuple[Any, Any]] = (
        by_identity()
    )  # holds the DoFn, too: an id is unique only while its object exists

    def cached_specs(dofn: Any) -> Any:
        if id(dofn) not in found:
            found[id(dofn)] = dofn, look(dofn)
        return found[id(dofn)][1]

    with _looking:
        look, userstate.get_dofn_specs = userstate.get_dofn_specs, cached_specs
        try:
            yield
        finally:
            userstate.get_dofn_specs = look


@contextlib.contextmanager
def _main_input_alone() -> Iterator[None]:
    """Make the SDK take the key coder of a stateful DoFn from its main input.

    SUBTLE: the SDK takes any of the DoFn's inputs, also a side input; which one depends on the process's hashes. If
    that input has no pairs, a pipeline that runs in one process is rejected in the next.
    """

    def main_input_coder(pardo: Any, inputs: Any) -> Any:
        main = {name: of for name, of in (inputs or {}).items() if not name.startswith(SIDE_INPUT_PREFIX)}
        return look(pardo, main or None)

    with _looking:
        look, ParDo._get_key_and_window_coder = ParDo._get_key_and_window_coder, main_input_coder
        try:
            yield
        finally:
            ParDo._get_key_and_window_coder = look


def parsed(data: bytes) -> Any:
    """Parse a pipeline's proto from bytes.

    Raises:
        InvalidPipelineError: the bytes are not a pipeline's proto.
    """
    try:
        return runner_pb.Pipeline.FromString(data)
    except Exception as e:
        raise InvalidPipelineError(f"not a pipeline proto: {e}") from e


def merged(proto: Any) -> Any:
    """Merge equal environments of a proto, so that transforms can share a stage."""
    return merge_common_environments(merge_superset_dep_environments(proto))


def plan_of(pipeline: ParsedPipeline, options: ArcbeamOptions, *, name: str = "", drain: bool = False) -> Plan:
    """Return the plan of a pipeline.

    Args:
        pipeline: its proto is one that `pipeline_proto` or `merged` returned.
        options: the options to run with.
        name: the job's name, for display.
        drain: insert a truncation before every splittable DoFn.

    Raises:
        InvalidPipelineError: the value of an option is invalid, or the proto is malformed.
        UnsupportedPipelineError: the pipeline needs features that cannot run; lists all of them.
    """
    options.check()
    plan = translate(
        pipeline,
        name=name,
        fusion=not options.no_fusion,
        drain=drain,
        bounded=not is_streaming(pipeline, options),
        allow_non_deterministic_keys=bool(options.view_as(TypeOptions).allow_non_deterministic_key_coders),
    )
    finite = not plan.bounded and not _streams(pipeline, options)
    plan = replace(plan, finite=finite, local_bytes=options.local_bytes if plan.bounded else 0)
    if not plan.stages:
        raise InvalidPipelineError("the pipeline has no transforms", "apply at least one before run()")
    if options.checkpoint_dir and plan.bounded:
        raise InvalidPipelineError(
            f"--checkpoint_dir={options.checkpoint_dir} is for streaming jobs, but all input of this job is bounded",
            "set --streaming, or omit --checkpoint_dir",
        )
    return plan


def is_streaming(pipeline: ParsedPipeline, options: PipelineOptions) -> bool:
    """Return whether a pipeline makes a streaming job: the options request it, or some input is unbounded.

    What runs in SDK workers always runs as a streaming job.
    """
    return pipeline.any_workers or _streams(pipeline, options)


def _streams(pipeline: ParsedPipeline, options: PipelineOptions) -> bool:
    """Return whether the options request a streaming job, or some input is unbounded."""
    return bool(options.view_as(StandardOptions).streaming) or pipeline.has_unbounded_input


class _Leaves(PipelineVisitor):  # type: ignore[misc]  # Beam is untyped
    """Collects the leaf transforms of a pipeline."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def visit_transform(self, transform_node: Any) -> None:
        self.found.append(transform_node)


def leaves(pipeline: Any) -> list[Any]:
    """Return the applied transforms of a pipeline that have no parts."""
    visitor = _Leaves()
    pipeline.visit(visitor)
    return visitor.found


def _unpicklable(pipeline: Any) -> str:
    """Return the full name of the first transform that cannot be serialized; "" if all can."""
    for applied in leaves(pipeline):
        context = PipelineContext(default_environment=EmbeddedPythonEnvironment.default())
        try:
            if applied.transform is not None:
                applied.to_runner_api(context)
        except Exception:
            return str(applied.full_label)
    return ""
