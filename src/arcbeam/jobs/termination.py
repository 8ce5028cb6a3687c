"""SIGTERM: what a supervisor sends some time before it kills (Kubernetes, YARN, systemd), and how jobs end by then.

Owns the handler of a process that drives jobs itself, and how a job that was asked to end is brought to it in time.
Must not know what ending a job takes: that is the job's.
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

from arcbeam.errors import ArcbeamError

_LOG = logging.getLogger("arcbeam")

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process whose job a SIGTERM kept from its own end: by custom of shells, as Java has it."""

_LOOK_SECONDS = 0.1

_HEARS_SECONDS = 0.25

_CANCEL_SECONDS = 10.0
"""Nobody waits longer for what was cancelled."""

_TEARDOWN_SECONDS = 6.0
"""What is left of the time that a job has after a SIGTERM when it is cancelled.

Teardown gets three seconds of it, since its Spark job may wait for an executor for ever; the end of Spark the rest."""


class OnSigterm(StrEnum):
    """What a SIGTERM does to a job; `--on_sigterm`."""

    SUSPEND = "suspend"
    DRAIN = "drain"
    CANCEL = "cancel"


class Endable(Protocol):
    """A job that may be told to end. From any thread."""

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
        """Whether it has."""
        ...

    @property
    def on_sigterm(self) -> OnSigterm:
        """How it is to end."""
        ...

    @property
    def sigterm_seconds(self) -> float:
        """How long that may take, before it is cancelled."""
        ...

    def ask_to_end(self) -> None:
        """Suspends or drains it. Returns when that is taken in, or later.

        Raises:
            RequestRefusedError: nothing comes of it.
        """
        ...

    def cancel(self, timeout: float) -> None:
        """Cancels it, and waits so many seconds for its end."""
        ...


def bring_to_end(job: Endable, again: threading.Event) -> None:
    """Ends a job as it says, cancels it if that takes too long; returns when it has ended, or will not.

    It is cancelled early enough for its teardown to be over within its time.

    A refusal (it drains already, or has not begun to run) is told, and the job has until its deadline all the same.

    Args:
        job: to be ended.
        again: is set when nobody waits any longer: it is cancelled then.
    """
    how, over = job.on_sigterm, threading.Event()
    seconds = max(job.sigterm_seconds / 2, job.sigterm_seconds - _TEARDOWN_SECONDS)

    def ask() -> None:
        try:
            job.ask_to_end()
        except ArcbeamError as e:
            if not over.is_set():
                _LOG.warning("%s: %s", job.name, e)

    if how is OnSigterm.CANCEL:
        _LOG.warning("%s: cancelled, as it was told to end", job.name)
    else:
        _LOG.warning("%s: %s, as it was told to end; cancelled in %g s, or when told again", job.name, how, seconds)
        deadline = time.monotonic() + seconds
        # It answers when it has the time, and would keep us from looking at ours.
        threading.Thread(target=ask, name=f"sigterm-{job.id}", daemon=True).start()
        while not job.ended and not again.wait(_LOOK_SECONDS):
            if time.monotonic() >= deadline:
                _LOG.warning("%s: cancelled, because '%s' was not done within %g s", job.name, how, seconds)
                break
    over.set()
    if not job.ended:
        job.cancel(_CANCEL_SECONDS)


def await_event(event: threading.Event, seconds: float | None = None) -> bool:
    """Waits for an event as the main thread has to: so that a signal is acted upon meanwhile.

    SUBTLE: a signal that comes when the thread has looked for signals, and does not sleep yet, does not wake it: Python
    acts on it when the thread wakes by itself, which without a timeout is never.

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
    """Inside, these signals call `act`, on a thread of its own; afterwards they do what they did before.

    In another thread than the main one, which alone may say what a signal does, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = _relay(act)
    earlier = {number: signal.signal(number, lambda number, _: told.put(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        told.put(None)


def _relay(act: Callable[[int], None]) -> queue.SimpleQueue[int | None]:
    """A queue whose signals are acted upon; None ends that.

    SUBTLE: a handler runs in the main thread between any two instructions, and that thread may hold any lock, also the
    one of an event that it waits for. `SimpleQueue.put` is made to be called there; next to nothing else is.
    """
    told: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def relay() -> None:
        while (number := told.get()) is not None:
            act(number)

    threading.Thread(target=relay, name="signals", daemon=True).start()
    return told


class SigtermWatch:
    """Ends the jobs that this process drives itself when it gets a SIGTERM; a second one cancels them.

    A program with a handler of its own keeps it, and one that does not submit from its main thread gets none. While no
    job runs, the signal does what it did before: it kills.
    """

    def __init__(self) -> None:
        # Of a handler: it reads them, and must take no lock. Who changes them does.
        self._jobs: tuple[Endable, ...] = ()
        self._changing = threading.Lock()
        self._told: queue.SimpleQueue[int | None] | None = None
        self._process = 0
        # Of the relay's thread.
        self._again: dict[str, threading.Event] = {}
        self._seen: set[str] = set()

    def add(self, job: Endable) -> None:
        """A job is driven here from now on. Harmless if it is known, or has ended."""
        if threading.current_thread() is not threading.main_thread():
            return
        found = signal.getsignal(signal.SIGTERM)
        if found not in (signal.SIG_DFL, self._handle) or job.ended:
            return
        # SUBTLE: the job comes first. A signal that finds the handler, and no job, kills.
        with self._changing:
            if job not in self._jobs:
                self._jobs = (*(each for each in self._jobs if not each.ended), job)
        if found is signal.SIG_DFL:
            if self._told is None or self._process != os.getpid():
                self._told, self._process = _relay(self._act), os.getpid()
            signal.signal(signal.SIGTERM, self._handle)

    def ended(self, job: Endable) -> bool:
        """Forgets a job that has ended.

        Returns:
            Whether it was told to; the same to everybody who has waited for it.
        """
        with self._changing:
            self._jobs = tuple(each for each in self._jobs if each is not job)
        if threading.current_thread() is threading.main_thread() and not any(not each.ended for each in self._jobs):
            self._give_back()
        return job.id in self._seen

    def await_told(self) -> None:
        """Waits until all jobs have ended that were told to: who ends the process before breaks them off.

        No longer than they may take.
        """
        told = [job for job in self._jobs if job.id in self._seen]
        longest = max((job.sigterm_seconds for job in told), default=0.0)
        deadline = time.monotonic() + longest + _CANCEL_SECONDS
        while any(not job.ended for job in told) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _give_back(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, frame: Any) -> None:
        # A child that this process was copied to has no thread that listens, and no job.
        if self._told is not None and self._process == os.getpid() and any(not job.ended for job in self._jobs):
            self._told.put(number)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _act(self, number: int) -> None:
        live = [job for job in self._jobs if not job.ended]
        if not live:
            # They have ended since: the signal is the process's, as ever.
            os.kill(os.getpid(), number)
        # All of them first: the first one may have ended, and be asked for the others, before the last is told.
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
"""That of this process: there is one handler of a signal."""
