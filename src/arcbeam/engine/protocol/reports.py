"""The reports of a micro-batch's tasks to the driver, as values.

Owns their shapes: all that the driver knows about shards. Must not know how the driver uses them (`coordinator`), nor
how tasks make them (`task`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Final

from arcbeam.engine.state.restrictiontotals import TooManyRestrictions
from arcbeam.engine.state.statemetrics import NO_STATE, StateMetrics
from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.model.commits import Committable
from arcbeam.model.files import NO_FILES, TaskFiles
from arcbeam.model.timestamps import Timestamp
from arcbeam.pickling import QuickPickle


@dataclass(frozen=True, slots=True, order=True)
class Awaited(QuickPickle):
    """Blocked elements wait for a side input.

    Attributes:
        port: the output that it is made from.
        until: it is ready at the latest when the port's watermark has passed this: its window is complete then.
    """

    port: Port
    until: Timestamp


@dataclass(frozen=True, slots=True)
class Movable(QuickPickle):
    """A waiting restriction that may move to another shard.

    Attributes:
        id: its id.
        size: its size.
        handed: what the other shard needs.
    """

    id: bytes
    size: float
    handed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Restrictions(QuickPickle):
    """The restrictions of a stage in one shard at the end of a micro-batch.

    Attributes:
        live: the number of restrictions that are not done.
        size: their total size.
        silent: outputs for which some of them report no watermark.
        crowded: roots with too many live restrictions, among those that gained some in the micro-batch.
        movable: some restrictions that may move.
        ready: the number of restrictions that are due at once; the count ends at 1,000.
    """

    live: int = 0
    size: float = 0.0
    silent: tuple[str, ...] = ()
    crowded: tuple[TooManyRestrictions, ...] = ()
    movable: tuple[Movable, ...] = ()
    ready: int = 0


@dataclass(frozen=True, slots=True)
class Counts(QuickPickle):
    """The counters of a stage in one shard in a micro-batch.

    Attributes:
        read: elements received.
        written: elements output, over all outputs.
        fired: timers fired.
        resumed: restrictions that ran.
        made: elements that these restrictions output, before any downstream transform.
        unblocked: elements that were blocked and then processed. They waited for a side input, for a commit, or for the
            end of their window where that alone does not make a pane.
        late: elements dropped because they were too late.
    """

    read: int = 0
    written: int = 0
    fired: int = 0
    resumed: int = 0
    unblocked: int = 0
    late: int = 0
    made: int = 0


NO_COUNTS: Final = Counts()
COUNTED: Final = attrgetter(*(of.name for of in fields(Counts)))
"""Returns the values of all counters, in their order."""


@dataclass(slots=True)
class RunningCounts:
    """The counters of a stage so far; see `Counts`."""

    read: int = 0
    written: int = 0
    fired: int = 0
    resumed: int = 0
    unblocked: int = 0
    late: int = 0
    made: int = 0

    def counts(self) -> Counts:
        """Return the counters now."""
        return Counts(*COUNTED(self))


@dataclass(frozen=True, slots=True)
class StageReport(QuickPickle):
    """The state of a stage in one shard at the end of a micro-batch.

    Attributes:
        stage: its name.
        shard: the number of the shard.
        input: the shard's input watermark.
        local: what holds its watermarks.
        leftover: whether the micro-batch's budget ended before all due work was done.
        next_event: the time of the first event-time timer or waiting element that is left.
        next_due: the processing time at which the first timer or restriction that is left is due.
        awaited: what blocked elements wait for.
        restrictions: the restrictions that are not done.
        counts: the counters of the micro-batch.
        uncommitted: whether elements wait for the commit of the micro-batch; the next one processes them.
        unprepared: whether its user code still has to prepare to shut down.
        kept: the change of its state's size in the micro-batch.
    """

    stage: str
    shard: int
    input: Timestamp
    local: Local
    leftover: bool = False
    next_event: Timestamp | None = None
    next_due: Timestamp | None = None
    awaited: tuple[Awaited, ...] = ()
    restrictions: Restrictions = Restrictions()
    counts: Counts = NO_COUNTS
    uncommitted: bool = False
    unprepared: bool = False
    kept: StateMetrics = NO_STATE

    @property
    def idle(self) -> bool:
        """Whether the shard has neither work nor holds, and nothing happened in it."""
        local = Local(None, {output: OutputTime() for output in self.local.outputs})
        return self == StageReport(self.stage, self.shard, self.input, local)

    def at(self, input: Timestamp) -> StageReport:
        """Return the same report with another input watermark."""
        if input == self.input:
            return self
        # Not `replace`, which takes three times as long: a driver does this for each shard in each micro-batch.
        return StageReport(
            self.stage,
            self.shard,
            input,
            self.local,
            self.leftover,
            self.next_event,
            self.next_due,
            self.awaited,
            self.restrictions,
            self.counts,
            self.uncommitted,
            self.unprepared,
            self.kept,
        )

    @property
    def waits(self) -> bool:
        """Whether something waits for time, for the clock, or for a side input."""
        return bool(self.awaited) or self.next_event is not None or self.next_due is not None


@dataclass(frozen=True, slots=True)
class TaskReport(QuickPickle):
    """The report of a task when its part of a micro-batch is done.

    Attributes:
        level, task: the task.
        token: the token of its attempt, as in its markers.
        input_digest: the digest of the attempts that it has read, as in its markers.
        stages: the reports of its level's stages, in each of its shards.
        published: the side inputs that it has written to.
        committables: its output for sinks.
        finalizations: the number of bundles to finalize after the commit.
        files: the files that it wrote, for the manifest. The engine does not interpret them.
    """

    level: int
    task: int
    token: bytes
    input_digest: bytes
    stages: tuple[StageReport, ...]
    published: tuple[Port, ...] = ()
    committables: tuple[Committable, ...] = ()
    finalizations: int = 0
    files: TaskFiles = NO_FILES
