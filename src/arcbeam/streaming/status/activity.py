"""A driver's current activity as text, from its machine's events and commands.

Owns the text. Must not know where it is shown, nor decide anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcbeam.engine.coordinator import (
    Abandon,
    CallShutdown,
    Command,
    CommitConflicted,
    CommitDecided,
    CommitRefused,
    CommitUnknown,
    Event,
    MicroBatchFailed,
    MicroBatchReported,
    Propose,
    PublishCommittables,
    Published,
    PublishFailed,
    RunMicroBatch,
    TearDown,
    WaitUntil,
)
from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.model.timestamps import Timestamp

_TEXT_CHARACTERS_MAX = 200
"""The maximum length of a failure's text."""


class Activity:
    """Follows a driver.

    Args:
        tries: the number of tries of a micro-batch before its job fails.
        deaths: the number of tries in which workers die before its job fails.

    Attributes:
        running: the micro-batch that Spark runs now: its number, run, and start; None if there is none.
        failures: how many tries of any kind have failed so far.
    """

    def __init__(self, tries: int, deaths: int) -> None:
        self._most = {False: tries, True: deaths}
        self.failures = 0
        # The next try of the micro-batch, and whether a worker died in the last one.
        self._try, self._died = 1, False
        self.running: tuple[int, int, Timestamp] | None = None
        self._committing: tuple[int, Timestamp] | None = None
        self._publishing: tuple[int, Timestamp] | None = None
        self._ending = ""
        self._wait: Timestamp | None = None
        # The last failed try of the micro-batch, its commit, and publishing.
        self._failures: dict[str, str] = {}

    @property
    def is_idle(self) -> bool:
        """Whether it only waits."""
        return not (self.running or self._committing or self._publishing or self._ending)

    def handled(self, event: Event, commands: Sequence[Command], now: Timestamp) -> None:
        """The machine has handled an event, and returned these commands."""
        match event:
            case MicroBatchReported():
                self.running = None
                self._failures.pop("micro_batch", None)
                self._try = 1
            case MicroBatchFailed(_, _, _, why):
                self.running = None
                self._fails("micro_batch", why)
                # The machine counts deaths separately.
                self._try = self._try + 1 if event.died == self._died else 2
                self._died = event.died
            case CommitDecided():
                self._committing = None
                self._failures.pop("commit", None)
            case CommitRefused(_, _, why) | CommitUnknown(_, _, why):
                self._fails("commit", why)
            case CommitConflicted():
                self._committing = None
            case Published():
                self._publishing = None
                self._failures.pop("publishing", None)
            case PublishFailed(_, _, why):
                self._fails("publishing", why)
        for command in commands:
            self._commanded(command, now)

    def _commanded(self, command: Command, now: Timestamp) -> None:
        match command:
            case RunMicroBatch(plan):
                self.running = plan.micro_batch, plan.attempt, now
            case Abandon():
                self.running = None
            case Propose(micro_batch) if self._committing is None:
                self._committing = micro_batch, now
            case PublishCommittables(micro_batch) if self._publishing is None:
                self._publishing = micro_batch, now
            case CallShutdown():
                self._ending = "shutting down"
            case TearDown():
                self._ending = "tearing down"
            case WaitUntil(moment):
                self._wait = moment

    def text(self, now: Timestamp) -> str:
        """Return what the driver is doing."""
        doing: list[str] = []
        if self.running:
            micro_batch, attempt, since = self.running
            run = f", {self._next_try()}" if attempt else ""
            doing.append(
                f"running micro-batch {micro_batch} for {_seconds(since, now)}{run}{self._after('micro_batch')}"
            )
        if self._committing:
            micro_batch, since = self._committing
            doing.append(f"committing micro-batch {micro_batch} for {_seconds(since, now)}{self._after('commit')}")
        if self._publishing:
            micro_batch, since = self._publishing
            doing.append(f"publishing micro-batch {micro_batch} for {_seconds(since, now)}{self._after('publishing')}")
        if self._ending:
            doing.append(self._ending)
        if doing:
            return "; ".join(doing)
        until = f" until {shown_time(self._wait)}" if self._wait is not None and self._wait > now else ""
        if "micro_batch" in self._failures:
            return f"waiting{until} for {self._next_try()} of a micro-batch{self._after('micro_batch')}"
        return f"waiting{until}"

    def _fails(self, what: str, why: str) -> None:
        self.failures += 1
        self._failures[what] = why

    def _next_try(self) -> str:
        most = self._most[self._died]
        return f"try {min(self._try, most)} of {most}"

    def _after(self, what: str) -> str:
        """Return why the last try failed."""
        why = self._failures.get(what, "").partition("\n")[0]
        return f" (the last try failed: {why[:_TEXT_CHARACTERS_MAX]})" if why else ""


def _seconds(since: Timestamp, now: Timestamp) -> str:
    return f"{max(0, now - since) / 1e6:.0f} s"
