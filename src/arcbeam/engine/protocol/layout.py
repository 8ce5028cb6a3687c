"""Where the stages of a job run: levels, shards, and the tasks that own ranges of shards.

Owns what follows from a plan alone. Must not know what a stage does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.model.timestamps import Timestamp


@dataclass(frozen=True, slots=True)
class Placed:
    """A stage and its place.

    Attributes:
        flow: what it reads and puts out; it runs in every shard of the layout.
        number: of the stage, unique; its rows are known by it as long as the job lives.
        level: above the levels of all that it reads.
        side_inputs: the port behind each of its side inputs, by the stage's own name for it.
        scripted: it reads nothing: what it puts out, and up to where that is complete, is in the plans of
            micro-batches.
    """

    flow: StageFlow
    number: int
    level: int
    side_inputs: tuple[tuple[str, Port], ...] = ()
    scripted: bool = False

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.flow.name

    @property
    def ports(self) -> tuple[Port, ...]:
        """Its outputs."""
        return tuple(Port(self.flow.name, output) for output in self.flow.outputs)


@dataclass(frozen=True, slots=True)
class Layout:
    """The stages of a job, and the tasks of a micro-batch.

    Attributes:
        stages: producers before consumers.
        shards: of each level.
        tasks: how many tasks each level has in a micro-batch, at most one for each shard; may differ from run to run.
    """

    stages: tuple[Placed, ...]
    shards: int
    tasks: tuple[int, ...]

    def __post_init__(self) -> None:
        """Checks that a micro-batch can flow through the levels.

        Raises:
            ValueError: it cannot; the stage or level at fault is named.
        """
        levels: dict[Port, int] = {}
        numbers: dict[int, str] = {}
        if not self.stages:
            raise ValueError("a job without stages has nothing to run")
        for stage in self.stages:
            if stage.flow.shards != self.shards:
                raise ValueError(f"{stage.name!r} has {stage.flow.shards} shards, the layout {self.shards}")
            if numbers.setdefault(stage.number, stage.name) != stage.name:
                raise ValueError(f"{numbers[stage.number]!r} and {stage.name!r} both have number {stage.number}")
            if not 0 <= stage.level < len(self.tasks):
                raise ValueError(f"{stage.name!r} is at level {stage.level}; there are {len(self.tasks)}")
            for port in stage.flow.inputs:
                if port not in levels:
                    raise ValueError(f"{stage.name!r} reads {port}, which no stage before it has")
                # A shard may not follow its own half of a producer: another shard may hand it earlier work.
                if levels[port] >= stage.level:
                    raise ValueError(f"{stage.name!r} reads {port} at its own level {stage.level}, or above it")
            levels.update(dict.fromkeys(stage.ports, stage.level))
        for stage in self.stages:
            for name, port in stage.side_inputs:
                if port not in levels:
                    raise ValueError(f"side input {name!r} of {stage.name!r} is {port}, which no stage has")
        for level, count in enumerate(self.tasks):
            if not 1 <= count <= self.shards:
                raise ValueError(f"level {level} has {count} tasks for {self.shards} shards")

    @property
    def scripted(self) -> bool:
        """Whether a script says what comes, and what the clock shows."""
        return any(stage.scripted for stage in self.stages)

    @property
    def sources(self) -> frozenset[str]:
        """The stages that read nothing."""
        return frozenset(stage.name for stage in self.stages if not stage.flow.inputs)

    @property
    def flows(self) -> tuple[StageFlow, ...]:
        """The stages as watermarks know them."""
        return tuple(stage.flow for stage in self.stages)

    def told_at_commits(self, outputs: Mapping[Port, Timestamp]) -> dict[str, Timestamp]:
        """The upstream watermark of each stage that reads an output that is observed: what that has seen in a
        micro-batch, its readers learn in the next one.

        Args:
            outputs: the watermarks of all outputs.
        """
        observed = {Port(stage.name, output) for stage in self.stages for output in stage.flow.observed}
        if not observed:
            return {}
        return {
            stage.name: min(outputs[port] for port in stage.flow.inputs)
            for stage in self.stages
            if not observed.isdisjoint(stage.flow.inputs)
        }

    def at(self, level: int) -> tuple[Placed, ...]:
        """The stages of a level."""
        return tuple(stage for stage in self.stages if stage.level == level)

    def ports_before(self, level: int) -> tuple[Port, ...]:
        """All outputs of the levels before one: what its markers tell of."""
        return tuple(port for stage in self.stages if stage.level < level for port in stage.ports)

    def range_of(self, level: int, task: int) -> range:
        """The shards that a task owns. The ranges of a level are adjacent, and differ in length by one at most."""
        count = self.tasks[level]
        return range(self.shards * task // count, self.shards * (task + 1) // count)

    def places(self) -> Iterator[tuple[str, int]]:
        """Every stage and shard: each is in exactly one report of a micro-batch."""
        return ((stage.name, shard) for stage in self.stages for shard in range(self.shards))
