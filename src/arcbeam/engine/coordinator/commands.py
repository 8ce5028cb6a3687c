"""The commands of a job's machine.

Owns the shapes of commands. An event answers each command, with these exceptions: a later command or event may replace
`WaitUntil`; `Abandon` and `Warn` have no answer; `End` is the last command.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from arcbeam.engine.coordinator.scriptplace import AT_BEGINNING, ScriptPlace
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.timestamps import Timestamp


class EndState(Enum):
    """How a job ended."""

    DONE = "done"
    DRAINED = "drained"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunMicroBatch:
    """Run a micro-batch; answered by `MicroBatchReported` or `MicroBatchFailed`."""

    plan: MicroBatchPlan


@dataclass(frozen=True, slots=True)
class Abandon:
    """Stop the running micro-batch, as far as possible. Its result is ignored. No answer."""

    micro_batch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Send `ClockAdvanced` at that moment, unless a later `WaitUntil` has replaced this one.

    Attributes:
        moment: in processing time. None: only a request or an answer continues the job.
    """

    moment: Timestamp | None


@dataclass(frozen=True, slots=True)
class ReadScript:
    """Read the next event of the job's script; answered by `ScriptRead`, or by `DriverFailed` if it cannot be read.

    Attributes:
        number: the number of events before it.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Commit; answered by `CommitDecided`, `CommitConflicted`, `CommitUnknown` or `CommitRefused`.

    Attributes:
        micro_batch: its number.
        time: its recorded time.
        mode: the mode of the commit.
        times: its watermarks.
        attempts_digest: the digest of all attempts of the micro-batch.
        reports: the reports of its tasks. None: a commit without a micro-batch changes only the mode and savepoints.
        savepoints: the savepoint names that the commit receives.
        drains_to: the name that the last commit will have, if the job drains; the next driver needs it.
        unbegun: the sources that have not begun, because no micro-batch with them is committed; the next driver needs
            them.
        script: the position in the job's script after this commit; the next driver needs it.
        carries_unpublished: the head's committables are not published. This commit contains them, too, for the next
            driver.
    """

    micro_batch: int
    time: Timestamp
    mode: CommitMode
    times: WatermarkTimes
    attempts_digest: bytes
    reports: tuple[TaskReport, ...]
    savepoints: tuple[str, ...] = ()
    drains_to: str = ""
    unbegun: frozenset[str] = frozenset()
    script: ScriptPlace = AT_BEGINNING
    carries_unpublished: bool = False


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask again for the outcome of a proposal; answered like `Propose`."""

    micro_batch: int


@dataclass(frozen=True, slots=True)
class PublishCommittables:
    """Publish the committables of a micro-batch; answered by `Published` or `PublishFailed`.

    Attributes:
        micro_batch: the head.
        committables: of the micro-batch. None: read them from the head's manifest, which another driver may have made.
    """

    micro_batch: int
    committables: tuple[Committable, ...] | None


@dataclass(frozen=True, slots=True)
class Finalize:
    """Finalize the bundles of a committed micro-batch, where their process still runs; answered by `Finalized`."""

    micro_batch: int


@dataclass(frozen=True, slots=True)
class CallShutdown:
    """Call `shutdown` of user code that has it; answered by `ShutDown`.

    Attributes:
        stages: in the order of the calls: producers before consumers.
        deadline: the driver waits no longer.
    """

    stages: tuple[str, ...]
    deadline: Timestamp


@dataclass(frozen=True, slots=True)
class TearDown:
    """Call teardown of all user code that was set up; answered by `TornDown`.

    Attributes:
        stages: in the order of the calls: consumers before producers.
        deadline: the driver waits no longer.
    """

    stages: tuple[str, ...]
    deadline: Timestamp


@dataclass(frozen=True, slots=True)
class Warn:
    """Report a warning to the user. No answer."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The job has ended: the last command.

    Attributes:
        state: how it ended.
        why: the cause, for people; empty if the job ended normally.
    """

    state: EndState
    why: str = ""


Command = (
    RunMicroBatch
    | Abandon
    | WaitUntil
    | ReadScript
    | Propose
    | Resolve
    | PublishCommittables
    | Finalize
    | CallShutdown
    | TearDown
    | Warn
    | End
)
