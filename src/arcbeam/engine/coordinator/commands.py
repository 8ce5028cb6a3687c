"""What a job's machine wants done: all that it can ask for.

Owns the shapes of commands. Each is answered by an event, but for `WaitUntil` that is overtaken by another command or
event, `Abandon` and `Warn`, which are not answered, and `End`, which is the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from arcbeam.engine.coordinator.scriptplace import AT_BEGINNING, ScriptPlace
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.watermarks.stages import Times
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
    """Stop a micro-batch that runs, as far as that is possible: nobody waits for it. Not answered."""

    micro_batch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Send `ClockAdvanced` when the clock has come to that moment, if this is then the last `WaitUntil`.

    Attributes:
        moment: of processing time; None: only a request or an answer goes on.
    """

    moment: Timestamp | None


@dataclass(frozen=True, slots=True)
class ReadScript:
    """Say what the job's script has next; answered by `ScriptRead`, or `DriverFailed` if it cannot be read.

    Attributes:
        number: how many events there were before.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Commit; answered by `CommitDecided`, `CommitConflicted`, `CommitUnknown` or `CommitRefused`.

    Attributes:
        micro_batch: its number.
        time: its recorded time.
        mode: how the job stands with it.
        times: its watermarks.
        cut: digest of all attempts that make the micro-batch.
        reports: of its tasks; none: a commit without a micro-batch, that changes nothing but the mode and savepoints.
        savepoints: names that it gets.
        drains_to: the name that the last commit will get, if the job is being drained; the next driver must know it.
        unbegun: the sources that have not begun: no micro-batch is real with them; the next driver must know it.
        script: how far the job's script has come with it; the next driver must know it.
        owes: what the head has for sinks is not published: this commit has it, too, for the next driver.
    """

    micro_batch: int
    time: Timestamp
    mode: CommitMode
    times: Times
    cut: bytes
    reports: tuple[TaskReport, ...]
    savepoints: tuple[str, ...] = ()
    drains_to: str = ""
    unbegun: frozenset[str] = frozenset()
    script: ScriptPlace = AT_BEGINNING
    owes: bool = False


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask again for the outcome of a proposal; answered as `Propose` is."""

    micro_batch: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish what the micro-batch has for sinks; answered by `Published` or `PublishFailed`.

    Attributes:
        micro_batch: which is the head.
        committables: of the micro-batch; None: those of the head's manifest, which another driver may have made.
    """

    micro_batch: int
    committables: tuple[Committable, ...] | None


@dataclass(frozen=True, slots=True)
class Finalize:
    """Tell the bundles of a micro-batch that it is committed, where they still can be told; answered by `Finalized`."""

    micro_batch: int


@dataclass(frozen=True, slots=True)
class CallShutdown:
    """Call `shutdown` where it is offered; answered by `ShutDown`.

    Attributes:
        stages: in the order of the calls: producers before consumers.
        deadline: nobody waits longer.
    """

    stages: tuple[str, ...]
    deadline: Timestamp


@dataclass(frozen=True, slots=True)
class TearDown:
    """Tear down all that was set up; answered by `TornDown`.

    Attributes:
        stages: in the order of the calls: consumers before producers.
        deadline: nobody waits longer.
    """

    stages: tuple[str, ...]
    deadline: Timestamp


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell people. Not answered."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The job has ended: the last command.

    Attributes:
        state: how.
        why: for people; empty if it ended as it should.
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
    | Publish
    | Finalize
    | CallShutdown
    | TearDown
    | Warn
    | End
)
