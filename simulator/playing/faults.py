"""Inject the faults of a scenario, each at its number of attempts or commands.

Owns the counting, and the effect of a fault on drivers and their access to the store. The world starts drivers and
empties hosts. Must not know which behaviour is correct.
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


class FaultInjector:
    """Injects faults.

    Args:
        faults: the faults of the scenario.
        note: counts a fault that did happen.
        tell: adds a line to the story.
        start: starts a driver, whether others live or not.
        lose: deletes the data of a host.
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
        # The store's faults until that command; and its faults at the next commits.
        self._storm, self._storm_until = _FAIR, -1
        self._unclear: list[Faults] = []
        self._publishing_fails = self._deaths_at_the_end = 0
        self._report_again = self._gives_up = False
        self._stalls = 0
        self._worker_deaths = 0

    def of_task(self) -> Fault | None:
        """Return the fault of the next attempt of a task, if any."""
        return self._of_tasks.get(next(self._attempts))

    def before(self, driver: Driver, command: Command) -> None:
        """Inject the faults before a command of a driver.

        Raises:
            Killed: the driver dies before the command.
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
        """Return the current faults of the store."""
        return self._storm

    def is_fair(self) -> bool:
        """Return whether the store is reliable now and at the next commits."""
        return self._storm == _FAIR and not self._unclear

    def clear_up(self) -> None:
        """End the storm."""
        self._storm, self._storm_until = _FAIR, -1

    def publishing_fails(self) -> bool:
        """Return whether this publishing fails half-way."""
        if not self._publishing_fails:
            return False
        self._publishing_fails -= 1
        self._note(FaultKind.PUBLISHING_FAILS)
        return True

    def report_again(self) -> bool:
        """Return whether the report of the running micro-batch comes twice."""
        again, self._report_again = self._report_again, False
        if again:
            self._note(FaultKind.LATE_REPORT)
        return again

    def gives_up(self) -> bool:
        """Return whether the driver gives up the running micro-batch, though its report will come."""
        gives_up, self._gives_up = self._gives_up, False
        if gives_up:
            self._note(FaultKind.GIVEN_UP)
        return gives_up

    def stalls(self) -> int:
        """Return the seconds that the next micro-batch waits while a second driver begins; 0: it does not wait."""
        seconds, self._stalls = self._stalls, 0
        if seconds:
            self._second(FaultKind.STALLED)
        return seconds

    def worker_dies(self) -> bool:
        """Return whether a worker dies in the running micro-batch."""
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
