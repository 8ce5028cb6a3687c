"""What a job's driver and its tasks have around them, as protocols: a cluster, sinks, rows, stages, user code, hosts.

Owns no behaviour. Spark implements these for jobs that run, `simulator` for those that must break, and tests in
memory. Must not know any of them.
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
"""What became of a proposal."""

# Around a driver.


class Clock(Protocol):
    """The time."""

    def now(self) -> Timestamp:
        """Processing time."""


class Inbox(Protocol):
    """Where what happens to a job waits for its driver."""

    def put(self, event: Event) -> None:
        """Something has happened. Any thread may say so."""


class WaitingInbox(Inbox, Protocol):
    """An inbox whose driver has nothing else to do."""

    def next(self, until: Timestamp | None) -> Event | None:
        """The event that came first, when there is one; None when the clock has come to that moment before."""


class Cluster(Protocol):
    """What runs the tasks of a job, and has the processes with user code. No call waits for what it begins: the answer
    is an event in the driver's inbox, soon or later.
    """

    def run(self, order: TaskAssignment) -> None:
        """Runs a micro-batch: all tasks of all its levels, each as a `task.TaskAttempt`, or more than one.

        Answered by `MicroBatchReported`, with one report for each task, or by `MicroBatchFailed`.
        """

    def abandon(self, micro_batch: int, attempt: int) -> None:
        """Nobody waits for that run any more. Not answered."""

    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        """The attempts with these tokens are committed: whoever holds finalizations of their bundles calls them when it
        next wakes, and drops those of all other attempts of the micro-batch and of those before. Answered by
        `Finalized`.
        """

    def shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        """Calls `shutdown`, in that order of stages, where it is offered. Answered by `ShutDown`."""

    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        """Tears down what was set up, in that order of stages. Answered by `TornDown`."""


class Sinks(Protocol):
    """Where what is committed comes out."""

    def publish(self, micro_batch: int, committables: Sequence[Committable]) -> None:
        """Publishes them; again changes nothing. Does not wait. Answered by `Published` or `PublishFailed`."""


class Commits(Protocol):
    """What makes micro-batches real. Its calls take as long as the store does."""

    def order(self, plan: MicroBatchPlan) -> TaskAssignment:
        """A micro-batch to be run on the head."""

    def propose(self, command: Propose, now: Timestamp) -> Decision:
        """Tries to make a micro-batch real."""

    def resolve(self, micro_batch: int, now: Timestamp) -> Decision:
        """Asks again what became of a proposal."""

    def overtaken(self) -> str:
        """Who has taken the job over, as far as can be told without a proposal; "": nobody."""

    def unpublished(self) -> Sequence[Committable]:
        """The head's committables, which another driver may have made."""

    def sweep(self) -> Swept:
        """Removes what nobody needs any more.

        Raises:
            StoreError: not all of it could be removed; the next sweep makes it good.
        """


class Scripted(Protocol):
    """Who has the job's script."""

    def read(self, number: int) -> None:
        """Reads the event that comes behind so many others. Does not wait. Answered by `ScriptRead`, or by
        `DriverFailed`: the script cannot be read, or makes no sense.
        """


class Watch(Protocol):
    """Who wants to know what a driver does: people, a page, a simulation. What it raises ends the driver."""

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        """The machine has taken in an event; the commands are still to be carried out."""

    def begins(self, command: Command) -> None:
        """A command is carried out next."""

    def warn(self, text: str) -> None:
        """Something that people should know."""

    def swept(self, swept: Swept | StoreError) -> None:
        """Files were removed, or could not be."""


# Around a task.


class Host(Protocol):
    """The copies of shards on a host: `store.shards.cache.HostCache`."""

    def view(self, blobs: DurableBlobs, version: ShardVersion) -> Overlay:
        """A shard's state at a version, for one micro-batch; to be closed."""

    def publish(
        self, blobs: DurableBlobs, version: ShardVersion, written: Written, view: Overlay, micro_batch: int
    ) -> ShardFile | None:
        """Writes a micro-batch's changes; None if there are none."""


class Files(Protocol):
    """Where a task has its state from, and what it writes: `written.TaskStore`."""

    def view(self, version: ShardVersion) -> Overlay:
        """A shard's state at a version, for one micro-batch; to be closed."""

    def delta(self, version: ShardVersion, written: Written, view: Overlay, micro_batch: int) -> ShardFile | None:
        """Writes what the micro-batch has changed; None if that is nothing."""

    def merged(self, files: Sequence[ShardFile], first: int, written: Written) -> tuple[ShardFile, ...]:
        """A shard's files, those from `first` on merged into one."""

    def side(self, written: Written, data: SideData) -> SideFile:
        """Writes a file of a side input."""

    def joined(self, written: Written, files: Sequence[SideFile], newest: bool) -> SideFile:
        """Writes a file that has what is in several of a side input, whose micro-batches follow one another.

        Args:
            written: for its name.
            files: of the head.
            newest: of each window, only what its newest micro-batch has put in is read.
        """


@dataclass(frozen=True, slots=True)
class SideData:
    """What an attempt has put into a side input, in one shard.

    Attributes:
        channel: of the side input, unique in the job as long as it lives.
        shard: that it is of.
        data: a complete file's bytes, in the form that the readers know, or where it is on this host; it is gone when
            it is written.
        until: see `SideFile`. Who comes later than that finds nothing: an element whose own window has expired.
        port: by which it was put there; whoever waits for that port is told that there is more.
    """

    channel: int
    shard: int
    data: bytes | Path = field(repr=False)
    until: Timestamp | None = None
    port: Port | None = None


class Rows(Protocol[R]):
    """What the exchange brings to a task, and takes on. Rows for later levels are opaque.

    It is asked in one order, in which a stream that is sorted by shard can answer: markers; then for each of the task's
    shards, ascending, the elements of each stage of its level, in the layout's order, and what passes.
    """

    def markers(self) -> Sequence[Marker]:
        """The markers of the level before."""

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """What has come to a stage of this level: user keys and elements."""

    def passing(self, shard: int) -> Iterable[R]:
        """What has come to a shard for stages of later levels."""

    def pass_on(self, row: R) -> None:
        """Sends such a row to the owner of its shard at the next level."""

    def mark(self, marker: Marker) -> None:
        """Sends the marker to every task of the next level, behind all that the task and its user code have sent."""


class UserCode(Protocol):
    """The user code of a task's stages."""

    def runner(self, stage: str, shard: int, view: StateView) -> Runner:
        """Of a stage in a shard, with its state. It is finished before the next one is asked for."""

    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """That from which a stage that reads nothing begins, in a job's first micro-batch."""

    def scripted(self, stage: str, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, Elements]]:
        """What a script adds to what a stage puts out: encoded values and their times."""

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        """Something was dropped: it goes where late data goes."""

    def sides(self) -> Iterable[SideData]:
        """What was put into side inputs; asked for once, when all stages are finished."""

    def tended(self) -> Mapping[int, bool]:
        """The side inputs whose files this task, and no other, makes fewer; and whether of each of their windows only
        what the newest micro-batch has put in is read.
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
