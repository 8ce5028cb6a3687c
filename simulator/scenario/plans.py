"""The pipeline of a simulated job: its stages, and where they are.

Owns the values, and what the engine must be told of them. Must not know how a pipeline is chosen, nor what runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from arcbeam.engine.protocol.layout import Layout, Placed
from arcbeam.engine.protocol.stagekinds import Grouped, Plain, Splittable, StageSpec, Stateful
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.model.observers import Observer, Ways
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
        level: above those of its inputs.
        kind: what it does.
        inputs: what it reads.
        outputs: its own.
        together: all its elements get one key.
    """

    name: str
    level: int
    kind: Kind
    inputs: tuple[Port, ...] = ()
    outputs: tuple[str, ...] = (MAIN,)
    together: bool = False

    @property
    def windowing(self) -> Windowing | None:
        """How elements get windows when they come; None if all are in one."""
        if isinstance(self.kind, Expand):
            return self.kind.windowing if self.kind.side else None
        return self.kind.windowing if isinstance(self.kind, (Group, Keep, Join)) else None

    @property
    def side(self) -> Port | None:
        """The first producer of its side input."""
        return self.kind.side if isinstance(self.kind, (Expand, Keep, Join)) else None

    @property
    def sides(self) -> tuple[Port, ...]:
        """All producers of its side input."""
        if not isinstance(self.kind, (Expand, Keep, Join)) or self.kind.side is None:
            return ()
        return (self.kind.side, *self.kind.beside)

    @property
    def newest(self) -> bool:
        """Whether of its side input only the newest firings are read."""
        return isinstance(self.kind, (Expand, Keep, Join)) and self.kind.newest

    @property
    def observed(self) -> dict[str, Ways]:
        """The ways to its outputs, if it observes them."""
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
        """The user key with which an element comes to it."""
        return b"all" if self.together else key


def side_name(producer: int) -> str:
    """A stage's name for what one producer puts into its side input."""
    return f"side {producer}"


_PRODUCERS = 1000
"""More than a pipeline has stages."""


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
        """The stages by name."""
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def levels(self) -> int:
        """How many there are."""
        return 1 + max(stage.level for stage in self.stages)

    @cached_property
    def consumers(self) -> Mapping[Port, tuple[Stage, ...]]:
        """Which stages read a port."""
        return {
            Port(stage.name, output): tuple(each for each in self.stages if Port(stage.name, output) in each.inputs)
            for stage in self.stages
            for output in stage.outputs
        }

    @cached_property
    def side_readers(self) -> Mapping[Port, tuple[Stage, ...]]:
        """Which stages have a port as a side input."""
        readers: dict[Port, tuple[Stage, ...]] = {}
        for stage in self.stages:
            for port in stage.sides:
                readers[port] = (*readers.get(port, ()), stage)
        return readers

    @cached_property
    def since(self) -> Mapping[str, int]:
        """The driver that is the first to have each stage: all do that has an input of which that is so."""
        since: dict[str, int] = {}
        for stage in self.stages:
            own = stage.kind.joins if isinstance(stage.kind, Source) else 0
            since[stage.name] = min((since[port.stage] for port in stage.inputs), default=own)
        return since

    def as_of(self, driver: int) -> Pipeline:
        """What a driver has of it."""
        there = {name for name, since in self.since.items() if since <= driver}
        kept = (stage for stage in self.stages if stage.name in there)
        stages = (replace(s, inputs=tuple(port for port in s.inputs if port.stage in there)) for s in kept)
        return self if len(there) == len(self.stages) else Pipeline(tuple(stages), self.shards)

    def at_once(self) -> Pipeline:
        """The same, and all sources are there from the beginning."""
        return Pipeline(tuple(map(_from_the_beginning, self.stages)), self.shards)

    def deeper(self, exchanges: int) -> Pipeline:
        """The same with so many exchanges more behind its sources, which pass on what comes."""
        moved = (replace(stage, level=stage.level + exchanges) if stage.level else stage for stage in self.stages)
        return Pipeline(tuple(moved), self.shards) if exchanges else self

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The number of each stage: its own for ever, whatever other stages there are."""
        return {stage.name: int(stage.name.rpartition("-")[2]) for stage in self.stages}

    def side_number(self, reader: Stage, port: Port) -> int:
        """The number by which what a port puts into a stage's side input is known."""
        return self.numbers[reader.name] + reader.sides.index(port) * _PRODUCERS

    @cached_property
    def side_parts(self) -> Mapping[int, tuple[int, ...]]:
        """The numbers of all that is in the side input of each stage, by the stage's."""
        return {
            self.numbers[stage.name]: tuple(self.side_number(stage, port) for port in stage.sides)
            for stage in self.stages
            if stage.sides
        }

    @cached_property
    def newest(self) -> frozenset[int]:
        """The numbers of the stages of whose side inputs only the newest firings are read."""
        return frozenset(self.numbers[stage.name] for stage in self.stages if stage.newest)

    @property
    def shape(self) -> JobShape:
        """What it asks of its state."""
        stages = tuple(StageShape(stage.name, stage.level, type(stage.kind).__name__) for stage in self.stages)
        return JobShape("simulated", self.shards, stages)

    def layout(self, tasks: tuple[int, ...]) -> Layout:
        """What the engine is told of where stages are."""
        return Layout(
            tuple(
                Placed(
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
        """What the engine is told of what stages do."""
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


def _spec(stage: Stage, placed: Placed) -> StageSpec:
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
