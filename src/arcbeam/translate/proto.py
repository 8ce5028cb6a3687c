"""From a pipeline to its plan: one way for all who have one, whether it is to run, to be explained, or came as a proto.

Owns what the SDK's runners do to a pipeline before they have its proto, and the words for what cannot become one. A
proto that is made without it has other coders, so nothing else here calls `Pipeline.to_runner_api`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

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


def pipeline_proto(pipeline: Any, options: PipelineOptions | None = None) -> Any:
    """The proto of a pipeline of this process, with the types and coders that runners give it.

    Args:
        pipeline: `apache_beam.Pipeline`; the types of what is grouped are set in it.
        options: what it runs with (default: its own).

    Raises:
        InvalidPipelineError: it cannot become a proto; the message names the step.
    """
    options = pipeline.options if options is None else options
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
            return merged(pipeline.to_runner_api(default_environment=EmbeddedPythonEnvironment.default()))
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


_looking = threading.RLock()


@contextlib.contextmanager
def _looking_once() -> Iterator[None]:
    """Has the SDK look for state and timers once in each DoFn.

    It goes through the signatures of all methods of a DoFn, and does so four times for each ParDo's proto: without this
    that is three quarters of what a pipeline's proto takes. A pipeline of another thread is looked at no differently.
    """
    found: dict[int, tuple[Any, Any]] = by_identity()  # with the DoFn itself: an id is its own only while it is there

    def look_once(dofn: Any) -> Any:
        if id(dofn) not in found:
            found[id(dofn)] = dofn, look(dofn)
        return found[id(dofn)][1]

    with _looking:
        look, userstate.get_dofn_specs = userstate.get_dofn_specs, look_once
        try:
            yield
        finally:
            userstate.get_dofn_specs = look


@contextlib.contextmanager
def _main_input_alone() -> Iterator[None]:
    """Has the SDK ask for the key of a DoFn with state where it is: in its main input.

    SUBTLE: the SDK takes any of its inputs, also one that is read at the side, and which one is up to the hashes of the
    process: if that has no pairs, what runs in one process is refused in the next.
    """

    def look_there(pardo: Any, inputs: Any) -> Any:
        main = {name: of for name, of in (inputs or {}).items() if not name.startswith(SIDE_INPUT_PREFIX)}
        return look(pardo, main or None)

    with _looking:
        look, ParDo._get_key_and_window_coder = ParDo._get_key_and_window_coder, look_there
        try:
            yield
        finally:
            ParDo._get_key_and_window_coder = look


def parsed(data: bytes) -> Any:
    """The proto that bytes hold.

    Raises:
        InvalidPipelineError: they hold none.
    """
    try:
        return runner_pb.Pipeline.FromString(data)
    except Exception as e:
        raise InvalidPipelineError(f"not a pipeline proto: {e}") from e


def merged(proto: Any) -> Any:
    """A proto with each environment once: transforms that could share a stage do."""
    return merge_common_environments(merge_superset_dep_environments(proto))


def plan_of(proto: Any, options: ArcbeamOptions, *, name: str = "", drain: bool = False) -> Plan:
    """The plan of what `pipeline_proto` or `merged` gave.

    Args:
        proto: `beam_runner_api_pb2.Pipeline`; not changed.
        options: what it is to run with.
        name: the job's name, for people.
        drain: put a truncation in front of every splittable DoFn.

    Raises:
        InvalidPipelineError: an option's value cannot be meant, or the proto is malformed.
        UnsupportedPipelineError: it needs something that cannot run; every such thing is listed.
    """
    options.check()
    plan = translate(
        proto,
        name=name,
        fusion=not options.no_fusion,
        drain=drain,
        bounded=not is_streaming(proto, options),
        allow_non_deterministic_keys=bool(options.view_as(TypeOptions).allow_non_deterministic_key_coders),
    )
    if not plan.stages:
        raise InvalidPipelineError("the pipeline has no transforms", "apply at least one before run()")
    if options.checkpoint_dir and plan.bounded:
        raise InvalidPipelineError(
            f"--checkpoint_dir={options.checkpoint_dir} is for streaming jobs; all input of this one is bounded",
            "give --streaming, or leave it out",
        )
    return plan


def is_streaming(proto: Any, options: PipelineOptions) -> bool:
    """Whether a pipeline makes a streaming job: it is asked for, or some input is unbounded.

    A splittable DoFn whose elements may be unbounded says so of its output, and a TestStream of each of its own.
    """
    unbounded = (p.is_bounded == runner_pb.IsBounded.UNBOUNDED for p in proto.components.pcollections.values())
    return bool(options.view_as(StandardOptions).streaming) or any(unbounded)


class _Leaves(PipelineVisitor):  # type: ignore[misc]  # Beam is untyped
    """Collects the leaves of a pipeline."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def visit_transform(self, transform_node: Any) -> None:
        self.found.append(transform_node)


def leaves(pipeline: Any) -> list[Any]:
    """The applied transforms of a pipeline that are not made of others."""
    visitor = _Leaves()
    pipeline.visit(visitor)
    return visitor.found


def _unpicklable(pipeline: Any) -> str:
    """The full name of the first transform that does not serialize; "" if each does."""
    for applied in leaves(pipeline):
        context = PipelineContext(default_environment=EmbeddedPythonEnvironment.default())
        try:
            if applied.transform is not None:
                applied.to_runner_api(context)
        except Exception:
            return str(applied.full_label)
    return ""
