"""How a micro-batch is run: its tasks, level by level, on hosts; and all that may go wrong with them.

Owns which attempts are read, reported, or left behind. Must not know how a micro-batch becomes real.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.store.blobs.errors import StoreError
from arcbeam.streaming.assignment import TaskAssignment
from simulator.playing.hosts import Host
from simulator.playing.jobs import Box, Died, Job
from simulator.playing.tasks import TaskRun
from simulator.scenario.scenarios import Fault, FaultKind

USER_ERROR = "user code has raised"
_TRIES = 4
"""A task that fails runs again so often, then the micro-batch fails."""


@dataclass
class Outcome:
    """How a micro-batch went.

    Attributes:
        reports: of its tasks; empty if it failed.
        why: it failed.
        torn: what was read is not what is reported: it must never become real.
        again: it may be run again.
    """

    reports: tuple[TaskReport, ...] = ()
    why: str = ""
    torn: bool = False
    again: bool = True


@dataclass
class _Result:
    """What became of a task: the attempt that is reported, and another, if there is one."""

    report: TaskReport
    box: Box
    other: Box | None = None
    fault: FaultKind | None = None

    def read_by(self, reader: int) -> list[Box]:
        """What a task of the next level reads."""
        if self.other is None:
            return [self.box]
        match self.fault:
            case FaultKind.TORN:
                return [self.other if reader % 2 else self.box]
            case FaultKind.BOTH_READ:
                return [self.box, self.other] if not reader else [self.box]
            case FaultKind.OTHER_REPORTED:
                return [self.other]
            case _:
                return [self.box]


class _MicroBatchLost(Exception):
    """The micro-batch is given up."""


class _UserError(Exception):
    """User code has raised."""


@dataclass
class Cluster:
    """What runs tasks.

    Attributes:
        hosts: where.
        chance: what is left of it.
        fault: gives the fault of the next attempt of a task, if any.
        happened: notes a fault that did happen.
        tell: notes what happens, for the story.
        left_behind: attempts that end when their micro-batch is decided; they outlive their driver.
    """

    hosts: list[Host]
    chance: random.Random
    fault: Callable[[], Fault | None]
    happened: Callable[[FaultKind], None]
    tell: Callable[[str], None]
    left_behind: list[Callable[[], object]]
    _attempts: int = 0

    def end_late(self) -> None:
        """A micro-batch is decided: what was slow ends now."""
        while self.left_behind:
            self.left_behind.pop(0)()

    def run(self, job: Job, order: TaskAssignment) -> Outcome:
        """Runs all tasks of a micro-batch."""
        before: list[_Result] = []
        reports: list[TaskReport] = []
        torn = False
        first = order.plan.first
        for level, count in enumerate(job.layout.tasks[first:], first):
            results: list[_Result] = []
            for task in range(count):
                inbox = [box for result in before for box in result.read_by(task)]
                try:
                    result = self._task(job, order, level, task, inbox)
                except (_MicroBatchLost, InconsistentCutError) as e:
                    return Outcome(why=str(e))
                except _UserError as e:
                    return Outcome(why=str(e), again=False)
                results.append(result)
                reports.append(result.report)
            readers = job.layout.tasks[level + 1] if level + 1 < len(job.layout.tasks) else 0
            torn |= any(_is_torn(result, readers) for result in results)
            before = results
        return Outcome(tuple(reports), torn=torn)

    def _task(self, job: Job, order: TaskAssignment, level: int, task: int, inbox: list[Box]) -> _Result:
        where = f"task {task} of level {level}"
        for _ in range(_TRIES):
            fault = self.fault()
            kind = fault.kind if fault else None
            if fault and kind is FaultKind.MICRO_BATCH_LOST:
                self.happened(kind)
                raise _MicroBatchLost(f"{where} was lost, and the micro-batch with it")
            if fault and kind is FaultKind.USER_ERROR:
                self.happened(kind)
                raise _UserError(f"{USER_ERROR} in {where}")
            try:
                run = self._attempt(job, order, level, task, inbox, fault)
                report = run.work()
                if kind is FaultKind.LATE_TASK:
                    self.happened(kind)
                    self.tell(f"{where} is slow: another attempt takes its place")
                    self._leave_behind(run, report)
                    continue
                report = run.write(report)
            except Died as e:
                self.happened(FaultKind.TASK_DIES)
                self.tell(str(e))
                run.close()
                continue
            except StoreError as e:
                self.tell(f"{where} failed: {e}")
                run.close()
                continue
            except InconsistentCutError:
                run.close()
                raise
            result = _Result(report, run.box, None, kind)
            if kind in (FaultKind.TASK_TWICE, FaultKind.TORN, FaultKind.BOTH_READ, FaultKind.OTHER_REPORTED):
                assert fault is not None
                self._again(job, order, level, task, inbox, fault, result)
            return result
        raise _MicroBatchLost(f"{where} failed {_TRIES} times")

    def _attempt(
        self, job: Job, order: TaskAssignment, level: int, task: int, inbox: list[Box], fault: Fault | None
    ) -> TaskRun:
        self._attempts += 1
        name = f"t{job.epoch}.{order.plan.micro_batch}.{order.plan.attempt}.{level}.{task}.{self._attempts}"
        host = self.chance.choice(self.hosts)
        dies = fault.number if fault and fault.kind is FaultKind.TASK_DIES else None
        return TaskRun(job, order, level, task, name, inbox, host, dies)

    def _again(
        self,
        job: Job,
        order: TaskAssignment,
        level: int,
        task: int,
        inbox: list[Box],
        fault: Fault,
        first: _Result,
    ) -> None:
        """The task runs a second time; which of both is reported is in the fault."""
        run = self._attempt(job, order, level, task, inbox, None)
        try:
            report = run.write(run.work())
        except StoreError as e:
            self.tell(f"a second attempt of task {task} of level {level} failed: {e}")
            run.close()
            return
        readers = job.layout.tasks[level + 1] if level + 1 < len(job.layout.tasks) else 0
        first.other = run.box
        if fault.number % 2:
            first.report, first.box, first.other = report, run.box, first.box
        self.happened(fault.kind if _is_torn(first, readers) else FaultKind.TASK_TWICE)
        self.tell(f"task {task} of level {level} ran twice: {fault.kind.value}")

    def _leave_behind(self, run: TaskRun, report: TaskReport) -> None:
        def end() -> None:
            try:
                run.write(report)
            except StoreError as e:
                self.tell(f"a late task is told: {e}")
                run.close()

        self.left_behind.append(end)


def _is_torn(result: _Result, readers: int) -> bool:
    """Whether the next level has read something else than what is reported, or not the same everywhere."""
    if result.other is None:
        return False
    match result.fault:
        case FaultKind.TORN:
            return readers > 1
        case FaultKind.BOTH_READ | FaultKind.OTHER_REPORTED:
            return readers > 0
        case _:
            return False
