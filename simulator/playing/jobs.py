"""What a task of a simulated job is given and what it makes, as values.

Owns the shapes. Must not know what a task does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.task.bundles import Budget
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.streaming.task.sidefiles import SideCopies
from simulator.judging.records import Broken, Part
from simulator.scenario.kinds import Keep
from simulator.scenario.plans import Pipeline

Rows = dict[tuple[str, int], list[tuple[bytes, list[WindowedElement]]]]
"""What goes to each stage and shard."""
Passed = tuple[str, int, list[tuple[bytes, list[WindowedElement]]]]
"""What passes a level: for a stage and shard."""


_MOST_LOOKS = 50_000
"""Of a task at the budget of a micro-batch. The most that were seen are 2,122 (seed 49)."""


class Died(Exception):
    """A task's process is gone."""


class Looks(Budget):
    """A budget of so many looks.

    Attributes:
        used: how often it was looked at.
    """

    def __init__(self, looks: int) -> None:
        self._looks, self.used = looks, 0

    @override
    def exhausted(self) -> bool:
        self.used += 1
        if self.used > _MOST_LOOKS:
            raise Broken(f"a busy loop: a task has looked at its budget of {self._looks} {self.used} times")
        return self.used >= self._looks

    def part(self, fraction: float) -> Looks:
        """See `Budget`: all look at one."""
        return self


@dataclass
class Box:
    """What an attempt sends to the next level, with its marker behind all rows."""

    rows: Rows = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """What does not change while a driver lives.

    Attributes:
        pipeline: what runs.
        layout: where.
        blobs: its way to the store.
        epoch: of the driver.
        scratch: a local folder.
        parts: where it is kept what is to be published, by id.
        honest: the stages to which nothing can come too late.
        looks: how much a task may do in a micro-batch.
        last_event: a time behind those of all events.
        copies: of the files of side inputs that its tasks have open.
    """

    pipeline: Pipeline
    layout: Layout
    blobs: DurableBlobs
    epoch: int
    scratch: Path
    parts: dict[bytes, Part]
    honest: frozenset[str]
    looks: int
    last_event: int
    copies: SideCopies = field(default_factory=SideCopies)

    @property
    def readers(self) -> dict[int, tuple[str, ...]]:
        """The stages that read what each producer puts into a side input: one each, by its number."""
        return {
            self.pipeline.side_number(stage, port): (stage.name,)
            for stage in self.pipeline.stages
            for port in stage.sides
        }

    def read_until(self, reader: str, windows: Sequence[Window]) -> Timestamp | None:
        """When nothing of these windows comes to a stage any more; None if it cannot be said: elements may come late,
        and are not dropped there.
        """
        kind = self.pipeline.by_name[reader].kind
        if isinstance(kind, Keep):
            return max(map(kind.expires, windows))
        return max(window.max_timestamp for window in windows) if reader in self.honest else None
