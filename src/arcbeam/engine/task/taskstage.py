"""A stage that is open in a worker of a streaming job, as protocols: all that a task calls.

Owns no behaviour. `harness` implements these with the Python SDK in the task's process, `fnapi` with the worker of an
SDK. Must not know an SDK: data that an SDK has encoded is bytes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Combined, KeyElements
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.stagekinds import StageSpec
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.task.bundles import Runner
from arcbeam.model.interfaces import OpenStage, StateView
from arcbeam.model.rows import BundleReport, Outbox, PublishedSides, Row, SideWriter
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window


class Counting(Protocol):
    """An output of a stage that counts its elements.

    Attributes:
        taken: the number of elements that it has taken so far; a task reads its growth.
    """

    taken: int


class Finalizations(Protocol):
    """The finalization callbacks of bundles, to run after the commit of their micro-batch."""

    def run(self) -> None:
        """Run the callbacks. Best effort: never raises."""


class StageRunner(Runner, Protocol):
    """The user code of a stage in a shard, for the duration of a micro-batch."""

    def late(self, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        """Handle a drop. If the pipeline reads late elements, the element is emitted, at the latest by `finish`."""

    def about(self) -> str:
        """Describe the key or the restriction of the last call, for messages; "" if it had neither."""


class TaskStage(OpenStage, Protocol):
    """A stage of a streaming job that is open in a worker.

    A task is `begin`, any number of runners, one after the other, and `end`; or `abandon`, if anything has failed. All
    calls from `begin` to `end` are on one thread. A worker runs one task at a time.
    """

    @property
    def writers(self) -> Sequence[Counting]:
        """Return the writers whose counts are the stage's outputs; they are the same from `begin` to `end`."""

    def spec(self, placed: StagePlacement) -> StageSpec:
        """Return the specification of the stage for the engine, at its place."""

    def begin(
        self,
        outbox: Outbox,
        shard: int,
        side_writer: Callable[[int], SideWriter],
        sides: PublishedSides,
        now: Timestamp | None,
    ) -> None:
        """Begin a task.

        Args:
            outbox: receives what the stage writes: rows for its consumers, and entries of multimap side inputs.
            shard: the first shard of the task, to which it forwards what is not exchanged.
            side_writer: makes a writer for an iterable side input, by channel.
            sides: the side inputs that the task reads.
            now: the job's time; None: the job's time is the clock that user code sees.
        """

    def elements(self, rows: Iterable[Row]) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        """Return the elements of the stage in a shard, from rows in ascending order of their buckets; see
        `arcbeam.engine.task.bundles.Exchange`.
        """

    def scripted(self, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, KeyElements]]:
        """Return the elements that a script adds to the stage's output, from encoded values and their timestamps."""

    def runner(self, view: StateView, placed: StagePlacement) -> StageRunner:
        """Return the stage's user code in a shard with that state. Finish it before the next call."""

    def entries(self, row: Row) -> Iterable[tuple[bytes, bytes, bytes]]:
        """Return the entries in a row for a multimap side input: window, key and values, each encoded."""

    def last_moment(self, channel: int, window: bytes) -> Timestamp:
        """Return the last timestamp of an encoded window of a channel that the stage writes."""

    def sides_needed(self, window: Window) -> Sequence[tuple[int, bytes]]:
        """Return what an element of a window reads: channels of side inputs, each with its window in ordered form."""

    def side_until(self, channel: int, window: bytes) -> Timestamp:
        """Return the last timestamp of a side input's window, which is in ordered form."""

    def side_exists(self, channel: int, window: bytes) -> bool:
        """Return whether a side input's window is readable before its end: its trigger allows it, and it is filled."""

    def end(self, report: BundleReport, *, late: int, closed: int) -> None:
        """End a task: write all buffered rows, and add the results of the bundles to the report.

        Args:
            report: the task's report; the worker adds its part later.
            late: the number of elements that the engine dropped because their window had expired.
            closed: the number of elements dropped because the trigger of their window had finished.
        """

    def callbacks(self) -> Finalizations | None:
        """Return the finalizations of the task that has ended, if any, and release them to the caller."""
