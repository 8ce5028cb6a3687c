"""The environment of a job's driver and tasks, as protocols: a cluster, sinks, rows, stages, user code, hosts.

Owns no behaviour. Spark implements these for real jobs, `simulator` for jobs with injected failures, and tests in
memory. Must not know any implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from arcbeam.engine.coordinator import (
    Command,
    CommitConflicted,
    CommitDecided,
    CommitRefused,
    CommitUnknown,
    DriverFailed,
    Event,
    Propose,
)
from arcbeam.engine.grouping.effects import DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Elements
from arcbeam.engine.protocol.layout import Placed
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.protocol.stagekinds import StageSpec
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.task.bundles import Runner
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.commits import Committable
from arcbeam.model.files import ShardFile, SideFile
from arcbeam.model.interfaces import OpenStage, StateView
from arcbeam.model.rows import BundleReport, Outbox, PublishedSides, Row, SideWriter
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log.sweep import Swept
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import ShardVersion
from arcbeam.store.shards.overlay import Overlay
from arcbeam.streaming.assignment import TaskAssignment

R = TypeVar("R")

Decision = CommitDecided | CommitConflicted | CommitUnknown | CommitRefused | DriverFailed
"""The outcome of a proposal."""

# The environment of a driver.


class Clock(Protocol):
    """The time."""

    def now(self) -> Timestamp:
        """Return the processing time."""


class Inbox(Protocol):
    """The queue of events for a driver."""

    def put(self, event: Event) -> None:
        """Add an event. Any thread may call this."""


class WaitingInbox(Inbox, Protocol):
    """An inbox whose driver waits for events."""

    def next(self, until: Timestamp | None) -> Event | None:
        """Return the first event, waiting for it; None if the clock reaches that moment before."""


class Cluster(Protocol):
    """Runs the tasks of a job, and has the processes with user code. No call waits: the answer is an event in the
    driver's inbox.
    """

    def run(self, order: TaskAssignment) -> None:
        """Run a micro-batch: all tasks of all its levels, each as one or more attempts (`task.TaskAttempt`).

        Answered by `MicroBatchReported`, with one report for each task, or by `MicroBatchFailed`.
        """

    def abandon(self, micro_batch: int, attempt: int) -> None:
        """Abandon a run: its result is ignored. No answer."""

    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        """Finalize the attempts with these tokens, which are committed. Each process that has finalizations of their
        bundles calls them when it next wakes; it drops those of all other attempts of this micro-batch and of earlier
        ones. Answered by `Finalized`.
        """

    def shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        """Call `shutdown` of user code that has it, in that order of stages. Answered by `ShutDown`."""

    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        """Tear down user code that was set up, in that order of stages. Answered by `TornDown`."""


class Sinks(Protocol):
    """The destination of committed output."""

    def publish(self, micro_batch: int, committables: Sequence[Committable]) -> None:
        """Publish committables, without waiting; it is idempotent. Answered by `Published` or `PublishFailed`."""


class Commits(Protocol):
    """Commits micro-batches. Its calls wait for the store."""

    def order(self, plan: MicroBatchPlan) -> TaskAssignment:
        """Return the assignment of a micro-batch that follows the head."""

    def propose(self, command: Propose, now: Timestamp) -> Decision:
        """Try to commit a micro-batch."""

    def resolve(self, micro_batch: int, now: Timestamp) -> Decision:
        """Ask again for the outcome of a proposal."""

    def overtaken(self) -> str:
        """Return a description of the driver that has taken over the job, if this is known without a proposal; else
        "".
        """

    def unpublished(self) -> Sequence[Committable]:
        """Return the head's committables, which another driver may have made."""

    def sweep(self) -> Swept:
        """Remove files that are not needed any more.

        Raises:
            StoreError: some could not be removed; the next sweep retries.
        """


class Scripted(Protocol):
    """Reads the job's script."""

    def read(self, number: int) -> None:
        """Read the event after so many others, without waiting. Answered by `ScriptRead`, or by `DriverFailed` if the
        script cannot be read or is invalid.
        """


class Watch(Protocol):
    """Observes a driver: for people, a page, or a simulation. An exception that it raises ends the driver."""

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        """The machine has handled an event; the commands are carried out next."""

    def begins(self, command: Command) -> None:
        """A command is carried out next."""

    def warn(self, text: str) -> None:
        """Report a warning to people."""

    def swept(self, swept: Swept | StoreError) -> None:
        """Files were removed, or could not be."""


# The environment of a task.


class Host(Protocol):
    """The copies of shards on a host: `store.shards.cache.HostCache`."""

    def view(self, blobs: DurableBlobs, version: ShardVersion) -> Overlay:
        """Return a shard's state at a version, for one micro-batch; close it afterwards."""

    def publish(
        self, blobs: DurableBlobs, version: ShardVersion, written: Written, view: Overlay, micro_batch: int
    ) -> ShardFile | None:
        """Write a micro-batch's changes; return None if there are none."""


class Files(Protocol):
    """The files that a task reads and writes: `outputs.TaskStore`."""

    def view(self, version: ShardVersion) -> Overlay:
        """Return a shard's state at a version, for one micro-batch; close it afterwards."""

    def delta(self, version: ShardVersion, written: Written, view: Overlay, micro_batch: int) -> ShardFile | None:
        """Write the micro-batch's changes; return None if there are none."""

    def merged(self, files: Sequence[ShardFile], first: int, written: Written) -> tuple[ShardFile, ...]:
        """Return a shard's files, with those from `first` on merged into one."""

    def side(self, written: Written, data: SideData) -> SideFile:
        """Write a file of a side input."""

    def joined(self, written: Written, files: Sequence[SideFile], newest: bool) -> SideFile:
        """Write a file with the content of several files of a side input, of adjacent micro-batches.

        Args:
            written: for its name.
            files: files of the head.
            newest: in each window, only the content from its newest micro-batch is read.
        """


@dataclass(frozen=True, slots=True)
class SideData:
    """The output of an attempt to a side input, in one shard.

    Attributes:
        channel: the number of the side input, unique for the job's whole life.
        shard: its shard.
        data: a complete file's bytes, in the readers' format, or its path on this host; the file at the path is removed
            once it is written.
        until: see `SideFile`. Later reads find nothing: the window of the element that reads has expired.
        port: the output that was written; elements that wait for it learn that there is more.
    """

    channel: int
    shard: int
    data: bytes | Path = field(repr=False)
    until: Timestamp | None = None
    port: Port | None = None


class Rows(Protocol[R]):
    """The input and output of a task in the exchange. Rows for later levels are opaque.

    The calls have a fixed order, in which a stream sorted by shard can answer: markers; then, for each of the task's
    shards, ascending, the elements of each stage of its level, in the layout's order, and the passing rows.
    """

    def markers(self) -> Sequence[Marker]:
        """Return the markers of the previous level."""

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """Return the input of a stage of this level: user keys and elements."""

    def passing(self, shard: int) -> Iterable[R]:
        """Return the rows that have arrived at a shard for stages of later levels."""

    def pass_on(self, row: R) -> None:
        """Send such a row to the owner of its shard at the next level."""

    def mark(self, marker: Marker) -> None:
        """Send the marker to every task of the next level, after all rows of the task and its user code."""


class UserCode(Protocol):
    """The user code of a task's stages."""

    def runner(self, stage: str, shard: int, view: StateView) -> Runner:
        """Return that of a stage in a shard, with its state. Finish it before requesting the next one."""

    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """Return the initial input of a stage without inputs, in a job's first micro-batch."""

    def scripted(self, stage: str, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, Elements]]:
        """Return a script's elements for a stage's output: encoded values and their times."""

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        """Send dropped data to the destination of late data."""

    def sides(self) -> Iterable[SideData]:
        """Return the output to side inputs; called once, when all stages are finished."""

    def tended(self) -> Mapping[int, bool]:
        """Return the side inputs whose files only this task merges; and for each, whether only the content from the
        newest micro-batch is read in its windows.
        """


# Around the user code of a task: what runs a stage. `harness` implements it with the Python SDK in the task's process;
# what runs a stage in an SDK's own worker plugs in here. Nothing of an SDK is in it: what an SDK has encoded is bytes.


class Counting(Protocol):
    """A way out of a stage that counts.

    Attributes:
        taken: how many elements it has taken; a task looks at how much that grows.
    """

    taken: int


class Finalizations(Protocol):
    """What bundles want to hear when their micro-batch is committed."""

    def run(self) -> None:
        """Tells them. Best effort: never raises."""


class StageRunner(Runner, Protocol):
    """The user code of a stage in a shard, for the length of a micro-batch."""

    def late(self, drop: DropLate | DropHeld | Late) -> None:
        """Something was dropped. It is put out at the latest by `finish`, where the pipeline asks for it."""

    def about(self) -> str:
        """What the last call was about, for people: a key, a restriction; "" if it was about neither."""


class TaskStage(OpenStage, Protocol):
    """A stage of a streaming job that is open in a worker.

    A task is `begin`, any number of runners, one after the other, and `end`; or `abandon`, if anything has failed. All
    calls from `begin` to `end` are on one thread. A worker runs one task at a time.
    """

    @property
    def writers(self) -> Sequence[Counting]:
        """By which the task counts what the stage puts out; the same ones from `begin` to `end`."""

    def spec(self, placed: Placed) -> StageSpec:
        """What the engine must know of the stage, in its place."""

    def begin(
        self,
        outbox: Outbox,
        task: int,
        side_writer: Callable[[int], SideWriter],
        sides: PublishedSides,
        now: Timestamp | None,
    ) -> None:
        """Begins a task.

        Args:
            outbox: takes what the stage writes: rows to its readers, and entries of multimap side inputs.
            task: its number in the level.
            side_writer: makes a writer for an iterable side input, by channel.
            sides: the side inputs that the task reads.
            now: the job's time; None: what user code sees on its clock is the job's.
        """

    def elements(self, rows: Iterable[Row]) -> Iterable[tuple[bytes, Elements]]:
        """What has come to the stage in a shard, of rows in ascending order of bucket; see
        `arcbeam.engine.task.bundles.Exchange`.
        """

    def scripted(self, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, Elements]]:
        """The same of what a script adds to what the stage puts out: encoded values and their times."""

    def runner(self, view: StateView, placed: Placed) -> StageRunner:
        """The stage's user code in a shard, which has that state. It is finished before the next one is asked for."""

    def entries(self, row: Row) -> Iterable[tuple[bytes, bytes, bytes]]:
        """What is in a row that the stage has written to a multimap side input: window, key, values, each encoded."""

    def last_moment(self, channel: int, window: bytes) -> Timestamp:
        """The last moment of an (encoded) window of a channel that the stage writes."""

    def sides_needed(self, window: Window) -> Sequence[tuple[int, bytes]]:
        """What an element of a window reads: channels of side inputs, and the window there, in its ordered form."""

    def side_until(self, channel: int, window: bytes) -> Timestamp:
        """The last moment of a side input's window, which is in its ordered form."""

    def side_exists(self, channel: int, window: bytes) -> bool:
        """Whether a side input's window may be read before its end: its trigger lets it, and something has come."""

    def end(self, report: BundleReport, *, late: int, closed: int) -> None:
        """Ends a task: hands over all that the stage still holds, and says in the report what its bundles came to.

        Args:
            report: of the task; what only the worker knows is added later.
            late: how many elements the engine has dropped because their window had expired.
            closed: how many because the trigger of their window had finished.
        """

    def callbacks(self) -> Finalizations | None:
        """The finalizations of the task that has ended, if there are any; they are the caller's now."""
