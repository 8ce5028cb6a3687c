"""The faults of a scenario, each when its turn has come.

Owns the counting, and what a fault does to drivers and their ways to the store. What it cannot do itself (starting a
driver, emptying a host) the world does. Must not know what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from arcbeam.engine.coordinator import Command, End, Propose, Resolve
from arcbeam.store.manifest.values import ENDED
from arcbeam.testing.faults import Faults
from simulator.playing.driver import Driver, Killed
from simulator.scenario.scenarios import OF_TASKS, Fault, FaultKind

_FAIR = Faults()


class Mischief:
    """Plays faults.

    Args:
        faults: of the scenario.
        note: takes note of a fault that did happen.
        tell: for the story.
        start: starts a driver, whoever lives.
        lose: makes a host lose all it has.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        note: Callable[[FaultKind], None],
        tell: Callable[[str], None],
        start: Callable[[], None],
        lose: Callable[[int], None],
    ) -> None:
        self._note, self._tell, self._start, self._lose = note, tell, start, lose
        self._of_tasks = {fault.at: fault for fault in faults if fault.kind in OF_TASKS}
        self._of_commands: dict[int, list[Fault]] = {}
        for fault in faults:
            if fault.kind not in OF_TASKS:
                self._of_commands.setdefault(fault.at, []).append(fault)
        self._attempts, self._commands = count(), count()
        # What the store does until that command; and at the next commits that are asked for.
        self._storm, self._storm_until = _FAIR, -1
        self._unclear: list[Faults] = []
        self._publishing_fails = self._deaths_at_the_end = 0
        self._report_again = self._gives_up = False
        self._stalls = 0
        self._worker_deaths = 0

    def of_task(self) -> Fault | None:
        """The fault of the next attempt of a task, if any."""
        return self._of_tasks.get(next(self._attempts))

    def before(self, driver: Driver, command: Command) -> None:
        """A driver is about to carry out a command.

        Raises:
            Killed: it does not come to it.
        """
        number = next(self._commands)
        if number > self._storm_until:
            self.clear_up()
        for fault in self._of_commands.get(number, ()):
            self._strike(fault, driver, number)
        if self._deaths_at_the_end and driver.log.head.mode in ENDED and not isinstance(command, End):
            self._deaths_at_the_end -= 1
            self._note(FaultKind.DRIVER_DIES_AT_THE_END)
            raise Killed
        driver.blobs.faults = self._storm
        if self._unclear and isinstance(command, (Propose, Resolve)):
            self._note(FaultKind.UNCLEAR)
            driver.blobs.faults = self._unclear.pop()

    def weather(self) -> Faults:
        """What the store does at the moment."""
        return self._storm

    def is_fair(self) -> bool:
        """Whether the store keeps its word, and is going to at the next commits."""
        return self._storm == _FAIR and not self._unclear

    def clear_up(self) -> None:
        """The storm is over."""
        self._storm, self._storm_until = _FAIR, -1

    def publishing_fails(self) -> bool:
        """Whether what is published now fails half-way."""
        if not self._publishing_fails:
            return False
        self._publishing_fails -= 1
        self._note(FaultKind.PUBLISHING_FAILS)
        return True

    def report_again(self) -> bool:
        """Whether the report of the micro-batch that runs comes twice."""
        again, self._report_again = self._report_again, False
        if again:
            self._note(FaultKind.LATE_REPORT)
        return again

    def gives_up(self) -> bool:
        """Whether nobody waits for the micro-batch that runs, though it will report."""
        gives_up, self._gives_up = self._gives_up, False
        if gives_up:
            self._note(FaultKind.GIVEN_UP)
        return gives_up

    def stalls(self) -> int:
        """Seconds for which the next micro-batch waits, while a second driver has begun; 0: it does not."""
        seconds, self._stalls = self._stalls, 0
        if seconds:
            self._second(FaultKind.STALLED)
        return seconds

    def worker_dies(self) -> bool:
        """Whether a worker dies in the micro-batch that runs."""
        if not self._worker_deaths:
            return False
        self._worker_deaths -= 1
        self._note(FaultKind.WORKERS_DIE)
        return True

    def _strike(self, fault: Fault, driver: Driver, number: int) -> None:
        self._tell(f"FAULT: {fault.kind.value}")
        match fault.kind:
            case FaultKind.DRIVER_DIES:
                self._note(fault.kind)
                raise Killed
            case FaultKind.DRIVER_DIES_INSIDE:
                driver.blobs.interrupt(fault.number, lambda: self._kill(driver))
            case FaultKind.SECOND_DRIVER:
                self._second(fault.kind)
            case FaultKind.SECOND_DRIVER_INSIDE:
                driver.blobs.interrupt(fault.number, lambda: self._second(fault.kind))
            case FaultKind.STORM:
                self._note(fault.kind)
                assert fault.blobs is not None
                self._storm, self._storm_until = fault.blobs, number + fault.number
            case FaultKind.UNCLEAR:
                assert fault.blobs is not None
                self._unclear += [fault.blobs] * fault.number
            case FaultKind.PUBLISHING_FAILS:
                self._publishing_fails = 1 + fault.number
            case FaultKind.DRIVER_DIES_AT_THE_END:
                self._deaths_at_the_end = fault.number
            case FaultKind.LATE_REPORT:
                self._report_again = True
            case FaultKind.GIVEN_UP:
                self._gives_up = True
            case FaultKind.STALLED:
                self._stalls = fault.number
            case FaultKind.WORKERS_DIE:
                self._worker_deaths = fault.number
            case FaultKind.HOST_LOST:
                self._note(fault.kind)
                self._lose(fault.number)
            case _:
                raise AssertionError(fault)

    def _kill(self, driver: Driver) -> None:
        if not driver.over:
            self._note(FaultKind.DRIVER_DIES_INSIDE)
            raise Killed

    def _second(self, kind: FaultKind) -> None:
        self._note(kind)
        self._start()
