"""What happens to a simulated job: its pipeline, its faults, its requests; all from a seed, and all as values.

Owns the shapes. Must not know how they are chosen (`choosing`), nor how they are played (`world`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from arcbeam.testing.faults import Faults
from simulator.scenario.plans import Pipeline


class FaultKind(Enum):
    """What goes wrong. Counted by attempts of tasks are those of tasks, by commands of drivers all others."""

    TASK_DIES = "a task dies in the middle"
    TASK_TWICE = "a task runs twice, and one attempt counts"
    TORN = "readers read different attempts of a task"
    BOTH_READ = "a reader reads two attempts of a task"
    OTHER_REPORTED = "the attempt that is reported is not the one that was read"
    LATE_TASK = "a task ends when its micro-batch is decided"
    MICRO_BATCH_LOST = "a micro-batch fails behind some of its tasks"
    USER_ERROR = "user code raises, and the job fails"
    DRIVER_DIES = "a driver dies between two commands"
    DRIVER_DIES_INSIDE = "a driver dies while it talks to the store"
    DRIVER_DIES_AT_THE_END = "a driver dies behind the last commit of the job"
    SECOND_DRIVER = "a second driver begins while the first goes on"
    SECOND_DRIVER_INSIDE = "a second driver begins while the first talks to the store"
    UNCLEAR = "the store answers badly when it is asked for a commit"
    STORM = "the store fails in every way, for a while"
    PUBLISHING_FAILS = "publishing fails"
    HOST_LOST = "a host loses all it has"
    LATE_REPORT = "a micro-batch is reported a second time, when it is decided"
    GIVEN_UP = "a micro-batch that was given up is reported, when it runs again"
    STALLED = "a micro-batch waits for its cluster while a second driver begins"
    WORKERS_DIE = "a worker dies in each try of a micro-batch"


OF_TASKS = frozenset(
    {
        FaultKind.TASK_DIES,
        FaultKind.TASK_TWICE,
        FaultKind.TORN,
        FaultKind.BOTH_READ,
        FaultKind.OTHER_REPORTED,
        FaultKind.LATE_TASK,
        FaultKind.MICRO_BATCH_LOST,
        FaultKind.USER_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something goes wrong.

    Attributes:
        at: at that attempt of a task, or that command of a driver, counted over the whole simulation.
        number: of calls until it happens, or which of the attempts counts, or how many commands (proposals, and asking
            again) it lasts, or how often it happens, or how many seconds it lasts.
        blobs: what the store does, in a storm or when it is unclear.
    """

    kind: FaultKind
    at: int
    number: int = 0
    blobs: Faults | None = None


class RequestKind(Enum):
    """What a user asks for."""

    SAVEPOINT = "savepoint"
    SUSPEND = "suspend, and resume"
    CANCEL = "cancel, and resume"
    DRAIN = "drain"
    REWIND = "resume from an earlier savepoint"
    COPY = "copy a savepoint, and run it elsewhere"
    RELEASE = "give a savepoint up"


@dataclass(frozen=True, slots=True)
class Request:
    """A user asks for something.

    Attributes:
        at: behind that commit, counted over the whole simulation.
    """

    kind: RequestKind
    at: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulation.

    Attributes:
        seed: of the chance that is left: how restrictions are split, on which host a task runs, how long micro-batches
            take.
        tasks: for each driver in turn, again and again: the tasks of each level.
        exchanges: likewise: how many more its pipeline has behind the sources than another one.
        hosts: how many.
        looks: the budget of a task.
        keep: micro-batches that a sweep keeps.
        real_cache: hosts keep their copies as those of a job do, in LMDB.
    """

    seed: int
    pipeline: Pipeline
    tasks: tuple[tuple[int, ...], ...]
    hosts: int = 2
    looks: int = 20
    keep: int = 3
    real_cache: bool = False
    faults: tuple[Fault, ...] = ()
    requests: tuple[Request, ...] = ()
    exchanges: tuple[int, ...] = (0,)
