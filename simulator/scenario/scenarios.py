"""The scenario of a simulated job: its pipeline, faults and requests, as values.

Owns the shapes. Must not know how they are chosen (`choosing`), nor how they are played (`world`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from arcbeam.testing.faults import Faults
from simulator.scenario.plans import Pipeline


class FaultKind(Enum):
    """A kind of fault. Faults of tasks are counted by attempts of tasks, all others by commands of drivers."""

    TASK_DIES = "a task dies in the middle"
    TASK_TWICE = "a task runs twice, and one attempt counts"
    TORN = "readers read different attempts of a task"
    BOTH_READ = "a reader reads two attempts of a task"
    OTHER_REPORTED = "the reported attempt is not the one that was read"
    LATE_TASK = "a task ends when its micro-batch is decided"
    MICRO_BATCH_LOST = "a micro-batch fails after some of its tasks"
    USER_ERROR = "user code raises, and the job fails"
    DRIVER_DIES = "a driver dies between two commands"
    DRIVER_DIES_INSIDE = "a driver dies while it talks to the store"
    DRIVER_DIES_AT_THE_END = "a driver dies after the last commit of the job"
    SECOND_DRIVER = "a second driver begins while the first continues"
    SECOND_DRIVER_INSIDE = "a second driver begins while the first talks to the store"
    UNCLEAR = "the store answers a commit wrongly"
    STORM = "the store fails in every way, for a while"
    PUBLISHING_FAILS = "publishing fails"
    HOST_LOST = "a host loses its data"
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
    """One fault.

    Attributes:
        at: the number of the attempt of a task or of the command of a driver, counted over the whole simulation.
        number: depends on the kind: the calls until it happens, the attempt that counts, its duration in commands
            (proposals and resolves) or in seconds, or its repetitions.
        blobs: the faults of the store, for the kinds `STORM` and `UNCLEAR`.
    """

    kind: FaultKind
    at: int
    number: int = 0
    blobs: Faults | None = None


class RequestKind(Enum):
    """A kind of request of a user."""

    SAVEPOINT = "savepoint"
    SUSPEND = "suspend, and resume"
    CANCEL = "cancel, and resume"
    DRAIN = "drain"
    REWIND = "resume from an earlier savepoint"
    COPY = "copy a savepoint, and run it elsewhere"
    RELEASE = "release a savepoint"
    RESCALE = "suspend, and resume with another number of shards"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a user.

    Attributes:
        at: the number of the commit before it, counted over the whole simulation.
        number: the number of shards, for the kind `RESCALE`.
    """

    kind: RequestKind
    at: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulation.

    Attributes:
        seed: the seed of the remaining randomness: splits of restrictions, hosts of tasks, durations of micro-batches.
        tasks: the tasks of each level, by driver; drivers use the entries in turn.
        exchanges: the number of additional exchanges after the sources, by driver, as with `tasks`.
        hosts: the number of hosts.
        looks: the budget of a task.
        keep: the number of micro-batches that a sweep keeps.
        real_cache: whether hosts keep their copies in LMDB, as in a real job.
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
