"""What the tasks of a micro-batch report to the driver, as values.

Owns their shapes: all that the driver knows of shards. Must not know what is concluded from them (`progress`), nor how
they come about (`shard`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from arcbeam.engine.state.holdreport import Crowded
from arcbeam.engine.state.statemetrics import NO_STATE, StateMetrics
from arcbeam.engine.watermarks.clocks import Local, Port
from arcbeam.model.commits import Committable
from arcbeam.model.files import NO_FILES, TaskFiles
from arcbeam.model.timestamps import Timestamp


@dataclass(frozen=True, slots=True, order=True)
class Awaited:
    """Parked elements wait for a side input.

    Attributes:
        port: what it is made of.
        until: at the latest it is ready when the port's watermark has passed that: nothing more comes to its window.
    """

    port: Port
    until: Timestamp


@dataclass(frozen=True, slots=True)
class Movable:
    """A restriction that waits, and may be given to another shard.

    Attributes:
        id: of it.
        size: of it.
        handed: what the other shard needs.
    """

    id: bytes
    size: float
    handed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Restrictions:
    """The restrictions of a stage in one shard when a micro-batch ends.

    Attributes:
        live: how many are not done.
        size: of all together.
        silent: outputs that some of them report no watermark for.
        crowded: roots of which too many live, of those to which some came in the micro-batch.
        movable: some of them.
        ready: how many of them are due at once; of a thousand, no more are counted.
    """

    live: int = 0
    size: float = 0.0
    silent: tuple[str, ...] = ()
    crowded: tuple[Crowded, ...] = ()
    movable: tuple[Movable, ...] = ()
    ready: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """What a stage did in one shard in a micro-batch.

    Attributes:
        read: elements that came.
        written: elements that were put out, of all outputs.
        fired: timers.
        resumed: restrictions that ran.
        made: elements that they put out, before any transform behind them.
        unparked: elements that had waited, and went on: for a side input, for a commit, or for the end of their window
            where that did not make a pane of them by itself.
        late: elements that were dropped because they were too late.
    """

    read: int = 0
    written: int = 0
    fired: int = 0
    resumed: int = 0
    unparked: int = 0
    late: int = 0
    made: int = 0


@dataclass(frozen=True, slots=True)
class StageReport:
    """How a stage stands in one shard when a micro-batch ends.

    Attributes:
        stage: its name.
        shard: of all shards.
        input: the shard's input watermark.
        local: what keeps its watermarks.
        leftover: whether the micro-batch's budget ended before all that was due was done.
        next_event: when the first event-time timer or waiting element that is left has its turn.
        next_due: processing time at which the first timer or restriction that is left is due.
        awaited: what parked elements wait for.
        restrictions: that are not done.
        counts: of the micro-batch.
        uncommitted: whether elements wait for the commit of the micro-batch: in the next one they go on.
        unprepared: whether its user code is still to be asked to prepare to shut down.
        kept: by how much more it keeps than before the micro-batch.
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
    counts: Counts = Counts()
    uncommitted: bool = False
    unprepared: bool = False
    kept: StateMetrics = NO_STATE

    @property
    def waits(self) -> bool:
        """Whether something waits for time, for the clock, or for a side input."""
        return bool(self.awaited) or self.next_event is not None or self.next_due is not None


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task reports when its part of a micro-batch is done.

    Attributes:
        level, task: which one.
        token: of its attempt, as in its markers.
        input_digest: digest of the attempts that it has read, as in its markers.
        stages: of its level, in each of its shards.
        published: side inputs of which it wrote something.
        committables: for sinks.
        finalizations: how many bundles want to be told that the micro-batch is committed.
        files: that it wrote: what the manifest is made of. The engine does not look at them.
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
