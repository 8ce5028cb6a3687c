"""Run a micro-batch: its tasks, level by level, on hosts, with all possible faults.

Owns which attempts are read, reported, or delayed. Must not know how a micro-batch is committed.
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
"""The attempts of a task before the micro-batch fails."""


@dataclass
class Outcome:
    """The outcome of a micro-batch.

    Attributes:
        reports: the reports of its tasks; empty if it failed.
        why: the reason of the failure.
        torn: the next level did not read what is reported: this must never be committed.
        again: whether it may be retried.
    """

    reports: tuple[TaskReport, ...] = ()
    why: str = ""
    torn: bool = False
    again: bool = True


@dataclass
class _Result:
    """The result of a task: the reported attempt, and a second one, if there is one."""

    report: TaskReport
    box: Box
    other: Box | None = None
    fault: FaultKind | None = None

    def read_by(self, reader: int) -> list[Box]:
        """Return the boxes that a task of the next level reads."""
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
    """The micro-batch has failed."""


class _UserError(Exception):
    """User code raised an error."""


@dataclass
class Cluster:
    """Runs tasks.

    Attributes:
        hosts: the hosts to run on.
        chance: the source of randomness.
        fault: returns the fault of the next attempt of a task, if any.
        happened: counts a fault that did happen.
        tell: adds a line to the story.
        delayed: slow attempts. They end when their micro-batch is decided, and outlive their driver.
    """

    hosts: list[Host]
    chance: random.Random
    fault: Callable[[], Fault | None]
    happened: Callable[[FaultKind], None]
    tell: Callable[[str], None]
    delayed: list[Callable[[], object]]
    _attempts: int = 0

    def end_late(self) -> None:
        """End all slow attempts: their micro-batch is decided."""
        while self.delayed:
            self.delayed.pop(0)()

    def run(self, job: Job, order: TaskAssignment) -> Outcome:
        """Run all tasks of a micro-batch."""
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
                    self.tell(f"{where} is slow: another attempt replaces it")
                    self._delay(run, report)
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
        """Run the task a second time. The fault decides which attempt is reported."""
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

    def _delay(self, run: TaskRun, report: TaskReport) -> None:
        def end() -> None:
            try:
                run.write(report)
            except StoreError as e:
                self.tell(f"a late task is refused: {e}")
                run.close()

        self.delayed.append(end)


def _is_torn(result: _Result, readers: int) -> bool:
    """Return whether the next level did not read what is reported, or its tasks did not read the same."""
    if result.other is None:
        return False
    match result.fault:
        case FaultKind.TORN:
            return readers > 1
        case FaultKind.BOTH_READ | FaultKind.OTHER_REPORTED:
            return readers > 0
        case _:
            return False
