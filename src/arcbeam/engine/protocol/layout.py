"""The places of a job's stages: levels, shards, and the tasks that own ranges of shards.

Owns what follows from a plan alone. Must not know what a stage does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.model.timestamps import Timestamp


@dataclass(frozen=True, slots=True)
class StagePlacement:
    """A stage and its place.

    Attributes:
        flow: its inputs and outputs; it runs in every shard of the layout.
        number: its unique number, which marks its rows for the whole life of the job.
        level: greater than the levels of all its inputs.
        side_inputs: the port of each side input, by the stage's own name for it.
        scripted: it has no input: the plans of micro-batches contain its outputs and their watermarks.
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
        shards: the number of shards of each level.
        tasks: the number of tasks of each level in a micro-batch, at most one for each shard; may differ from run to
            run.
    """

    stages: tuple[StagePlacement, ...]
    shards: int
    tasks: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that a micro-batch can flow through the levels.

        Raises:
            ValueError: it cannot; the message names the stage or level at fault.
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
                raise ValueError(f"{stage.name!r} is at level {stage.level}; there are {len(self.tasks)} levels")
            for port in stage.flow.inputs:
                if port not in levels:
                    raise ValueError(f"{stage.name!r} reads {port}, which no earlier stage has")
                # A shard must not use its own half of a producer: another shard may still send it earlier elements.
                if levels[port] >= stage.level:
                    raise ValueError(
                        f"{stage.name!r} at level {stage.level} reads {port}, which is not at a lower level"
                    )
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
        """Whether a script provides the elements and moves the clock."""
        return any(stage.scripted for stage in self.stages)

    @property
    def sources(self) -> frozenset[str]:
        """The stages without inputs."""
        return frozenset(stage.name for stage in self.stages if not stage.flow.inputs)

    @property
    def flows(self) -> tuple[StageFlow, ...]:
        """The stages' flows, for the computation of watermarks."""
        return tuple(stage.flow for stage in self.stages)

    def observed_inputs(self, outputs: Mapping[Port, Timestamp]) -> dict[str, Timestamp]:
        """Return the upstream watermark of each stage that reads an observed output. What the output observed in a
        micro-batch reaches its readers in the next one.

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

    def at(self, level: int) -> tuple[StagePlacement, ...]:
        """Return the stages of a level."""
        return tuple(stage for stage in self.stages if stage.level == level)

    def ports_before(self, level: int) -> tuple[Port, ...]:
        """Return all outputs of the levels before one: the ports in its markers."""
        return tuple(port for stage in self.stages if stage.level < level for port in stage.ports)

    def range_of(self, level: int, task: int) -> range:
        """Return the shards that a task owns. The ranges of a level are adjacent and differ in length by at most 1."""
        count = self.tasks[level]
        return range(self.shards * task // count, self.shards * (task + 1) // count)

    def places(self) -> Iterator[tuple[str, int]]:
        """Return every stage and shard: each is in exactly one report of a micro-batch."""
        return ((stage.name, shard) for stage in self.stages for shard in range(self.shards))
