"""The environment of a job's driver and tasks, as protocols: a cluster, sinks, rows, user code, hosts.

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
from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Combined, KeyElements
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.task.bundles import Runner
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.commits import Committable
from arcbeam.model.files import ShardFile, SideFile
from arcbeam.model.interfaces import StateView
from arcbeam.model.rows import BundleReport, LogLine
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log.sweep import Swept
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import ShardVersion
from arcbeam.store.shards.overlay import Overlay
from arcbeam.streaming.assignment import TaskAssignment

F = TypeVar("F")
R = TypeVar("R")
T = TypeVar("T")

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
        """Read the event after this number of events, without waiting. Answered by `ScriptRead`, or by `DriverFailed`
        if the script cannot be read or is invalid.
        """


class DriverObserver(Protocol):
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

    def each(self, write: Callable[[F], T], things: Sequence[F]) -> list[T]:
        """Call a function that writes files for each of some things, perhaps concurrently; return its results."""

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


class TaskExchange(Protocol[R]):
    """The input and output of a task in the exchange. Rows for later levels are opaque.

    The calls have a fixed order, in which a stream sorted by shard can answer: markers; then, for each of the task's
    shards, ascending, the elements of each stage of its level, in the layout's order, and the passing rows.
    """

    def markers(self) -> Sequence[Marker]:
        """Return the markers of the previous level."""

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        """Return the input of a stage of this level: user keys and elements."""

    def any(self, stage: str, shard: int) -> bool:
        """Return whether there is such input. If not, `elements` need not be called."""

    def passing(self, shard: int) -> Iterable[R]:
        """Return the rows that have arrived at a shard for stages of later levels."""

    def pass_on(self, row: R) -> None:
        """Send such a row to the owner of its shard at the next level."""

    def mark(self, marker: Marker) -> None:
        """Send the marker to every task of the next level, after all rows of the task and its user code."""


class UserCode(Protocol):
    """The user code of a task's stages."""

    def runner(self, stage: str, shard: int, view: StateView) -> Runner:
        """Return the user code of a stage in a shard, with its state. Finish it before requesting the next one."""

    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements]]:
        """Return the initial input of a stage without inputs, in a job's first micro-batch."""

    def scripted(self, stage: str, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, KeyElements]]:
        """Return a script's elements for a stage's output: encoded values and their times."""

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        """Send dropped data to the destination of late data."""

    def sides(self) -> Iterable[SideData]:
        """Return the output to side inputs; called once, when all stages are finished."""

    def sides_to_compact(self) -> Mapping[int, bool]:
        """Return the side inputs whose files only this task merges; and for each, whether only the content from the
        newest micro-batch is read in its windows.
        """


class JobListener:
    """Is notified of what a job does, on its driver's thread. These methods do nothing: subclasses override some."""

    def opened(self) -> None:
        """The driver has taken the job over. If it ends, any driver can resume the job from its folder."""

    def reported(self, report: BundleReport) -> None:
        """A stage's bundles in a task have reported, and their micro-batch is committed."""

    def logged(self, stage: str, worker: str, lines: Sequence[LogLine]) -> None:
        """Attempts of a stage's tasks that failed have logged these lines. Reports have those of all others."""

    def streaming(self, line: str) -> None:
        """A micro-batch is committed."""

    def warned(self, text: str) -> None:
        """There is a warning for the user."""

    def turned(self, state: str) -> None:
        """The job is now DRAINING or CANCELLING."""
