"""What happens to a job: all that its machine is told.

Owns the shapes of events. Each says when it happened (`at`, processing time); the machine has no other clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.engine.coordinator.scriptplace import AT_BEGINNING, ScriptPlace
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.watermarks.stages import Times
from arcbeam.model.commits import CommitMode
from arcbeam.model.script import ScriptEvent
from arcbeam.model.timestamps import Duration, Timestamp


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A driver has taken the job over; its opening is committed.

    Attributes:
        micro_batch: number of the opening: the head.
        time: its recorded time.
        times: its watermarks.
        unbegun: the sources that have not begun: all of a new job's, `Propose.unbegun` of the head, and those that the
            pipeline of the driver before did not have.
        draining: the job was being drained when the driver before died.
        savepoint: that the drain is to end with: `Propose.drains_to` of the head.
        unpublished: the head has committables; whether they were published is not known.
        ended: the head is the last commit of the job, as a driver made it that died behind it (DONE or DRAINED): all
            that is left is to publish it, and the last calls of user code.
        script: how far the job's script has come: `Propose.script` of the head.
    """

    at: Timestamp
    micro_batch: int
    time: Timestamp
    times: Times
    unbegun: frozenset[str] = frozenset()
    draining: bool = False
    savepoint: str = ""
    unpublished: bool = False
    ended: CommitMode | None = None
    script: ScriptPlace = AT_BEGINNING


@dataclass(frozen=True, slots=True)
class ClockAdvanced:
    """Time has passed: what `WaitUntil` asked for."""

    at: Timestamp


@dataclass(frozen=True, slots=True)
class ScriptRead:
    """What the job's script has next.

    Attributes:
        number: how many events there were before.
        event: what is to happen.
    """

    at: Timestamp
    number: int
    event: ScriptEvent


@dataclass(frozen=True, slots=True)
class MicroBatchReported:
    """All tasks of a micro-batch have ended, and said how.

    Attributes:
        micro-batch, attempt: which run.
        took: how long it was, from its start to its last report.
    """

    at: Timestamp
    micro_batch: int
    attempt: int
    took: Duration
    reports: tuple[TaskReport, ...]


@dataclass(frozen=True, slots=True)
class MicroBatchFailed:
    """A micro-batch has failed.

    Attributes:
        micro-batch, attempt: which run.
        why: for people.
        again: it may be run again: a worker was lost. If not (user code raised), the job fails.
        gone: nothing can run here any more. A job that is to be suspended is: for that, nothing has to.
        died: the process that ran user code died, perhaps because of it. Such a micro-batch is run again less often.
    """

    at: Timestamp
    micro_batch: int
    attempt: int
    why: str
    again: bool
    gone: bool = False
    died: bool = False


@dataclass(frozen=True, slots=True)
class CommitDecided:
    """The micro-batch that was proposed is real."""

    at: Timestamp
    micro_batch: int


@dataclass(frozen=True, slots=True)
class CommitConflicted:
    """Another driver took the micro-batch that was proposed; `who` it is."""

    at: Timestamp
    micro_batch: int
    who: str


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Another driver took the micro-batch after the head, while this one had nothing to propose; `who` it is."""

    at: Timestamp
    who: str


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """The store does not say whether the micro-batch that was proposed is real."""

    at: Timestamp
    micro_batch: int
    why: str


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """The store refused what was proposed: certainly nothing happened."""

    at: Timestamp
    micro_batch: int
    why: str


@dataclass(frozen=True, slots=True)
class DriverFailed:
    """A command cannot be carried out, and trying again would not help: a proposal contradicts the head, say."""

    at: Timestamp
    why: str


@dataclass(frozen=True, slots=True)
class Published:
    """All committables of a micro-batch are published."""

    at: Timestamp
    micro_batch: int


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """Not all committables of a micro-batch are published; trying again is safe.

    Attributes:
        micro_batch: which.
        why: for people.
        gone: nothing can be published here any more; whoever goes on with the job does.
    """

    at: Timestamp
    micro_batch: int
    why: str
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Finalized:
    """The bundles of a micro-batch have been told that it is committed, as far as they still could be."""

    at: Timestamp
    micro_batch: int


@dataclass(frozen=True, slots=True)
class ShutDown:
    """`shutdown` was called; `errors` are those of user code."""

    at: Timestamp
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TornDown:
    """Teardown was called; `errors` are those of user code."""

    at: Timestamp
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The user wants the job to finish what it has, and take in nothing more.

    Attributes:
        savepoint: name of the last micro-batch.
    """

    at: Timestamp
    savepoint: str


@dataclass(frozen=True, slots=True)
class SuspendRequested:
    """The user wants the job to stop so that it can go on later.

    Attributes:
        savepoint: name of the last micro-batch.
    """

    at: Timestamp
    savepoint: str


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """The user wants a micro-batch to have a name; the job goes on."""

    at: Timestamp
    savepoint: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The user wants the job to end at once."""

    at: Timestamp


Event = (
    JobStarted
    | ClockAdvanced
    | ScriptRead
    | MicroBatchReported
    | MicroBatchFailed
    | CommitDecided
    | CommitConflicted
    | Overtaken
    | CommitUnknown
    | CommitRefused
    | DriverFailed
    | Published
    | PublishFailed
    | Finalized
    | ShutDown
    | TornDown
    | DrainRequested
    | SuspendRequested
    | SavepointRequested
    | CancelRequested
)
