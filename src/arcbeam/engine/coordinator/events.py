"""The events of a job: everything that its machine receives.

Owns the shapes of events. Each has the processing time at which it happened (`at`); the machine has no other clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.engine.coordinator.scriptplace import AT_BEGINNING, ScriptPlace
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.commits import CommitMode
from arcbeam.model.script import ScriptEvent
from arcbeam.model.timestamps import Duration, Timestamp


@dataclass(frozen=True, slots=True)
class JobStarted:
    """This driver has taken over the job and committed its opening.

    Attributes:
        micro_batch: the number of the opening, which is the head.
        time: the head's recorded time.
        times: the head's watermarks.
        unbegun: the sources that have not begun: all sources of a new job, `Propose.unbegun` of the head, and sources
            that the previous driver's pipeline did not have.
        draining: the job was draining when the previous driver died.
        savepoint: the name of the savepoint that ends the drain: `Propose.drains_to` of the head.
        unpublished: the head has committables, and it is unknown whether they were published.
        ended: the head is the job's last commit (DONE or DRAINED), and the driver that made it died afterwards. Only
            publishing and the last calls of user code are left.
        script: the position in the job's script: `Propose.script` of the head.
    """

    at: Timestamp
    micro_batch: int
    time: Timestamp
    times: WatermarkTimes
    unbegun: frozenset[str] = frozenset()
    draining: bool = False
    savepoint: str = ""
    unpublished: bool = False
    ended: CommitMode | None = None
    script: ScriptPlace = AT_BEGINNING


@dataclass(frozen=True, slots=True)
class ClockAdvanced:
    """Time has passed; requested with `WaitUntil`."""

    at: Timestamp


@dataclass(frozen=True, slots=True)
class ScriptRead:
    """The next event of the job's script.

    Attributes:
        number: the number of events before it.
        event: the event.
    """

    at: Timestamp
    number: int
    event: ScriptEvent


@dataclass(frozen=True, slots=True)
class MicroBatchReported:
    """All tasks of a micro-batch have ended and reported.

    Attributes:
        micro-batch, attempt: the run.
        took: the time from the micro-batch's start to its last report.
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
        micro-batch, attempt: the run.
        why: the cause, for people.
        again: the micro-batch may run again, because a worker was lost. Otherwise (user code raised) the job fails.
        session_stopped: this driver can run nothing more. A job that is being suspended still is suspended, because
            that requires no run.
        died: a process that ran user code died, perhaps because of that code. Such runs have fewer retries.
    """

    at: Timestamp
    micro_batch: int
    attempt: int
    why: str
    again: bool
    session_stopped: bool = False
    died: bool = False


@dataclass(frozen=True, slots=True)
class CommitDecided:
    """The proposed micro-batch is committed."""

    at: Timestamp
    micro_batch: int


@dataclass(frozen=True, slots=True)
class CommitConflicted:
    """Another driver committed the micro-batch that was proposed; `other_driver` describes it."""

    at: Timestamp
    micro_batch: int
    other_driver: str


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Another driver committed the micro-batch after the head, and this driver had no proposal; `other_driver`
    describes the other one.
    """

    at: Timestamp
    other_driver: str


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """The store does not report whether the proposed micro-batch is committed."""

    at: Timestamp
    micro_batch: int
    why: str


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """The store refused the proposal, and certainly nothing was committed."""

    at: Timestamp
    micro_batch: int
    why: str


@dataclass(frozen=True, slots=True)
class DriverFailed:
    """A command cannot be carried out, and a retry would not help. Example: a proposal contradicts the head."""

    at: Timestamp
    why: str


@dataclass(frozen=True, slots=True)
class Published:
    """All committables of a micro-batch are published."""

    at: Timestamp
    micro_batch: int


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """Not all committables of a micro-batch are published; a retry is safe.

    Attributes:
        micro_batch: its number.
        why: the cause, for people.
        session_stopped: this driver can publish nothing more; the driver that resumes the job publishes.
    """

    at: Timestamp
    micro_batch: int
    why: str
    session_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Finalized:
    """The bundles of a micro-batch were finalized, except those whose process has ended."""

    at: Timestamp
    micro_batch: int


@dataclass(frozen=True, slots=True)
class ShutDown:
    """`shutdown` was called; `errors` come from user code."""

    at: Timestamp
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TornDown:
    """Teardown was called; `errors` come from user code."""

    at: Timestamp
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The user drains the job: it reads nothing more, finishes its work and ends.

    Attributes:
        savepoint: the name of the last micro-batch.
    """

    at: Timestamp
    savepoint: str


@dataclass(frozen=True, slots=True)
class SuspendRequested:
    """The user suspends the job: it stops and can be resumed.

    Attributes:
        savepoint: the name of the last micro-batch.
    """

    at: Timestamp
    savepoint: str


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """The user requests a savepoint; the job continues."""

    at: Timestamp
    savepoint: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The user cancels the job: it ends at once."""

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
