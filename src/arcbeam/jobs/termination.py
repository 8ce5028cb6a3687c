"""SIGTERM: the signal that supervisors (Kubernetes, YARN, systemd) send before they kill a process.

Owns the handler in a process that drives jobs itself, and the end of its jobs in time. Must not know how a job ends:
that is the job's own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Protocol

from arcbeam.errors import ArcbeamError, InvalidPipelineError

_LOG = logging.getLogger("arcbeam")

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process whose job ended because of a SIGTERM: the convention of shells, also in Java."""

_LOOK_SECONDS = 0.1

_HEARS_SECONDS = 0.25

_CANCEL_SECONDS = 10.0
"""Seconds to wait for the end of a cancelled job."""

_TEARDOWN_SECONDS = 6.0
"""The part of the time after a SIGTERM that remains when a job is cancelled.

Teardown gets three seconds of it, because its Spark job may wait for an executor forever. Spark's end gets the rest."""


class OnSigterm(StrEnum):
    """What a SIGTERM does to a job; `--on_sigterm`."""

    SUSPEND = "suspend"
    DRAIN = "drain"
    CANCEL = "cancel"

    @classmethod
    def of(cls, given: str | None, *, bounded: bool, kept: bool) -> OnSigterm:
        """Return what a SIGTERM does to a job.

        Args:
            given: the value of the option.
            bounded: whether it is a batch job.
            kept: whether it has a folder from which it can be resumed.

        Raises:
            InvalidPipelineError: it is to be suspended, but has no such folder.
        """
        if bounded:
            return cls.CANCEL
        if given is None:
            return cls.SUSPEND if kept else cls.CANCEL
        if (how := cls(given)) is cls.SUSPEND and not kept:
            raise InvalidPipelineError(
                "--on_sigterm=suspend needs a folder from which to resume the job: without one, its state is lost when "
                "it ends",
                "give it a --checkpoint_dir",
            )
        return how


class Endable(Protocol):
    """A job that a signal can end. Methods may be called from any thread."""

    @property
    def id(self) -> str:
        """Of the job."""
        ...

    @property
    def name(self) -> str:
        """Of the job, for people."""
        ...

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        ...

    @property
    def on_sigterm(self) -> OnSigterm:
        """The way to end it."""
        ...

    @property
    def sigterm_seconds(self) -> float:
        """Seconds until it is cancelled."""
        ...

    def ask_to_end(self) -> None:
        """Suspend or drain it. Return when the job has accepted the request, or later.

        Raises:
            RequestRefusedError: the request cannot succeed.
        """
        ...

    def cancel(self, timeout: float) -> None:
        """Cancel it, and wait some seconds for its end."""
        ...


def bring_to_end(job: Endable, again: threading.Event) -> None:
    """End a job as it requires; cancel it if that takes too long. Return when it has ended, or will not end.

    The job is cancelled early enough for its teardown to end in time. A refusal (it drains already, or has not begun
    to run) is logged; the deadline stays the same.

    Args:
        job: the job.
        again: is set by a second signal: then the job is cancelled at once.
    """
    how, ended = job.on_sigterm, threading.Event()
    seconds = max(job.sigterm_seconds / 2, job.sigterm_seconds - _TEARDOWN_SECONDS)

    def request() -> None:
        try:
            job.ask_to_end()
        except ArcbeamError as e:
            if not ended.is_set():
                _LOG.warning("%s: %s", job.name, e)

    if how is OnSigterm.CANCEL:
        _LOG.warning("%s: SIGTERM: cancelled", job.name)
    else:
        _LOG.warning("%s: SIGTERM: %s; cancelled in %g s, or by a second signal", job.name, how, seconds)
        deadline = time.monotonic() + seconds
        # On a separate thread: the answer may come late, and this thread watches the deadline.
        threading.Thread(target=request, name=f"sigterm-{job.id}", daemon=True).start()
        while not job.ended and not again.wait(_LOOK_SECONDS):
            if time.monotonic() >= deadline:
                _LOG.warning("%s: cancelled, because '%s' did not finish within %g s", job.name, how, seconds)
                break
    ended.set()
    if not job.ended:
        job.cancel(_CANCEL_SECONDS)


def await_event(event: threading.Event, seconds: float | None = None) -> bool:
    """Wait for an event on the main thread, so that signals are handled meanwhile.

    SUBTLE: a signal may arrive after the thread has looked for signals and before it sleeps. It does not wake the
    thread: Python handles it when the thread wakes by itself, which without a timeout is never.

    Args:
        event: to wait for.
        seconds: to wait at most; None: until it is set.

    Returns:
        Whether it is set.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = _HEARS_SECONDS if deadline is None else min(_HEARS_SECONDS, deadline - time.monotonic())
        if event.wait(max(0.0, left)) or (deadline is not None and time.monotonic() >= deadline):
            return event.is_set()


@contextlib.contextmanager
def relayed(act: Callable[[int], None], *numbers: int) -> Iterator[None]:
    """In the body, call `act` for these signals, on a separate thread. Afterwards the earlier handlers are restored.

    On other threads than the main one, which alone may set handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = _relay(act)
    earlier = {number: signal.signal(number, lambda number, _: signals.put(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        signals.put(None)


def _relay(act: Callable[[int], None]) -> queue.SimpleQueue[int | None]:
    """Return a queue of signals that a thread handles; None ends the thread.

    SUBTLE: a handler runs on the main thread between any two instructions. That thread may hold any lock, also the one
    of an event that it waits for. `SimpleQueue.put` is made for this case; hardly anything else is.
    """
    signals: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def relay() -> None:
        while (number := signals.get()) is not None:
            act(number)

    threading.Thread(target=relay, name="signals", daemon=True).start()
    return signals


class SigtermWatch:
    """Ends the jobs that this process drives itself when it gets a SIGTERM; a second one cancels them.

    A program with its own handler keeps it. A program that does not submit from its main thread gets none. While no job
    runs, the signal has its usual effect: it kills the process.
    """

    def __init__(self) -> None:
        # The handler reads this attribute, and must take no lock. Changes are made under the lock.
        self._jobs: tuple[Endable, ...] = ()
        self._changing = threading.Lock()
        self._signals: queue.SimpleQueue[int | None] | None = None
        self._process = 0
        # Attributes of the relay's thread.
        self._again: dict[str, threading.Event] = {}
        self._seen: set[str] = set()

    def add(self, job: Endable) -> None:
        """Watch a job that this process drives. No effect if the job is known or has ended."""
        if threading.current_thread() is not threading.main_thread():
            return
        found = signal.getsignal(signal.SIGTERM)
        if found not in (signal.SIG_DFL, self._handle) or job.ended:
            return
        if self._process != os.getpid():
            # In a forked child: its parent's jobs are none of its own, and its parent's relay has no thread here.
            self._jobs, self._again, self._seen = (), {}, set()
            self._signals, self._process = _relay(self._act), os.getpid()
        # SUBTLE: the job comes first. A signal that finds the handler, but no job, kills.
        with self._changing:
            if job not in self._jobs:
                self._jobs = (*(each for each in self._jobs if not each.ended), job)
        if found is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)

    def ended(self, job: Endable) -> bool:
        """Forget a job that has ended.

        Returns:
            Whether a signal ended it. Each caller gets the same answer.
        """
        with self._changing:
            self._jobs = tuple(each for each in self._jobs if each is not job)
        if threading.current_thread() is threading.main_thread() and not any(not each.ended for each in self._jobs):
            self._give_back()
        return job.id in self._seen

    def await_notice(self) -> None:
        """Wait until all jobs have ended that a signal is ending: an earlier exit would interrupt them.

        The wait is limited by the time that they may take.
        """
        signalled = [job for job in self._jobs if job.id in self._seen]
        longest = max((job.sigterm_seconds for job in signalled), default=0.0)
        deadline = time.monotonic() + longest + _CANCEL_SECONDS
        while any(not job.ended for job in signalled) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _give_back(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, frame: Any) -> None:
        # A forked child has no relay thread, and no job.
        if self._signals is not None and self._process == os.getpid() and any(not job.ended for job in self._jobs):
            self._signals.put(number)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _act(self, number: int) -> None:
        live = [job for job in self._jobs if not job.ended]
        if not live:
            # They have ended meanwhile: the signal is for the process, as usual.
            os.kill(os.getpid(), number)
        # All ids first: `await_notice` for the first job must see the others.
        self._seen.update(job.id for job in live)
        for job in live:
            if (again := self._again.get(job.id)) is not None:
                again.set()
                continue
            self._again[job.id] = threading.Event()
            threading.Thread(
                target=self._bring, args=(job, self._again[job.id]), name=f"ending-{job.id}", daemon=True
            ).start()

    def _bring(self, job: Endable, again: threading.Event) -> None:
        try:
            bring_to_end(job, again)
        finally:
            self._again.pop(job.id, None)


SIGTERMS = SigtermWatch()
"""The watch of this process: a signal has one handler."""
