"""The physical plan of a micro-batch: levels, ports and numbers of stages, and the paths of rows between levels.

Owns what follows from a plan and the number of shards. Must not know Spark, nor what a stage does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from zlib import crc32

from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.model.plan import Firings, Plan, Routing, Stage
from arcbeam.model.timestamps import Duration
from arcbeam.store.manifest.values import JobShape, StageShape

_SIDE = (Routing.SIDE, Routing.SIDE_KEYED)
_READS = "side input "
"""The prefix of the parts of a shape that name side inputs."""


@dataclass(frozen=True)
class PhysicalPlan:
    """A plan with the places of its stages.

    Attributes:
        plan: the plan of an unbounded pipeline.
        layout: its stages, by `Stage.uid`, levels ascending.
    """

    plan: Plan
    layout: Layout

    @cached_property
    def stages(self) -> Mapping[str, Stage]:
        """The plan's stages by uid."""
        return {stage.uid: stage for stage in self.plan.stages}

    @cached_property
    def indexes(self) -> Mapping[str, int]:
        """The index of each stage in the layout, by uid: the order in which a shard's rows are read."""
        return {placed.name: index for index, placed in enumerate(self.layout.stages)}

    @cached_property
    def readers(self) -> Mapping[int, tuple[int, ...]]:
        """The indexes of the stages that read each channel: each of them receives its rows."""
        uids = {stage.id: stage.uid for stage in self.plan.stages}
        return {
            channel.index: tuple(sorted(self.indexes[uids[id]] for id in channel.consumers))
            for channel in self.plan.channels
        }

    @cached_property
    def side_numbers(self) -> Mapping[Port, int]:
        """The number of each port's output to side inputs, fixed for the job's whole life."""
        numbers = {port: side_number(port) for port in side_ports(self.plan)}
        if len(set(numbers.values())) != len(numbers):
            raise ValueError(f"two of {', '.join(map(str, numbers))} have the same number: rename one of them")
        return numbers

    @cached_property
    def side_parts(self) -> Mapping[int, tuple[int, ...]]:
        """The numbers of all outputs in each side channel."""
        return {
            channel.index: tuple(self.side_numbers[port] for (_, of), port in self.ports.items() if of == channel.index)
            for channel in self.plan.channels
            if self._is_side(channel.index)
        }

    @cached_property
    def side_readers(self) -> Mapping[int, tuple[str, ...]]:
        """The uids of the stages that read the output with each number."""
        readers: dict[int, tuple[str, ...]] = {}
        for stage in self.plan.stages:
            for channel in dict.fromkeys(side.channel for side in stage.side_inputs):
                for number in self.side_parts[channel]:
                    readers[number] = (*readers.get(number, ()), stage.uid)
        return readers

    @cached_property
    def sides_of(self) -> tuple[frozenset[int], ...]:
        """For each level, the numbers of the side inputs that its stages read or write."""
        levels = {placed.name: placed.level for placed in self.layout.stages}
        return tuple(
            read | {number for port, number in self.side_numbers.items() if levels[port.stage] == level}
            for level, read in enumerate(self.sides_read)
        )

    @cached_property
    def sides_read(self) -> tuple[frozenset[int], ...]:
        """For each level, the numbers of the side inputs that its stages read."""
        levels = {placed.name: placed.level for placed in self.layout.stages}
        return tuple(
            frozenset(number for number, uids in self.side_readers.items() if level in map(levels.get, uids))
            for level in range(len(self.layout.tasks))
        )

    @cached_property
    def firings(self) -> Mapping[int, Firings]:
        """The firings that are read of each side channel: the maximum over its readers."""
        found: dict[int, Firings] = {}
        for side in (side for stage in self.plan.stages for side in stage.side_inputs):
            found[side.channel] = min(found.get(side.channel, side.firings), side.firings, key=list(Firings).index)
        return found

    @cached_property
    def newest(self) -> frozenset[int]:
        """The side channels in whose windows only the content from the newest micro-batch is read."""
        return frozenset(channel for channel, firings in self.firings.items() if firings is not Firings.ALL)

    def sides_to_compact(self, level: int, task: int) -> dict[int, bool]:
        """Return the numbers of the side inputs whose files a task merges, and whether they are `newest`."""
        levels = {placed.name: placed.level for placed in self.layout.stages}
        count = self.layout.tasks[level]
        return {
            self.side_numbers[port]: channel in self.newest
            for (stage, channel), port in self.ports.items()
            if self._is_side(channel) and levels[stage] == level and self.side_numbers[port] % count == task
        }

    def _is_side(self, channel: int) -> bool:
        return self.plan.channels[channel].routing in _SIDE

    @cached_property
    def ports(self) -> Mapping[tuple[str, int], Port]:
        """The output by which a stage, by uid, writes a channel."""
        uids = {stage.id: stage.uid for stage in self.plan.stages}
        return {(uids[id], channel): port for (id, channel), port in ports_of(self.plan).items()}

    @cached_property
    def multimaps(self) -> frozenset[int]:
        """The channels that are read by key."""
        return frozenset(c.index for c in self.plan.channels if c.routing is Routing.SIDE_KEYED)

    @cached_property
    def side_lateness(self) -> Mapping[int, Duration]:
        """How long after the end of its window a side channel may still be read."""
        found: dict[int, Duration] = {}
        for side in (side for stage in self.plan.stages for side in stage.side_inputs):
            found[side.channel] = max(found.get(side.channel, Duration(0)), Duration(side.lateness))
        return found

    @cached_property
    def owners(self) -> tuple[tuple[int, ...], ...]:
        """For each level, the task that owns each shard."""
        layout = self.layout
        return tuple(
            tuple(task for task in range(count) for _ in layout.range_of(level, task))
            for level, count in enumerate(layout.tasks)
        )


def levels_of(plan: Plan) -> dict[str, int]:
    """Return the level of each stage, by its id: one more than the maximum level of its inputs."""
    levels: dict[str, int] = {}
    for stage in plan.stages:
        before = () if stage.source is None else plan.channels[stage.source].producers
        levels[stage.id] = 1 + max((levels[id] for id in before), default=-1)
    return levels


def shape_of(plan: Plan, shards: int) -> JobShape:
    """Return what a pipeline requires of the state that it resumes with."""
    levels = levels_of(plan)
    ports = ports_of(plan)
    stages: list[StageShape] = []
    for stage in plan.stages:
        # Elements blocked by a side input identify it.
        sides = sorted(
            str(ports[producer, side.channel])
            for side in stage.side_inputs
            for producer in plan.channels[side.channel].producers
        )
        shape = "; ".join([stage.shape, *(f"{_READS}{name}" for name in dict.fromkeys(sides))])
        stages.append(StageShape(stage.uid, levels[stage.id], shape if sides else stage.shape))
    return JobShape(_digest(plan), shards, tuple(stages))


def without_sides(shape: str) -> tuple[str, frozenset[str]]:
    """Return a stage's shape without its side inputs, and the outputs that these are."""
    parts = shape.split("; ") if shape else []
    sides = frozenset(part.removeprefix(_READS) for part in parts if part.startswith(_READS))
    return "; ".join(part for part in parts if not part.startswith(_READS)), sides


def side_ports(plan: Plan) -> frozenset[Port]:
    """Return the outputs that are side inputs."""
    return frozenset(port for (_, index), port in ports_of(plan).items() if plan.channels[index].routing in _SIDE)


def side_number(port: Port) -> int:
    """Return the number of a port's output to side inputs. It depends on its name: channel indexes differ by plan."""
    return crc32(f"{port.stage}\0{port.output}".encode())


def side_name(number: int) -> str:
    """Return a stage's name for it."""
    return f"{number:08x}"


def placed(plan: Plan, numbers: Mapping[str, int], shards: int, tasks: int) -> PhysicalPlan:
    """Place the stages of a plan.

    Args:
        plan: the plan of an unbounded pipeline.
        numbers: the numbers of its stages, by uid.
        shards: the number of shards of each level.
        tasks: the maximum number of tasks of each level in a micro-batch.
    """
    levels, ports = levels_of(plan), ports_of(plan)
    found = []
    for stage in sorted(plan.stages, key=lambda stage: levels[stage.id]):
        source = None if stage.source is None else plan.channels[stage.source]
        inputs = () if source is None else tuple(ports[id, source.index] for id in source.producers)
        outputs = tuple(ports[stage.id, index].output for index in stage.sinks)
        sides = {
            side_name(side_number(port)): port
            for side in stage.side_inputs
            for port in (ports[producer, side.channel] for producer in plan.channels[side.channel].producers)
        }
        observed = {ports[stage.id, index].output: ways for index, ways in stage.observed.items()}
        flow = StageFlow(stage.uid, inputs, outputs, shards, observed)
        found.append(StagePlacement(flow, numbers[stage.uid], levels[stage.id], tuple(sides.items()), stage.scripted))
    count = max(levels.values()) + 1
    return PhysicalPlan(plan, Layout(tuple(found), shards, (min(shards, tasks),) * count))


def ports_of(plan: Plan) -> dict[tuple[str, int], Port]:
    """Return the output by which a stage, by its id, writes each of its channels; it is named after the collection."""
    ports = {}
    for stage in plan.stages:
        taken: dict[str, int] = {}
        for index in stage.sinks:
            channel = plan.channels[index]
            # A collection may be a side input in two forms, and main input as well.
            name = f"{channel.name} ({channel.routing})" if channel.routing in _SIDE else channel.name
            taken[name] = taken.get(name, 0) + 1
            ports[stage.id, index] = Port(stage.uid, name if taken[name] == 1 else f"{name}#{taken[name]}")
    return ports


def output_names(plan: Plan) -> dict[tuple[str, int], str]:
    """Return the name by which a status knows each output: of a stage, by its id, to a channel."""
    return {of: port.output for of, port in ports_of(plan).items()}


def _digest(plan: Plan) -> str:
    hashed = sha256()
    for stage in plan.stages:
        hashed.update(stage.uid.encode() + b"\0" + stage.payload)
    return hashed.hexdigest()[:16]
