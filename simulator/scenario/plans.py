"""The pipeline of a simulated job: its stages and their places.

Owns the values, and their translation for the engine. Must not know how a pipeline is chosen, nor what runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.stagekinds import Grouped, Plain, Splittable, StageSpec, Stateful
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.model.observers import Observer, ObserverPaths
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Duration
from arcbeam.store.manifest.values import JobShape, StageShape
from simulator.scenario.kinds import MAIN, Buffer, Expand, Group, Join, Keep, Kind, Pass, Source
from simulator.scenario.together import unpack
from simulator.scenario.windowings import Windowing


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline.

    Attributes:
        name: its name.
        level: its level, above the levels of its inputs.
        kind: its work.
        inputs: the ports that it reads.
        outputs: the names of its outputs.
        together: whether all its elements get the same key.
    """

    name: str
    level: int
    kind: Kind
    inputs: tuple[Port, ...] = ()
    outputs: tuple[str, ...] = (MAIN,)
    together: bool = False

    @property
    def windowing(self) -> Windowing | None:
        """Return how its elements get windows; None if all are in one window."""
        if isinstance(self.kind, Expand):
            return self.kind.windowing if self.kind.side else None
        return self.kind.windowing if isinstance(self.kind, (Group, Keep, Join)) else None

    @property
    def side(self) -> Port | None:
        """Return the first producer of its side input."""
        return self.kind.side if isinstance(self.kind, (Expand, Keep, Join)) else None

    @property
    def sides(self) -> tuple[Port, ...]:
        """Return all producers of its side input."""
        if not isinstance(self.kind, (Expand, Keep, Join)) or self.kind.side is None:
            return ()
        return (self.kind.side, *self.kind.beside)

    @property
    def newest(self) -> bool:
        """Return whether it reads only the newest firings of its side input."""
        return isinstance(self.kind, (Expand, Keep, Join)) and self.kind.newest

    @property
    def observed(self) -> dict[str, ObserverPaths]:
        """Return how its outputs are observed, by output; empty if they are not."""
        if not isinstance(self.kind, Pass) or self.kind.delay is None:
            return {}
        shared = self.kind.shared
        observer = Observer(
            self.name if shared is None else shared.name,
            Duration(self.kind.delay),
            self.kind.policy,
            quantile=self.kind.quantile,
            idle_after=_span(self.kind.idle),
            max_jump=_span(self.kind.jump),
            max_skew=_span(self.kind.skew),
            shared=None if shared is None else shared.policy,
            part="" if shared is None else self.name,
        )
        return dict.fromkeys(self.outputs, (observer,))

    def key_of(self, key: bytes) -> bytes:
        """Return the user key that an element has when it reaches this stage."""
        return b"all" if self.together else key


def side_name(producer: int) -> str:
    """Return the stage's name for the part of its side input from one producer."""
    return f"side {producer}"


_PRODUCERS = 1000
"""A number larger than that of all stages of a pipeline."""


def _span(micros: int | None) -> Duration | None:
    return None if micros is None else Duration(micros)


_FAMILIES = {
    "end": {"end": TimeDomain.EVENT},
    "expiration": {},
    "clock": {"end": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING},
    "clock or expiration": {"clock": TimeDomain.PROCESSING},
    "each": {"each": TimeDomain.EVENT},
    "drawers": {"drawer": TimeDomain.EVENT},
    "order": {"end": TimeDomain.EVENT},
    "debounce": {"quiet": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING},
}


@dataclass(frozen=True)
class Pipeline:
    """The stages, producers before consumers."""

    stages: tuple[Stage, ...]
    shards: int

    @cached_property
    def by_name(self) -> Mapping[str, Stage]:
        """Return the stages by name."""
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def levels(self) -> int:
        """Return the number of levels."""
        return 1 + max(stage.level for stage in self.stages)

    @cached_property
    def consumers(self) -> Mapping[Port, tuple[Stage, ...]]:
        """Return the stages that read each port."""
        return {
            Port(stage.name, output): tuple(each for each in self.stages if Port(stage.name, output) in each.inputs)
            for stage in self.stages
            for output in stage.outputs
        }

    @cached_property
    def side_readers(self) -> Mapping[Port, tuple[Stage, ...]]:
        """Return the stages that have each port as a side input."""
        readers: dict[Port, tuple[Stage, ...]] = {}
        for stage in self.stages:
            for port in stage.sides:
                readers[port] = (*readers.get(port, ()), stage)
        return readers

    @cached_property
    def since(self) -> Mapping[str, int]:
        """Return the number of the first driver with each stage. A stage exists as soon as one of its inputs does."""
        since: dict[str, int] = {}
        for stage in self.stages:
            own = stage.kind.joins if isinstance(stage.kind, Source) else 0
            since[stage.name] = min((since[port.stage] for port in stage.inputs), default=own)
        return since

    def as_of(self, driver: int) -> Pipeline:
        """Return the part of the pipeline that a driver has."""
        there = {name for name, since in self.since.items() if since <= driver}
        kept = (stage for stage in self.stages if stage.name in there)
        stages = (replace(s, inputs=tuple(port for port in s.inputs if port.stage in there)) for s in kept)
        return self if len(there) == len(self.stages) else Pipeline(tuple(stages), self.shards)

    def at_once(self) -> Pipeline:
        """Return the same pipeline with all sources from the beginning."""
        return Pipeline(tuple(map(_from_the_beginning, self.stages)), self.shards)

    def deeper(self, exchanges: int) -> Pipeline:
        """Return the same pipeline with additional exchanges after its sources, which only pass elements on."""
        moved = (replace(stage, level=stage.level + exchanges) if stage.level else stage for stage in self.stages)
        return Pipeline(tuple(moved), self.shards) if exchanges else self

    def of_shards(self, shards: int) -> Pipeline:
        """Return the same pipeline with another number of shards."""
        return self if shards == self.shards else Pipeline(self.stages, shards)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Return the number of each stage. It never changes, whatever other stages there are."""
        return {stage.name: int(stage.name.rpartition("-")[2]) for stage in self.stages}

    def side_number(self, reader: Stage, port: Port) -> int:
        """Return the number of the channel from a port to a stage's side input."""
        return self.numbers[reader.name] + reader.sides.index(port) * _PRODUCERS

    @cached_property
    def side_parts(self) -> Mapping[int, tuple[int, ...]]:
        """Return the numbers of the channels of each stage's side input, by the stage's number."""
        return {
            self.numbers[stage.name]: tuple(self.side_number(stage, port) for port in stage.sides)
            for stage in self.stages
            if stage.sides
        }

    @cached_property
    def newest(self) -> frozenset[int]:
        """Return the numbers of the stages that read only the newest firings of their side inputs."""
        return frozenset(self.numbers[stage.name] for stage in self.stages if stage.newest)

    @property
    def shape(self) -> JobShape:
        """Return the shape of its state."""
        stages = tuple(StageShape(stage.name, stage.level, type(stage.kind).__name__) for stage in self.stages)
        return JobShape("simulated", self.shards, stages)

    def layout(self, tasks: tuple[int, ...]) -> Layout:
        """Return the layout of the stages for the engine."""
        return Layout(
            tuple(
                StagePlacement(
                    StageFlow(stage.name, stage.inputs, stage.outputs, self.shards, stage.observed),
                    self.numbers[stage.name],
                    stage.level,
                    tuple((side_name(n), port) for n, port in enumerate(stage.sides)),
                )
                for stage in self.stages
            ),
            self.shards,
            tasks,
        )

    def specs(self, layout: Layout) -> dict[str, StageSpec]:
        """Return the specification of each stage for the engine."""
        known = self._specs.get(layout.tasks)
        if known is None:
            placed = {each.name: each for each in layout.stages}
            known = self._specs[layout.tasks] = {s.name: _spec(s, placed[s.name]) for s in self.stages}
        return known

    @cached_property
    def _specs(self) -> dict[tuple[int, ...], dict[str, StageSpec]]:
        return {}


def _from_the_beginning(stage: Stage) -> Stage:
    return replace(stage, kind=replace(stage.kind, joins=0)) if isinstance(stage.kind, Source) else stage


def _spec(stage: Stage, placed: StagePlacement) -> StageSpec:
    match stage.kind:
        case Source() | Expand():
            return StageSpec(placed, Splittable(bound=50), stage.windowing.decode if stage.windowing else None)
        case Pass():
            return StageSpec(placed, Plain())
        case Buffer():
            return StageSpec(placed, Plain(), prepares=True)
        case Join(_, windowing):
            return StageSpec(placed, Plain(), windowing.decode)
        case Group(windowing) as group:
            return StageSpec(placed, Grouped(group.strategy, windowing.decode, unpack))
        case Keep(windowing, way, _, lateness) as keep:
            in_order = Duration(lateness) if way == "order" else None
            kind = Stateful(_FAMILIES[way], windowing.decode, keep.expires, in_order, "expiration" in way)
            return StageSpec(placed, kind, windowing.decode)
