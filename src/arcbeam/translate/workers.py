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
from arcbeam.translate import phases, teststream

_ENVIRONMENTS = common_urns.environments
_WITH_WORKERS = frozenset([_ENVIRONMENTS.EXTERNAL.urn, _ENVIRONMENTS.PROCESS.urn, _ENVIRONMENTS.DOCKER.urn])
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
_PYTHON = "beam:version:sdk_base:apache/beam_python"
_JAVA = "beam:version:sdk_base:apache/beam_java"
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


def has_workers(components: Any, environment_id: str) -> bool:
    """Return whether an environment has SDK workers; else its transforms run in the task's process."""
    # SUBTLE: indexing would add a missing environment to the pipeline, which would then not be refused.
    found = components.environments.get(environment_id)
    return found is not None and found.urn in _WITH_WORKERS


def is_python(environment: Any) -> bool:
    """Return whether the SDK of an environment is Python's."""
    return any(each.startswith(_PYTHON) for each in environment.capabilities)


def _is_java(environment: Any) -> bool:
    return any(each.startswith(_JAVA) for each in environment.capabilities)


def any_workers(components: Any) -> bool:
    """Return whether some transform of a pipeline runs in an SDK worker."""
    return any(has_workers(components, each) for each in _used(components))


def python_workers(components: Any) -> str | None:
    """Return the environment of the SDK workers that run Python; None if there are none."""
    return min(
        (
            each
            for each in _used(components)
            if has_workers(components, each) and is_python(components.environments[each])
        ),
        default=None,
    )


def of_another_sdk(components: Any) -> bool:
    """Return whether all workers run another SDK than Python's. It encodes elements of a TestStream as in streams."""
    return any_workers(components) and python_workers(components) is None


def _used(components: Any) -> set[str]:
    return {t.environment_id for t in components.transforms.values() if t.environment_id and not t.subtransforms}


def merges_in_worker(components: Any, strategy: Any) -> bool:
    """Return whether windows of a strategy are merged by a function that only an SDK worker can call."""
    return (
        strategy.merge_status == runner_pb.MergeStatus.NEEDS_MERGE
        and strategy.window_fn.urn not in _WINDOWS
        and has_workers(components, strategy.environment_id)
    )


def strategies(context: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the windowing strategies by id, as workers have them, and as the task's process has them.

    The task's process does not load functions of a worker's SDK.

    Args:
        context: what `phases.optimized` returned.
    """
    theirs, ours = {}, {}
    for id, strategy in context.components.windowing_strategies.items():
        there, here = context.windows(strategy.window_coder_id)
        theirs[id] = runner_pb.WindowingStrategy()
        theirs[id].CopyFrom(strategy)
        theirs[id].window_coder_id = there
        ours[id] = runner_pb.WindowingStrategy()
        ours[id].CopyFrom(strategy)
        ours[id].window_coder_id = here
        if has_workers(context.components, strategy.environment_id) and strategy.window_fn.urn not in _WINDOWS:
            ours[id].window_fn.urn = WORKER_WINDOWS_URN
            ours[id].window_fn.payload = theirs[id].SerializeToString(deterministic=True)
    return theirs, ours


def refused(pipeline: Any) -> Iterator[Unsupported]:
    """Yield what cannot run in SDK workers, for a pipeline of `embedding.with_embedded_parts`."""
    components = pipeline.components
    if not any_workers(components):
        return
    partly = not all(has_workers(components, each) for each in _used(components))
    for transform in components.transforms.values():
        name, urn = transform.unique_name, transform.spec.urn
        if urn == teststream.URN and len({is_python(components.environments[each]) for each in _used(components)}) > 1:
            yield Unsupported(name, "a TestStream beside workers of several SDKs", "use transforms of one SDK")
        if has_workers(components, transform.environment_id) and not transform.subtransforms:
            for annotation, what in _ANNOTATIONS.items():
                if annotation in transform.annotations:
                    yield Unsupported(name, f"{what} in an SDK worker", _REMEDY)
            payload = phases.par_do_payload(transform)
            for what in _in_par_do(payload):
                yield Unsupported(name, f"{what} in an SDK worker", _REMEDY)
            if payload is not None and _is_java(components.environments[transform.environment_id]):
                for what in _in_windows_of_its_own(components, transform, payload):
                    yield Unsupported(name, f"{what} in a Java worker", "use Beam's windows there")
        for pcoll in transform.outputs.values() if partly and urn == common_urns.primitives.ASSIGN_WINDOWS.urn else ():
            strategy = components.windowing_strategies[components.pcollections[pcoll].windowing_strategy_id]
            if components.coders[strategy.window_coder_id].spec.urn not in _READABLE:
                yield Unsupported(name, "windows of a type of its own in a pipeline that is partly embedded", _REMEDY)
        if urn == common_urns.primitives.GROUP_BY_KEY.urn:
            (pcoll,) = transform.inputs.values()
            strategy = components.windowing_strategies[components.pcollections[pcoll].windowing_strategy_id]
            if merges_in_worker(components, strategy) and strategy.window_fn.urn not in _CALLED:
                yield Unsupported(name, f"merging windows of '{strategy.window_fn.urn}' in an SDK worker", _REMEDY)


def _in_par_do(payload: Any) -> Iterator[str]:
    if payload is None:
        return
    for name, spec in payload.state_specs.items():
        if spec.WhichOneof("spec") not in _STATES:
            yield f"the state '{name}' ({spec.WhichOneof('spec')})"
    for tag, side in payload.side_inputs.items():
        if side.window_mapping_fn.urn not in _MAPPINGS:
            yield f"the side input '{tag}' with the window mapping '{side.window_mapping_fn.urn}'"


def _in_windows_of_its_own(components: Any, transform: Any, payload: Any) -> Iterator[str]:
    """Yield what a Java worker asks for by windows without their ends, which cannot be found here."""
    for tag, id in transform.inputs.items():
        strategy = components.windowing_strategies[components.pcollections[id].windowing_strategy_id]
        if components.coders[strategy.window_coder_id].spec.urn in _READABLE:
            continue
        if tag in payload.side_inputs:
            yield f"the side input '{tag}' with windows of a type of its own"
        elif payload.state_specs or payload.timer_family_specs:
            yield "state or timers with windows of a type of its own"


def divided(context: Any, transforms: list[Any]) -> tuple[Remote, list[Any]]:
    """Divide a stage that an SDK worker runs.

    Args:
        context: what `phases.optimized` returned.
        transforms: of the stage, with our reads and writes.

    Returns:
        The worker's part; and the transforms of the task's process: read, the stand-in for the worker, writes.
    """
    components = context.components
    reads = [t for t in transforms if t.spec.urn == READ_URN]
    writes = [t for t in transforms if t.spec.urn == WRITE_URN]
    own = [t for t in transforms if t.spec.urn not in (READ_URN, WRITE_URN)]
    (source,) = (pcoll for t in reads for pcoll in t.outputs.values())
    written = dict.fromkeys(pcoll for t in writes for pcoll in t.inputs.values())
    sinks = {f"out{n}": pcoll for n, pcoll in enumerate(pcoll for pcoll in written if pcoll != source)}
    ports = {pcoll: RemotePort(pcoll, *context.port(pcoll)) for pcoll in (source, *sinks.values())}
    inner = [pcoll for t in own if t.spec.urn != _PAIRS for pcoll in t.outputs.values() if pcoll not in ports]
    inner_ports = tuple(RemotePort(pcoll, *context.port(pcoll)) for pcoll in dict.fromkeys(inner))
    timers: dict[tuple[str, str], str] = {}
    own = [_with_coders_of_state(context, _with_timer_coders(context, t, timers)) for t in own]
    theirs, _ = strategies(context)
    part = runner_pb.Components(coders=components.coders, windowing_strategies=theirs)
    for transform in own:
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
        unique_name=own[0].unique_name,
        inputs={"in": source},
        outputs=sinks,
        spec=runner_pb.FunctionSpec(urn=REMOTE_URN),
    )
    return remote, [*reads, stand_in, *writes]


def _with_coders_of_state(context: Any, transform: Any) -> Any:
    """Return a transform whose ordered lists and multimaps can be stored here.

    The length of each entry of a list, and of each value of a map, must be known; and a key of a map must not depend on
    what follows it.
    """
    payload = phases.par_do_payload(transform)
    if payload is None:
        return transform
    environment = context.components.environments[transform.environment_id]
    own = is_python(environment) or _is_java(environment)
    prefixed = context.maybe_length_prefixed_coder
    for spec in payload.state_specs.values():
        match spec.WhichOneof("spec"):
            case "ordered_list_spec" if own:
                # Their workers prefix each element by its length, whatever the element's coder is.
                list = spec.ordered_list_spec
                lengths = runner_pb.Coder(spec=_LENGTHS, component_coder_ids=[list.element_coder_id])
                list.element_coder_id = context.add_or_get_coder_id(lengths, list.element_coder_id)
            case _ if own:
                pass  # their workers have the coders of a DoFn's state from the DoFn
            case "ordered_list_spec":
                spec.ordered_list_spec.element_coder_id = prefixed(spec.ordered_list_spec.element_coder_id)
            case "map_spec" | "multimap_spec" as kind:
                map = getattr(spec, kind)
                map.key_coder_id, map.value_coder_id = prefixed(map.key_coder_id), prefixed(map.value_coder_id)
            case "set_spec":
                spec.set_spec.element_coder_id = prefixed(spec.set_spec.element_coder_id)
    changed = runner_pb.PTransform()
    changed.CopyFrom(transform)
    changed.spec.payload = payload.SerializeToString(deterministic=True)
    return changed


def _timer_coder(context: Any, transform: Any, payload: Any, declared: str) -> str:
    """Return the id of the coder of a transform's timers: of the keys and windows of its main input.

    SUBTLE: if there are side inputs, Python may declare those of any input, and of another one in another process.
    """
    components = context.components
    (main,) = (pcoll for tag, pcoll in transform.inputs.items() if tag not in payload.side_inputs)
    elements = components.coders[components.pcollections[main].coder_id]
    if elements.spec.urn != common_urns.coders.KV.urn:
        return declared
    strategy = components.windowing_strategies[components.pcollections[main].windowing_strategy_id]
    parts = [elements.component_coder_ids[0], strategy.window_coder_id]
    if list(components.coders[declared].component_coder_ids) == parts:
        return declared
    made = runner_pb.Coder(spec=components.coders[declared].spec, component_coder_ids=parts)
    found: str = context.add_or_get_coder_id(made, declared)
    return found


def _with_timer_coders(context: Any, transform: Any, timers: dict[tuple[str, str], str]) -> Any:
    """Return a transform whose timers can be read here; add the coders to a table, by transform and family."""
    payload = phases.par_do_payload(transform)
    if payload is None or not payload.timer_family_specs:
        return transform
    for family, spec in payload.timer_family_specs.items():
        coder = _timer_coder(context, transform, payload, spec.timer_family_coder_id)
        spec.timer_family_coder_id = context.maybe_length_prefixed_coder(coder)
        timers[transform.unique_name, family] = context.ours(spec.timer_family_coder_id)
    changed = runner_pb.PTransform()
    changed.CopyFrom(transform)
    changed.spec.payload = payload.SerializeToString(deterministic=True)
    return changed
