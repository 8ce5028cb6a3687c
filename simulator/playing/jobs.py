"""The inputs and outputs of a task of a simulated job, as values.

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
"""The rows for each stage and shard."""
Passed = tuple[str, int, list[tuple[bytes, list[WindowedElement]]]]
"""Rows that pass through a level: their stage, shard and elements."""


_MOST_LOOKS = 50_000
"""The allowed number of checks of a task's budget in a micro-batch. The maximum seen is 2,122 (seed 49)."""


class Died(Exception):
    """The process of a task has died."""


class Looks(Budget):
    """A budget that is exhausted after a number of checks.

    Attributes:
        used: the number of checks so far.
    """

    def __init__(self, looks: int) -> None:
        self._looks, self.used = looks, 0

    @override
    def exhausted(self) -> bool:
        self.used += 1
        if self.used > _MOST_LOOKS:
            raise Broken(f"busy loop: a task has checked its budget of {self._looks} {self.used} times")
        return self.used >= self._looks

    def part(self, fraction: float) -> Looks:
        """See `Budget`: all parts share one budget."""
        return self


@dataclass
class Box:
    """The data that an attempt sends to the next level: rows, and after them its markers."""

    rows: Rows = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """The settings that are constant during the life of a driver.

    Attributes:
        pipeline: the pipeline of the job.
        layout: the layout of its stages.
        blobs: the driver's access to the store.
        epoch: the epoch of the driver.
        scratch: a local folder.
        parts: the committables by id.
        honest: the stages that never get late data.
        looks: the budget of a task in a micro-batch.
        last_event: a timestamp after those of all events.
        copies: the open local copies of side input files.
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
        """Return the reader of each side input channel, by the channel's number."""
        return {
            self.pipeline.side_number(stage, port): (stage.name,)
            for stage in self.pipeline.stages
            for port in stage.sides
        }

    def read_until(self, reader: str, windows: Sequence[Window]) -> Timestamp | None:
        """Return the timestamp after which a stage gets no more elements of these windows.

        None if it is unknown: the stage may get late elements, and does not drop them.
        """
        kind = self.pipeline.by_name[reader].kind
        if isinstance(kind, Keep):
            return max(map(kind.expires, windows))
        return max(window.max_timestamp for window in windows) if reader in self.honest else None
