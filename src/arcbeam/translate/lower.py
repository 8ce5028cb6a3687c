"""Translation from the SDK's fused stages to a plan.

Owns the choice of a channel's routing and the shape of a stage's payload. Must not know Spark or the Fn API.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.errors import InvalidPipelineError
from arcbeam.model.observers import ANNOTATION, NOT_OBSERVED, Observing, Ways
from arcbeam.model.plan import Channel, Plan, Routing, SideInput, Stage, TimeDomain, TimerFamily, Transform
from arcbeam.model.script import Script
from arcbeam.model.urns import (
    LATE_ANNOTATION,
    LATE_URN,
    PRECOMBINE_URN,
    PUBLISH_ANNOTATION,
    PUBLISH_URN,
    READ_URN,
    WRITE_URN,
    ReadSpec,
    WriteSpec,
)
from arcbeam.translate import (
    describe,
    embedding,
    identity,
    keys,
    payloads,
    phases,
    teststream,
    unbounded,
    workers,
    workerscripts,
)
from arcbeam.translate.validate import validate

_PRECOMBINE = common_urns.combine_components.COMBINE_PER_KEY_PRECOMBINE.urn
_PROCESSING = (common_urns.primitives.PAR_DO.urn, phases.PROCESS_URN)
_MULTIMAP = common_urns.side_inputs.MULTIMAP.urn


def translate(
    pipeline: Any,
    *,
    name: str = "",
    fusion: bool = True,
    drain: bool = False,
    bounded: bool = True,
    allow_non_deterministic_keys: bool = False,
) -> Plan:
    """Translate a Beam pipeline proto to a plan.

    Args:
        pipeline: `beam_runner_api_pb2.Pipeline`; not changed.
        name: the job's name, for display.
        fusion: whether transforms may share a stage.
        drain: insert a truncation before every splittable DoFn.
        bounded: all input exists before a grouping produces output. In a streaming job it does not, and a grouping
            needs the time of each element. A pipeline with a TestStream is not bounded.
        allow_non_deterministic_keys: see `validate`.

    Raises:
        InvalidPipelineError: the proto is malformed, or `bounded` is set for a pipeline with a TestStream.
        UnsupportedPipelineError: the pipeline needs features that cannot run; lists all of them.
    """
    validate(pipeline, allow_non_deterministic_keys=allow_non_deterministic_keys)
    pipeline = embedding.with_embedded_parts(pipeline)
    script = teststream.of(pipeline)
    if bounded and script is not None:
        raise InvalidPipelineError(
            f"TestStream {script.unique_name!r} needs a streaming job: its end is not known in advance",
            "set --streaming",
        )
    in_workers = workers.any_workers(pipeline.components)
    pipeline = workerscripts.with_decoded_script(pipeline)
    script = teststream.of(pipeline)
    # The SDK of a worker has made the keys of its pipeline deterministic.
    if not allow_non_deterministic_keys and not in_workers:
        pipeline = keys.with_deterministic_keys(pipeline)
    python = workers.python_workers(pipeline.components)
    context, stages = phases.optimized(
        pipeline, fusion=fusion, drain=drain, bounded=bounded, workers=in_workers, python=python
    )
    plan = _Lowering(context, stages, bounded, script).plan(name)
    return plan if bounded else replace(plan, warnings=unbounded.warnings_of(pipeline))


@dataclass(slots=True)
class _Edge:
    """A channel under construction. `pcoll` is one of the collections written to it, `read_as` the one read from it."""

    index: int
    pcoll: str
    routing: Routing
    read_as: str = ""
    producers: list[str] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)


class _Lowering:
    """One translation. Invariant: stage ids are in topological order."""

    def __init__(self, context: Any, stages: list[Any], bounded: bool, script: Any) -> None:
        self._context = context
        self._components = context.components
        self._bounded = bounded
        self._script = script
        self._stages = [s for s in stages if s.transforms]
        self._edges: dict[tuple[bytes, Routing], _Edge] = {}
        self._side_routings: dict[str, set[Routing]] = defaultdict(set)
        # SUBTLE: a buffer has several routings if a stateful DoFn and other transforms read it.
        self._main_routings: dict[bytes, set[Routing]] = defaultdict(set)
        self._buffer_of_side: dict[str, bytes] = {}
        self._written_coders: dict[bytes, str] = {}
        self._written_pcolls: dict[bytes, set[str]] = defaultdict(set)
        # SUBTLE: a GroupByKey groups by the strategy of its input; the strategy of its output has the continuation
        # trigger.
        self._grouped: dict[bytes, str] = {
            transform.spec.payload: self._strategy_id(next(iter(transform.inputs.values())))
            for stage in self._stages
            for transform in stage.transforms
            if transform.spec.urn == phases.DATA_OUTPUT and transform.spec.payload.startswith(b"group:")
        }

    def plan(self, name: str) -> Plan:
        for stage in self._stages:
            self._note_needs(stage)
        lowered = [self._lower(f"s{n}", stage) for n, stage in enumerate(self._stages)]
        uids = identity.unique(stage.uid for stage in lowered)
        lowered = [replace(stage, uid=uid) for stage, uid in zip(lowered, uids, strict=True)]
        channels = tuple(self._channel(edge) for edge in self._edges.values())
        for stage in lowered:
            keyed = stage.source is not None and channels[stage.source].routing is Routing.KEYED
            assert keyed or not (stage.states or stage.timers), f"{stage.name} keeps state, but its input is not keyed"
        return Plan(
            name=name,
            stages=tuple(lowered),
            channels=channels,
            bounded=self._bounded,
            script=None if self._script is None else self._script_of(uids),
        )

    def _script_of(self, uids: list[str]) -> Script:
        script = teststream.script_of(self._script, self._scripted(uids))
        return replace(script, real_clock=workers.any_workers(self._components))

    def _scripted(self, uids: list[str]) -> dict[str, str]:
        """Return the uid of the stage that represents each of the script's outputs."""
        reads = [(_read_of(stage), uid) for stage, uid in zip(self._stages, uids, strict=True)]
        tags = {phases.script_tag(read): uid for read, uid in reads if read is not None}
        return {tag: uid for tag, uid in tags.items() if tag is not None}

    # The routings that each buffer and each PCollection needs.

    def _note_needs(self, stage: Any) -> None:
        for transform in stage.transforms:
            if transform.spec.urn == phases.DATA_OUTPUT:
                pcoll = next(iter(transform.inputs.values()))
                self._written_pcolls[transform.spec.payload].add(pcoll)
                self._written_coders[transform.spec.payload] = self._components.pcollections[pcoll].coder_id
                if transform.spec.payload == f"materialize:{pcoll}".encode():
                    self._buffer_of_side[pcoll] = transform.spec.payload
        read = _read_of(stage)
        if read is not None and not _is_root(read):
            self._main_routings[read.spec.payload].add(self._main_routing(stage, read))
        for transform in stage.transforms:
            payload = phases.par_do_payload(transform)
            if payload is None:
                continue
            for tag, side in payload.side_inputs.items():
                keyed = side.access_pattern.urn == _MULTIMAP
                pcoll = transform.inputs[tag]
                self._side_routings[pcoll].add(Routing.SIDE_KEYED if keyed else Routing.SIDE)

    def _main_routing(self, stage: Any, read: Any) -> Routing:
        kind = read.spec.payload.split(b":", 1)[0]
        if kind == b"spread":
            return Routing.SPREAD
        if kind == b"group":
            strategy = self._components.windowing_strategies[self._grouped[read.spec.payload]]
            return Routing.GROUPED if self._bounded and describe.one_plain_pane(strategy) else Routing.KEYED
        for transform in _consumers_of(stage, read):
            payload = phases.par_do_payload(transform)
            if payload is not None and (payload.state_specs or payload.timer_family_specs):
                return Routing.KEYED
            if payload is not None and payload.requires_stable_input:
                return Routing.SPREAD
        # Stages that are not fused keep what fused ones do: for example, elements of a key stay in order.
        return Routing.FORWARD

    # Stages.

    def _lower(self, stage_id: str, stage: Any) -> Stage:
        transforms: list[Any] = []
        sinks: list[int] = []
        source: int | None = None
        remote = self._runs_in_worker(stage)
        splittable = any(t.spec.urn == phases.PROCESS_URN for t in stage.transforms)
        time_sorted = False
        for transform in stage.transforms:
            payload = phases.par_do_payload(transform)
            time_sorted |= bool(payload is not None and payload.requires_time_sorted_input)
        for transform in stage.transforms:
            if transform.spec.urn == phases.DATA_INPUT:
                edge, spec = self._source(stage, transform, splittable, time_sorted)
                if edge is not None:
                    edge.consumers.append(stage_id)
                    source = edge.index
                transforms.append(_with_spec(transform, READ_URN, spec.to_bytes()))
            elif transform.spec.urn == phases.DATA_OUTPUT:
                for edge in self._written(transform):
                    if stage_id not in edge.producers:
                        edge.producers.append(stage_id)
                    if edge.index not in sinks:
                        sinks.append(edge.index)
                    write = WriteSpec(edge.index, edge.routing.value, explode=self._feeds_restrictions(transform))
                    written = _with_spec(transform, WRITE_URN, write.to_bytes())
                    written.unique_name = f"{transform.unique_name}/{edge.routing.value}"
                    transforms.append(written)
            elif remote:
                transforms.append(transform)
            elif transform.spec.urn == _PRECOMBINE:
                transforms.append(_with_spec(transform, PRECOMBINE_URN, transform.spec.payload))
            elif LATE_ANNOTATION in transform.annotations:
                transforms.append(self._late(stage, transform))
            elif PUBLISH_ANNOTATION in transform.annotations:
                transforms.append(_with_spec(transform, PUBLISH_URN, transform.spec.payload))
            else:
                transforms.append(transform)
        own = [t for t in transforms if t.spec.urn not in (READ_URN, WRITE_URN)]
        ordered = _ordered(own)
        part, here = workers.divided(self._context, transforms) if remote else (None, transforms)
        return Stage(
            id=stage_id,
            name=describe.stage_name([t.unique_name for t in own] or self._passed_on(stage)) or stage.name,
            transforms=tuple(Transform(t.unique_name, t.unique_name, t.spec.urn) for t in ordered),
            payload=payloads.payload_of(
                self._context, here, self._grouped_in(stage), beside_workers=self._is_beside_workers(stage)
            ),
            source=source,
            sinks=tuple(sinks),
            side_inputs=self._side_inputs(stage),
            splittable=splittable,
            time_sorted=time_sorted,
            scripted=phases.script_tag(_read_of(stage)) is not None,
            uid=identity.uid(self._components, _read_of(stage), ordered),
            observed=_observed(transforms),
            publishers=tuple(t.unique_name for t in ordered if t.spec.urn == PUBLISH_URN),
            shape=self._shape(stage, ordered, source),
            remote=part,
            merges_in_worker=self._merges_in_worker(stage),
            **_par_do_facts(stage),
        )

    def _runs_in_worker(self, stage: Any) -> bool:
        return any(workers.has_workers(self._components, t.environment_id) for t in _own(stage))

    def _grouped_in(self, stage: Any) -> dict[str, str]:
        """Return the windowing strategy of the collection that a grouping outputs in the stage, if there is one."""
        read = _read_of(stage)
        strategy = None if read is None else self._grouped.get(read.spec.payload)
        return {} if strategy is None else dict.fromkeys(read.outputs.values(), strategy)

    def _is_beside_workers(self, stage: Any) -> bool:
        """Return whether the transforms of a stage are embedded, in a pipeline that also has SDK workers."""
        is_embedded = any(t.environment_id for t in _own(stage)) and not self._runs_in_worker(stage)
        return is_embedded and workers.any_workers(self._components)

    def _merges_in_worker(self, stage: Any) -> bool:
        strategies = self._components.windowing_strategies
        found = (strategies[each] for each in self._grouped_in(stage).values())
        return any(workers.merges_in_worker(self._components, each) for each in found)

    def _late(self, stage: Any, transform: Any) -> Any:
        """Return the transform that outputs the elements that the stage's grouping drops."""
        read = _read_of(stage)
        if read is None or read.spec.payload not in self._grouped or transform not in _consumers_of(stage, read):
            raise InvalidPipelineError(
                f"{transform.unique_name}: its input is not a grouping, so there are no dropped elements to output",
                "use arcbeam.io.WithLate unchanged, and do not set --gbek",
            )
        return _with_spec(transform, LATE_URN, b"")

    def _shape(self, stage: Any, transforms: list[Any], source: int | None) -> str:
        read = _read_of(stage)
        if source is None:
            return ""
        keyed = self._main_routing(stage, read) in (Routing.KEYED, Routing.GROUPED)
        splittable = any(t.spec.urn == phases.PROCESS_URN for t in stage.transforms)
        if not (keyed or splittable or self._side_inputs(stage) or _par_do_facts(stage)["stable"]):
            return ""
        pcoll = next(iter(read.outputs.values()))
        strategy = self._grouped.get(read.spec.payload) or self._strategy_id(pcoll)
        coder, is_prefixed = self._context.stored(self._components.pcollections[pcoll].coder_id)
        windowing = self._components.windowing_strategies[strategy]
        grouped = read.spec.payload in self._grouped
        # A worker appends several elements of a state at once, which the runner does not divide.
        has_state = any(p is not None and p.state_specs for p in map(phases.par_do_payload, transforms))
        return identity.shape(
            self._components,
            transforms,
            coder,
            windowing,
            grouped=grouped,
            by_workers=is_prefixed or (has_state and self._runs_in_worker(stage)),
        )

    def _passed_on(self, stage: Any) -> list[str]:
        """Return names for a stage without transforms of its own: its input and the exchange that it writes to."""
        read = _read_of(stage)
        came = [] if read is None else [self._name(pcoll) for pcoll in read.outputs.values()]
        exchanges = [t for t in stage.transforms if t.spec.payload.startswith((b"group:", b"spread:"))]
        return came + [t.unique_name.removesuffix("/Write") for t in exchanges if t.spec.urn == phases.DATA_OUTPUT]

    def _name(self, pcoll: str) -> str:
        return describe.pcollection(self._components.pcollections[pcoll].unique_name or pcoll)

    def _source(self, stage: Any, read: Any, splittable: bool, time_sorted: bool) -> tuple[_Edge | None, ReadSpec]:
        buffer = read.spec.payload
        if buffer == phases.IMPULSE_BUFFER:
            return None, ReadSpec("impulse")
        if _is_root(read):
            id = teststream.payload_of(self._script).coder_id
            nested = workerscripts.nests(self._context, id)
            return None, ReadSpec("script", coder=self._context.ours(id), nested=nested)
        routing = self._main_routing(stage, read)
        pcoll = next(iter(read.outputs.values()))
        edge = self._edge(buffer, routing, pcoll)
        edge.read_as = pcoll
        if splittable and any(t.spec.urn == phases.PROCESS_URN for t in _consumers_of(stage, read)):
            mode = "restrictions"
        elif routing is Routing.GROUPED:
            mode = "groups"
        elif routing is Routing.KEYED:
            mode = "triggered" if buffer.startswith(b"group:") else "keyed"
        else:
            mode = "elements"
        # What leaves an exchange may be declared with another coder than what entered it (a Reshuffle's output type).
        coder = self._written_coders.get(buffer, "")
        if coder:
            coder = payloads.coder_of(self._context, coder, beside_workers=self._is_beside_workers(stage))
        # The producer of a collection counts it. A collection that an exchange merges is counted after the
        # exchange.
        return edge, ReadSpec(mode, time_sorted, coder, counts=pcoll not in self._written_pcolls[buffer])

    def _written(self, write: Any) -> list[_Edge]:
        buffer = write.spec.payload
        pcoll = next(iter(write.inputs.values()))
        edges = [self._edge(buffer, routing, pcoll) for routing in sorted(self._main_routings.get(buffer, ()))]
        if buffer == f"materialize:{pcoll}".encode():
            edges += [self._edge(buffer, routing, pcoll) for routing in sorted(self._side_routings.get(pcoll, ()))]
        return edges

    def _feeds_restrictions(self, write: Any) -> bool:
        pcoll = next(iter(write.inputs.values()))
        return any(
            t.spec.urn == phases.SPLIT_URN and pcoll in t.outputs.values()
            for stage in self._stages
            for t in stage.transforms
        )

    def _edge(self, buffer: bytes, routing: Routing, pcoll: str) -> _Edge:
        found = self._edges.get((buffer, routing))
        if found is None:
            found = self._edges[buffer, routing] = _Edge(len(self._edges), pcoll, routing)
        return found

    def _side_inputs(self, stage: Any) -> tuple[SideInput, ...]:
        found = []
        for transform in stage.transforms:
            payload = phases.par_do_payload(transform)
            if payload is None:
                continue
            for tag, side in sorted(payload.side_inputs.items()):
                pcoll = transform.inputs[tag]
                routing = Routing.SIDE_KEYED if side.access_pattern.urn == _MULTIMAP else Routing.SIDE
                buffer = self._buffer_of_side.get(pcoll)
                if buffer is None:
                    raise InvalidPipelineError(f"{transform.unique_name}: side input '{tag}' has no producer")
                main = next(main for name, main in transform.inputs.items() if name not in payload.side_inputs)
                channel = self._edge(buffer, routing, pcoll).index
                lateness = self._strategy(main).allowed_lateness * 1000
                strategy = self._strategy(pcoll)
                eager = describe.may_fire_early(strategy.trigger)
                firings = describe.firings(strategy, singleton=describe.is_singleton(side))
                found.append(SideInput(transform.unique_name, tag, channel, lateness, eager, firings))
        return tuple(found)

    def _channel(self, edge: _Edge) -> Channel:
        pcoll = self._components.pcollections[edge.pcoll]
        return Channel(
            index=edge.index,
            # A Flatten's inputs have names of their own; its output has the Flatten's name.
            name=self._name(edge.read_as if edge.read_as and len(edge.producers) > 1 else edge.pcoll),
            routing=edge.routing,
            coder=describe.coder(self._components, pcoll.coder_id),
            windowing=describe.windowing(self._strategy(edge.pcoll)),
            producers=tuple(edge.producers),
            consumers=tuple(edge.consumers),
        )

    def _strategy(self, pcoll: str) -> Any:
        return self._components.windowing_strategies[self._strategy_id(pcoll)]

    def _strategy_id(self, pcoll: str) -> str:
        strategy: str = self._components.pcollections[pcoll].windowing_strategy_id
        return strategy


def _read_of(stage: Any) -> Any:
    return next((t for t in stage.transforms if t.spec.urn == phases.DATA_INPUT), None)


def _own(stage: Any) -> list[Any]:
    """Return the transforms of a stage without reads and writes."""
    return [t for t in stage.transforms if t.spec.urn not in (phases.DATA_INPUT, phases.DATA_OUTPUT)]


def _is_root(read: Any) -> bool:
    """Return whether a read reads nothing that another stage has written."""
    return read.spec.payload == phases.IMPULSE_BUFFER or phases.script_tag(read) is not None


def _consumers_of(stage: Any, read: Any) -> list[Any]:
    outputs = set(read.outputs.values())
    return [t for t in stage.transforms if outputs & set(t.inputs.values())]


def _with_spec(transform: Any, urn: str, payload: bytes) -> Any:
    changed = runner_pb.PTransform()
    changed.CopyFrom(transform)
    changed.spec.urn = urn
    changed.spec.payload = payload
    return changed


def _ordered(transforms: list[Any]) -> list[Any]:
    """Sort producers before consumers; otherwise keep the order."""
    producer = {pcoll: t for t in transforms for pcoll in t.outputs.values()}
    done: dict[str, Any] = {}

    def visit(transform: Any) -> None:
        if transform.unique_name in done:
            return
        for pcoll in transform.inputs.values():
            if pcoll in producer and producer[pcoll] is not transform:
                visit(producer[pcoll])
        done[transform.unique_name] = transform

    for transform in transforms:
        visit(transform)
    return list(done.values())


def _observed(transforms: list[Any]) -> dict[int, Ways]:
    """Return, for each channel, the observers on the paths to it."""
    ways: dict[str, Ways] = {}
    found: dict[int, Ways] = {}
    for transform in _ordered(transforms):
        payload = phases.par_do_payload(transform)
        sides = () if payload is None else payload.side_inputs
        before = [ways.get(pcoll, NOT_OBSERVED) for tag, pcoll in transform.inputs.items() if tag not in sides]
        here: Ways = tuple(dict.fromkeys(way for each in before for way in each)) or NOT_OBSERVED
        if ANNOTATION in transform.annotations:
            says = Observing.from_bytes(transform.annotations[ANNOTATION])
            here = (says.observer(transform.unique_name, here),)
        ways.update(dict.fromkeys(transform.outputs.values(), here))
        if transform.spec.urn == WRITE_URN:
            channel = WriteSpec.from_bytes(transform.spec.payload).channel
            found[channel] = tuple(dict.fromkeys((*found.get(channel, ()), *here)))
    return {channel: here for channel, here in found.items() if here != NOT_OBSERVED}


def _par_do_facts(stage: Any) -> dict[str, Any]:
    states: list[tuple[str, str]] = []
    timers: list[TimerFamily] = []
    finalizes = stable = False
    for transform in stage.transforms:
        payload = phases.par_do_payload(transform)
        if payload is None:
            continue
        states += [(transform.unique_name, name) for name in sorted(payload.state_specs)]
        finalizes |= payload.requests_finalization
        # All parts of a splittable DoFn have the flag; only the part that processes elements needs it.
        stable |= payload.requires_stable_input and transform.spec.urn in _PROCESSING
        for family, spec in sorted(payload.timer_family_specs.items()):
            event = spec.time_domain == runner_pb.TimeDomain.EVENT_TIME
            domain = TimeDomain.EVENT if event else TimeDomain.PROCESSING
            expiration = family == payload.on_window_expiration_timer_family_spec
            timers.append(TimerFamily(transform.unique_name, family, domain, expiration))
    return {"states": tuple(states), "timers": tuple(timers), "finalizes": finalizes, "stable": stable}
