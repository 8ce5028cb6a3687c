"""Pipelines whose transforms run in SDK workers: what can run there, and the two parts of such a stage.

Owns which environments have workers, and what is refused in them. Must not know how a worker is started, or the Fn API.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.errors import Unsupported
from arcbeam.model.observers import ANNOTATION
from arcbeam.model.plan import Remote, RemotePort
from arcbeam.model.urns import (
    LATE_ANNOTATION,
    PUBLISH_ANNOTATION,
    READ_URN,
    REMOTE_URN,
    WORKER_WINDOWS_URN,
    WRITE_URN,
)
from arcbeam.translate import teststream
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline, ParsedTransform

_WINDOWS = frozenset(
    [
        common_urns.global_windows.urn,
        common_urns.fixed_windows.urn,
        common_urns.sliding_windows.urn,
        common_urns.session_windows.urn,
    ]
)
_MAPPINGS = frozenset(
    [
        python_urns.PICKLED_WINDOW_MAPPING_FN,
        "beam:windowmappingfn:javasdk:0.1",
        *(f"beam:go:windowmapping:{kind}:v1" for kind in ("global", "fixed", "sliding")),
    ]
)
_READABLE = frozenset([common_urns.coders.GLOBAL_WINDOW.urn, common_urns.coders.INTERVAL_WINDOW.urn])
"""Coders of windows that all SDKs read."""
_LENGTHS = runner_pb.FunctionSpec(urn=common_urns.coders.LENGTH_PREFIX.urn)
_PAIRS = common_urns.sdf_components.PAIR_WITH_RESTRICTION.urn
"""What it puts out is only for the next transform of a splittable DoFn."""
_CALLED = frozenset([python_urns.PICKLED_WINDOWFN, "beam:window_fn:serialized_java:v1"])
"""The window functions that a worker merges windows with on request."""
_REMEDY = "omit --environment_type to run Python in Spark's workers"
_STATES = frozenset(
    [
        "read_modify_write_spec",
        "bag_spec",
        "combining_spec",
        "set_spec",
        "map_spec",
        "multimap_spec",
        "ordered_list_spec",
    ]
)
_ANNOTATIONS = {
    ANNOTATION: "a transform that observes watermarks",
    LATE_ANNOTATION: "a collection of late elements",
    PUBLISH_ANNOTATION: "a publisher",
}


def merges_in_worker(pipeline: ParsedPipeline, strategy: Any) -> bool:
    """Return whether windows of a strategy are merged by a function that only an SDK worker can call."""
    return (
        strategy.merge_status == runner_pb.MergeStatus.NEEDS_MERGE
        and strategy.window_fn.urn not in _WINDOWS
        and pipeline.has_workers(strategy.environment_id)
    )


def strategies(context: Any, pipeline: ParsedPipeline) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the windowing strategies by id, as workers have them, and as the task's process has them.

    The task's process does not load functions of a worker's SDK.

    Args:
        context: of the SDK's phases, from `phases.optimized`.
        pipeline: the pipeline after these phases.
    """
    theirs, ours = {}, {}
    for id, strategy in pipeline.components.windowing_strategies.items():
        there, here = context.windows(strategy.window_coder_id)
        theirs[id] = runner_pb.WindowingStrategy()
        theirs[id].CopyFrom(strategy)
        theirs[id].window_coder_id = there
        ours[id] = runner_pb.WindowingStrategy()
        ours[id].CopyFrom(strategy)
        ours[id].window_coder_id = here
        if pipeline.has_workers(strategy.environment_id) and strategy.window_fn.urn not in _WINDOWS:
            ours[id].window_fn.urn = WORKER_WINDOWS_URN
            ours[id].window_fn.payload = theirs[id].SerializeToString(deterministic=True)
    return theirs, ours


def refused(pipeline: ParsedPipeline) -> Iterator[Unsupported]:
    """Yield what cannot run in SDK workers, for a pipeline of `embedding.with_embedded_parts`."""
    components = pipeline.components
    if not pipeline.any_workers:
        return
    partly = not all(map(pipeline.has_workers, pipeline.used_environments))
    for transform in pipeline.transforms.values():
        name, urn, proto = transform.name, transform.urn, transform.proto
        if urn == teststream.URN and len(set(map(pipeline.is_python, pipeline.used_environments))) > 1:
            yield Unsupported(name, "a TestStream beside workers of several SDKs", "use transforms of one SDK")
        if pipeline.has_workers(proto.environment_id) and not proto.subtransforms:
            for annotation, what in _ANNOTATIONS.items():
                if annotation in proto.annotations:
                    yield Unsupported(name, f"{what} in an SDK worker", _REMEDY)
            for what in _in_par_do(transform.par_do):
                yield Unsupported(name, f"{what} in an SDK worker", _REMEDY)
            if transform.is_par_do and pipeline.is_java(proto.environment_id):
                for what in _in_windows_of_its_own(pipeline, transform):
                    yield Unsupported(name, f"{what} in a Java worker", "use Beam's windows there")
        for pcoll in proto.outputs.values() if partly and urn == common_urns.primitives.ASSIGN_WINDOWS.urn else ():
            if components.coders[pipeline.strategy(pcoll).window_coder_id].spec.urn not in _READABLE:
                yield Unsupported(name, "windows of a type of its own in a pipeline that is partly embedded", _REMEDY)
        if urn == common_urns.primitives.GROUP_BY_KEY.urn:
            (pcoll,) = proto.inputs.values()
            strategy = pipeline.strategy(pcoll)
            if merges_in_worker(pipeline, strategy) and strategy.window_fn.urn not in _CALLED:
                yield Unsupported(name, f"merging windows of '{strategy.window_fn.urn}' in an SDK worker", _REMEDY)


def _in_par_do(payload: Any) -> Iterator[str]:
    for name, spec in payload.state_specs.items():
        if spec.WhichOneof("spec") not in _STATES:
            yield f"the state '{name}' ({spec.WhichOneof('spec')})"
    for tag, side in payload.side_inputs.items():
        if side.window_mapping_fn.urn not in _MAPPINGS:
            yield f"the side input '{tag}' with the window mapping '{side.window_mapping_fn.urn}'"


def _in_windows_of_its_own(pipeline: ParsedPipeline, transform: ParsedTransform) -> Iterator[str]:
    """Yield what a Java worker asks for by windows without their ends, which cannot be found here."""
    for tag, pcoll in transform.proto.inputs.items():
        if pipeline.components.coders[pipeline.strategy(pcoll).window_coder_id].spec.urn in _READABLE:
            continue
        if tag in transform.par_do.side_inputs:
            yield f"the side input '{tag}' with windows of a type of its own"
        elif transform.has_state:
            yield "state or timers with windows of a type of its own"


def divided(
    context: Any, pipeline: ParsedPipeline, transforms: list[ParsedTransform]
) -> tuple[Remote, list[ParsedTransform]]:
    """Divide a stage that an SDK worker runs.

    Args:
        context: of the SDK's phases, from `phases.optimized`.
        pipeline: the pipeline after these phases.
        transforms: of the stage, with our reads and writes.

    Returns:
        The worker's part; and the transforms of the task's process: read, the stand-in for the worker, writes.
    """
    components = pipeline.components
    reads = [t for t in transforms if t.urn == READ_URN]
    writes = [t for t in transforms if t.urn == WRITE_URN]
    own = [t for t in transforms if t.urn not in (READ_URN, WRITE_URN)]
    (source,) = (pcoll for t in reads for pcoll in t.proto.outputs.values())
    written = dict.fromkeys(pcoll for t in writes for pcoll in t.proto.inputs.values())
    sinks = {f"out{n}": pcoll for n, pcoll in enumerate(pcoll for pcoll in written if pcoll != source)}
    ports = {pcoll: RemotePort(pcoll, *context.port(pcoll)) for pcoll in (source, *sinks.values())}
    inner = [pcoll for t in own if t.urn != _PAIRS for pcoll in t.proto.outputs.values() if pcoll not in ports]
    inner_ports = tuple(RemotePort(pcoll, *context.port(pcoll)) for pcoll in dict.fromkeys(inner))
    timers: dict[tuple[str, str], str] = {}
    protos = [_in_worker(context, pipeline, t, timers) for t in own]
    theirs, _ = strategies(context, pipeline)
    part = runner_pb.Components(coders=components.coders, windowing_strategies=theirs)
    for transform in protos:
        part.transforms[transform.unique_name].CopyFrom(transform)
        part.environments[transform.environment_id].CopyFrom(components.environments[transform.environment_id])
        for pcoll in (*transform.inputs.values(), *transform.outputs.values()):
            part.pcollections[pcoll].CopyFrom(components.pcollections[pcoll])
    # The worker encodes what it leaves of restrictions like this.
    part.pcollections[source].coder_id = context.maybe_length_prefixed_coder(part.pcollections[source].coder_id)
    (environment,) = part.environments.values()
    remote = Remote(
        environment.SerializeToString(deterministic=True),
        part.SerializeToString(deterministic=True),
        ports[source],
        {tag: ports[pcoll] for tag, pcoll in sinks.items()},
        timers,
        inner_ports,
    )
    stand_in = runner_pb.PTransform(
        unique_name=own[0].name,
        inputs={"in": source},
        outputs=sinks,
        spec=runner_pb.FunctionSpec(urn=REMOTE_URN),
    )
    return remote, [*reads, ParsedTransform(stand_in), *writes]


def _in_worker(
    context: Any, pipeline: ParsedPipeline, transform: ParsedTransform, timers: dict[tuple[str, str], str]
) -> Any:
    """Return the proto of a transform for its worker; add the coders of its timers to a table, by name and family."""
    if not transform.is_par_do:
        return transform.proto
    payload = runner_pb.ParDoPayload()
    payload.CopyFrom(transform.par_do)
    for family, spec in payload.timer_family_specs.items():
        coder = _timer_coder(context, pipeline, transform, spec.timer_family_coder_id)
        spec.timer_family_coder_id = context.maybe_length_prefixed_coder(coder)
        timers[transform.name, family] = context.ours(spec.timer_family_coder_id)
    environment = transform.proto.environment_id
    _set_coders_of_state(context, payload, own=pipeline.is_python(environment) or pipeline.is_java(environment))
    return transform.with_spec(transform.urn, payload.SerializeToString(deterministic=True)).proto


def _set_coders_of_state(context: Any, payload: Any, *, own: bool) -> None:
    """Change the coders of ordered lists and multimaps so that they can be stored here.

    The length of each entry of a list, and of each value of a map, must be known; and a key of a map must not depend on
    what follows it.

    Args:
        context: what `phases.optimized` returned.
        payload: `ParDoPayload`.
        own: the worker's SDK takes the coders of a state from the DoFn.
    """
    prefixed = context.maybe_length_prefixed_coder
    for spec in payload.state_specs.values():
        match spec.WhichOneof("spec"):
            case "ordered_list_spec" if own:
                # Their workers prefix each element by its length, whatever the element's coder is.
                list = spec.ordered_list_spec
                lengths = runner_pb.Coder(spec=_LENGTHS, component_coder_ids=[list.element_coder_id])
                list.element_coder_id = context.add_or_get_coder_id(lengths, list.element_coder_id)
            case _ if own:
                pass
            case "ordered_list_spec":
                spec.ordered_list_spec.element_coder_id = prefixed(spec.ordered_list_spec.element_coder_id)
            case "map_spec" | "multimap_spec" as kind:
                map = getattr(spec, kind)
                map.key_coder_id, map.value_coder_id = prefixed(map.key_coder_id), prefixed(map.value_coder_id)
            case "set_spec":
                spec.set_spec.element_coder_id = prefixed(spec.set_spec.element_coder_id)


def _timer_coder(context: Any, pipeline: ParsedPipeline, transform: ParsedTransform, declared: str) -> str:
    """Return the id of the coder of a transform's timers: of the keys and windows of its main input.

    SUBTLE: if there are side inputs, Python may declare those of any input, and of another one in another process.
    """
    (main,) = transform.main_inputs
    elements, coders = pipeline.coder(main), pipeline.components.coders
    if elements.spec.urn != common_urns.coders.KV.urn:
        return declared
    parts = [elements.component_coder_ids[0], pipeline.strategy(main).window_coder_id]
    if list(coders[declared].component_coder_ids) == parts:
        return declared
    made = runner_pb.Coder(spec=coders[declared].spec, component_coder_ids=parts)
    found: str = context.add_or_get_coder_id(made, declared)
    return found
