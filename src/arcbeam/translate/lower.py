"""Translation from the SDK's fused stages to a plan.

Owns the choice of a channel's routing and the shape of a stage's payload. Must not know Spark or the Fn API.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from apache_beam.portability import common_urns

from arcbeam.errors import InvalidPipelineError
from arcbeam.model.observers import ANNOTATION, NOT_OBSERVED, ObserverPaths, Observing
from arcbeam.model.plan import Channel, Plan, Routing, SideInput, Stage, Transform
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
from arcbeam.translate import describe, identity, payloads, phases, teststream, unbounded, workers, workerscripts
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline, ParsedTransform
from arcbeam.translate.parsing.parsedstages import (
    DATA_INPUT,
    DATA_OUTPUT,
    IMPULSE_BUFFER,
    PROCESS_URN,
    SPLIT_URN,
    ParsedStage,
    ordered,
)
from arcbeam.translate.validate import validated

_PRECOMBINE = common_urns.combine_components.COMBINE_PER_KEY_PRECOMBINE.urn
_MULTIMAP = common_urns.side_inputs.MULTIMAP.urn


def translate(
    pipeline: ParsedPipeline,
    *,
    name: str = "",
    fusion: bool = True,
    drain: bool = False,
    bounded: bool = True,
    allow_non_deterministic_keys: bool = False,
) -> Plan:
    """Translate a Beam pipeline to a plan.

    Args:
        pipeline: the pipeline.
        name: the job's name, for display.
        fusion: whether transforms may share a stage.
        drain: insert a truncation before every splittable DoFn.
        bounded: all input exists before a grouping produces output. In a streaming job it does not, and a grouping
            needs the time of each element. A pipeline with a TestStream is not bounded.
        allow_non_deterministic_keys: see `validated`.

    Raises:
        InvalidPipelineError: the proto is malformed, or `bounded` is set for a pipeline with a TestStream.
        UnsupportedPipelineError: the pipeline needs features that cannot run; lists all of them.
    """
    pipeline = validated(pipeline, allow_non_deterministic_keys=allow_non_deterministic_keys)
    script = teststream.of(pipeline)
    if bounded and script is not None:
        raise InvalidPipelineError(
            f"TestStream {script.unique_name!r} needs a streaming job: its end is not known in advance",
            "set --streaming",
        )
    optimized = phases.optimized(pipeline, fusion=fusion, drain=drain, bounded=bounded)
    plan = _Lowering(*optimized, bounded, script).plan(name)
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

    def __init__(
        self, context: Any, pipeline: ParsedPipeline, stages: list[ParsedStage], bounded: bool, script: Any
    ) -> None:
        self._context = context
        self._pipeline, self._components = pipeline, pipeline.components
        self._bounded = bounded
        self._script = script
        self._stages = stages
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
            write.proto.spec.payload: self._strategy_id(_input_of(write))
            for stage in stages
            for write in stage.writes
            if write.proto.spec.payload.startswith(b"group:")
        }
        self._restrictions = {
            pcoll
            for stage in stages
            for each in stage.transforms
            if each.urn == SPLIT_URN
            for pcoll in each.proto.outputs.values()
        }

    def plan(self, name: str) -> Plan:
        for stage in self._stages:
            self._note_needs(stage)
        lowered = [self._lower(f"s{n}", stage) for n, stage in enumerate(self._stages)]
        uids = identity.unique(stage.uid for stage in lowered)
        lowered = [replace(stage, uid=uid) for stage, uid in zip(lowered, uids, strict=True)]
        channels = tuple(self._channel(edge) for edge in self._edges.values())
        for each in lowered:
            keyed = each.source is not None and channels[each.source].routing is Routing.KEYED
            assert keyed or not each.stateful, f"{each.name} keeps state, but its input is not keyed"
        return Plan(
            name=name,
            stages=tuple(lowered),
            channels=channels,
            bounded=self._bounded,
            script=None if self._script is None else self._script_of(uids),
        )

    def _script_of(self, uids: list[str]) -> Script:
        script = teststream.script_of(self._script, self._scripted(uids))
        return replace(script, real_clock=self._pipeline.any_workers)

    def _scripted(self, uids: list[str]) -> dict[str, str]:
        """Return the uid of the stage that represents each of the script's outputs."""
        tags = {stage.script_tag: uid for stage, uid in zip(self._stages, uids, strict=True)}
        return {tag: uid for tag, uid in tags.items() if tag is not None}

    # The routings that each buffer and each PCollection needs.

    def _note_needs(self, stage: ParsedStage) -> None:
        if not stage.is_root:
            self._main_routings[stage.buffer].add(self._main_routing(stage))
        for write in stage.writes:
            pcoll, buffer = _input_of(write), write.proto.spec.payload
            self._written_pcolls[buffer].add(pcoll)
            self._written_coders[buffer] = self._components.pcollections[pcoll].coder_id
            if buffer == f"materialize:{pcoll}".encode():
                self._buffer_of_side[pcoll] = buffer
        for transform in stage.transforms:
            for tag, side in transform.par_do.side_inputs.items():
                keyed = side.access_pattern.urn == _MULTIMAP
                self._side_routings[transform.proto.inputs[tag]].add(Routing.SIDE_KEYED if keyed else Routing.SIDE)

    def _main_routing(self, stage: ParsedStage) -> Routing:
        kind = stage.buffer.split(b":", 1)[0]
        if kind == b"spread":
            return Routing.SPREAD
        if kind == b"group":
            strategy = self._components.windowing_strategies[self._grouped[stage.buffer]]
            return Routing.GROUPED if self._bounded and describe.one_plain_pane(strategy) else Routing.KEYED
        for transform in stage.consumers:
            if transform.has_state:
                return Routing.KEYED
            if transform.par_do.requires_stable_input:
                return Routing.SPREAD
        # Stages that are not fused keep what fused ones do: for example, elements of a key stay in order.
        return Routing.FORWARD

    # Stages.

    def _lower(self, stage_id: str, stage: ParsedStage) -> Stage:
        transforms: list[ParsedTransform] = []
        sinks: list[int] = []
        source: int | None = None
        remote = self._runs_in_worker(stage)
        time_sorted = any(transform.par_do.requires_time_sorted_input for transform in stage.transforms)
        for transform in stage.transforms:
            annotations = transform.proto.annotations
            if transform.urn == DATA_INPUT:
                edge, spec = self._source(stage, time_sorted)
                if edge is not None:
                    edge.consumers.append(stage_id)
                    source = edge.index
                transforms.append(transform.with_spec(READ_URN, spec.to_bytes()))
            elif transform.urn == DATA_OUTPUT:
                for edge in self._written(transform):
                    if stage_id not in edge.producers:
                        edge.producers.append(stage_id)
                    if edge.index not in sinks:
                        sinks.append(edge.index)
                    explode = _input_of(transform) in self._restrictions
                    write = WriteSpec(edge.index, edge.routing.value, explode=explode)
                    name = f"{transform.name}/{edge.routing.value}"
                    transforms.append(transform.with_spec(WRITE_URN, write.to_bytes(), name))
            elif remote:
                transforms.append(transform)
            elif transform.urn == _PRECOMBINE:
                transforms.append(transform.with_spec(PRECOMBINE_URN, transform.proto.spec.payload))
            elif LATE_ANNOTATION in annotations:
                transforms.append(self._late(stage, transform))
            elif PUBLISH_ANNOTATION in annotations:
                transforms.append(transform.with_spec(PUBLISH_URN, transform.proto.spec.payload))
            else:
                transforms.append(transform)
        own = [t for t in transforms if t.urn not in (READ_URN, WRITE_URN)]
        in_order = ordered(own)
        part, here = workers.divided(self._context, self._pipeline, transforms) if remote else (None, transforms)
        side_inputs = self._side_inputs(stage)
        return Stage(
            id=stage_id,
            name=describe.stage_name([t.name for t in own] or self._passed_on(stage)) or stage.name,
            transforms=tuple(Transform(t.name, t.name, t.urn) for t in in_order),
            payload=payloads.payload_of(
                self._context,
                self._pipeline,
                here,
                self._grouped_in(stage),
                beside_workers=self._is_beside_workers(stage),
            ),
            source=source,
            sinks=tuple(sinks),
            side_inputs=side_inputs,
            states=stage.states,
            timers=stage.timers,
            splittable=stage.is_splittable,
            finalizes=any(each.par_do.requests_finalization for each in stage.transforms),
            time_sorted=time_sorted,
            scripted=stage.script_tag is not None,
            stable=stage.is_stable,
            uid=identity.uid(self._components, stage, in_order),
            observed=_observed(transforms),
            publishers=tuple(t.name for t in in_order if t.urn == PUBLISH_URN),
            shape="" if source is None else self._shape(stage, in_order, side_inputs),
            remote=part,
            merges_in_worker=self._merges_in_worker(stage),
        )

    def _runs_in_worker(self, stage: ParsedStage) -> bool:
        return any(self._pipeline.has_workers(t.proto.environment_id) for t in stage.own)

    def _grouped_in(self, stage: ParsedStage) -> dict[str, str]:
        """Return the windowing strategy of the collection that a grouping outputs in the stage, if there is one."""
        strategy = self._grouped.get(stage.buffer)
        return {} if strategy is None else {stage.read_pcoll: strategy}

    def _is_beside_workers(self, stage: ParsedStage) -> bool:
        """Return whether the transforms of a stage are embedded, in a pipeline that also has SDK workers."""
        is_embedded = any(t.proto.environment_id for t in stage.own) and not self._runs_in_worker(stage)
        return is_embedded and self._pipeline.any_workers

    def _merges_in_worker(self, stage: ParsedStage) -> bool:
        strategies = self._components.windowing_strategies
        found = (strategies[each] for each in self._grouped_in(stage).values())
        return any(workers.merges_in_worker(self._pipeline, each) for each in found)

    def _late(self, stage: ParsedStage, transform: ParsedTransform) -> ParsedTransform:
        """Return the transform that outputs the elements that the stage's grouping drops."""
        if stage.buffer not in self._grouped or transform not in stage.consumers:
            raise InvalidPipelineError(
                f"{transform.name}: its input is not a grouping, so there are no dropped elements to output",
                "use arcbeam.io.WithLate unchanged, and do not set --gbek",
            )
        return transform.with_spec(LATE_URN, b"")

    def _shape(self, stage: ParsedStage, transforms: list[ParsedTransform], sides: tuple[SideInput, ...]) -> str:
        keyed = self._main_routing(stage) in (Routing.KEYED, Routing.GROUPED)
        if not (keyed or stage.is_splittable or sides or stage.is_stable):
            return ""
        pcoll = stage.read_pcoll
        strategy = self._grouped.get(stage.buffer) or self._strategy_id(pcoll)
        coder, is_prefixed = self._context.stored(self._components.pcollections[pcoll].coder_id)
        windowing = self._components.windowing_strategies[strategy]
        # A worker appends several elements of a state at once, which the runner does not divide.
        has_state = bool(stage.states)
        return identity.shape(
            self._components,
            transforms,
            coder,
            windowing,
            grouped=stage.buffer in self._grouped,
            by_workers=is_prefixed or (has_state and self._runs_in_worker(stage)),
        )

    def _passed_on(self, stage: ParsedStage) -> list[str]:
        """Return names for a stage without transforms of its own: its input and the exchange that it writes to."""
        arrived = [] if stage.read is None else [self._name(stage.read_pcoll)]
        exchanges = [t for t in stage.writes if t.proto.spec.payload.startswith((b"group:", b"spread:"))]
        return arrived + [t.name.removesuffix("/Write") for t in exchanges]

    def _name(self, pcoll: str) -> str:
        return describe.pcollection(self._components.pcollections[pcoll].unique_name or pcoll)

    def _source(self, stage: ParsedStage, time_sorted: bool) -> tuple[_Edge | None, ReadSpec]:
        buffer = stage.buffer
        if buffer == IMPULSE_BUFFER:
            return None, ReadSpec("impulse")
        if stage.is_root:
            id = teststream.payload_of(self._script).coder_id
            nested = workerscripts.nests(self._context, self._pipeline, id)
            return None, ReadSpec("script", coder=self._context.ours(id), nested=nested)
        routing, pcoll = self._main_routing(stage), stage.read_pcoll
        edge = self._edge(buffer, routing, pcoll)
        edge.read_as = pcoll
        if any(each.urn == PROCESS_URN for each in stage.consumers):
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

    def _written(self, write: ParsedTransform) -> list[_Edge]:
        buffer, pcoll = write.proto.spec.payload, _input_of(write)
        edges = [self._edge(buffer, routing, pcoll) for routing in sorted(self._main_routings.get(buffer, ()))]
        if buffer == f"materialize:{pcoll}".encode():
            edges += [self._edge(buffer, routing, pcoll) for routing in sorted(self._side_routings.get(pcoll, ()))]
        return edges

    def _edge(self, buffer: bytes, routing: Routing, pcoll: str) -> _Edge:
        found = self._edges.get((buffer, routing))
        if found is None:
            found = self._edges[buffer, routing] = _Edge(len(self._edges), pcoll, routing)
        return found

    def _side_inputs(self, stage: ParsedStage) -> tuple[SideInput, ...]:
        found = []
        for transform in stage.transforms:
            for tag, side in sorted(transform.par_do.side_inputs.items()):
                pcoll = transform.proto.inputs[tag]
                routing = Routing.SIDE_KEYED if side.access_pattern.urn == _MULTIMAP else Routing.SIDE
                buffer = self._buffer_of_side.get(pcoll)
                if buffer is None:
                    raise InvalidPipelineError(f"{transform.name}: side input '{tag}' has no producer")
                channel = self._edge(buffer, routing, pcoll).index
                lateness = self._pipeline.strategy(transform.main_inputs[0]).allowed_lateness * 1000
                strategy = self._pipeline.strategy(pcoll)
                eager = describe.may_fire_early(strategy.trigger)
                firings = describe.firings(strategy, singleton=describe.is_singleton(side))
                found.append(SideInput(transform.name, tag, channel, lateness, eager, firings))
        return tuple(found)

    def _channel(self, edge: _Edge) -> Channel:
        pcoll = self._components.pcollections[edge.pcoll]
        return Channel(
            index=edge.index,
            # A Flatten's inputs have names of their own; its output has the Flatten's name.
            name=self._name(edge.read_as if edge.read_as and len(edge.producers) > 1 else edge.pcoll),
            routing=edge.routing,
            coder=describe.coder(self._components, pcoll.coder_id),
            windowing=describe.windowing(self._pipeline.strategy(edge.pcoll)),
            producers=tuple(edge.producers),
            consumers=tuple(edge.consumers),
            schema=self._pipeline.schema(edge.pcoll),
        )

    def _strategy_id(self, pcoll: str) -> str:
        strategy: str = self._components.pcollections[pcoll].windowing_strategy_id
        return strategy


def _input_of(write: ParsedTransform) -> str:
    pcoll: str = next(iter(write.proto.inputs.values()))
    return pcoll


def _observed(transforms: list[ParsedTransform]) -> dict[int, ObserverPaths]:
    """Return, for each channel, the observers on the paths to it."""
    paths: dict[str, ObserverPaths] = {}
    found: dict[int, ObserverPaths] = {}
    for transform in ordered(transforms):
        proto, before = transform.proto, [paths.get(pcoll, NOT_OBSERVED) for pcoll in transform.main_inputs]
        here: ObserverPaths = tuple(dict.fromkeys(way for each in before for way in each)) or NOT_OBSERVED
        if ANNOTATION in proto.annotations:
            says = Observing.from_bytes(proto.annotations[ANNOTATION])
            here = (says.observer(transform.name, here),)
        paths.update(dict.fromkeys(proto.outputs.values(), here))
        if transform.urn == WRITE_URN:
            channel = WriteSpec.from_bytes(proto.spec.payload).channel
            found[channel] = tuple(dict.fromkeys((*found.get(channel, ()), *here)))
    return {channel: here for channel, here in found.items() if here != NOT_OBSERVED}
