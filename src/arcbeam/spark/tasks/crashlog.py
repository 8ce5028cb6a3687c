"""Notes that a worker writes about itself while a task runs, to be read after the worker has died.

Owns the files: one for each worker that runs tasks of a job. They are in the job's temporary location if that is a
folder. Otherwise they are on the worker's host, until a later task copies them to the location.
`arcbeam.harness.operations.whereabouts` defines a note's content. The exit code comes from the daemon
(`arcbeam.spark.session.exits`). Imports no Spark, because both sides use it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import mmap
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final

from arcbeam.errors import ArcbeamError
from arcbeam.harness.operations import whereabouts
from arcbeam.harness.operations.whereabouts import here
from arcbeam.model.interfaces import OpenStage
from arcbeam.spark.session import exits
from arcbeam.store.jobtemp.location import JobLocation

_BOXES: Final = "boxes"
_STACK: Final = ".stack"
_SAMPLE_SECONDS: Final = 0.1
_EXIT_SECONDS: Final = 1.0
"""How long the driver waits until a daemon has written how a worker ended: the daemon learns it when Spark does."""
_FRAMES_MAX: Final = 12
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


# In the worker.


class _Recorder:
    """Notes what this process does, for one job after the other."""

    def __init__(self) -> None:
        self._pid = 0
        self._url = ""
        self._path: Path | None = None
        self._stack: IO[bytes] | None = None
        self._awake = threading.Event()
        self._ended = threading.Event()
        self._step: Callable[[FrameType], str] = lambda frame: ""
        self._thread = 0

    def begin(
        self, location: JobLocation, attempt: int, about: str, *, careful: bool, place: Sequence[int] = ()
    ) -> None:
        """Record that a task begins on the calling thread. Never raises: the notes are only for display.

        Args:
            location: of the job.
            attempt: Spark's task attempt id.
            about: the task in words.
            careful: whether a worker died before.
            place: see `crash_at`.
        """
        try:
            if self._pid != os.getpid():
                self._set_up()
            if self._url != location.url:
                self._open(location)
            here.careful = careful
            if careful and location.folder is None:
                _bring(location)
            task = {"attempt": attempt, "place": list(place), "about": about}
            here.begin({**task, "pid": self._pid, "host": socket.gethostname()})
            here.sample("", _resident())
        except (OSError, ArcbeamError, ValueError):
            here.use(bytearray(whereabouts.SIZE))

    def running(self, step: Callable[[FrameType], str]) -> None:
        """Record that the calling thread runs the task's bundles.

        Args:
            step: returns the running transform, given the innermost frame of this thread.
        """
        self._step, self._thread = step, threading.get_ident()
        self._awake.set()

    def end(self) -> None:
        """Record that the task has ended, with success or failure."""
        self._awake.clear()
        self._step = lambda frame: ""
        here.end()

    def _set_up(self) -> None:
        self.__init__()  # type: ignore[misc]  # forked: the parent's state belongs to the parent
        self._pid = os.getpid()
        leave = os._exit

        def leaving(code: int) -> None:
            if self._awake.is_set() and os.getpid() == self._pid:
                with contextlib.suppress(Exception):
                    here.record_exit(self._now(), code)
            leave(code)

        os._exit = leaving  # type: ignore[assignment]
        threading.Thread(target=self._sample, name="whereabouts", daemon=True).start()

    def _open(self, location: JobLocation) -> None:
        folder = _folder(location)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / f"{socket.gethostname()}-{self._pid}-{time.time_ns()}"
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(descriptor, whereabouts.SIZE)
            here.use(mmap.mmap(descriptor, whereabouts.SIZE))
        finally:
            os.close(descriptor)
        self._url = location.url
        exits.name_file(str(self._path))
        self._catch_signals()

    def _catch_signals(self) -> None:
        """Write the Python stack when a signal kills this process, except for signals that cannot be caught."""
        ours = self._stack is not None
        if faulthandler.is_enabled() and not ours:
            return  # Spark's handler: then Spark's message has the stack
        if self._stack is not None:
            faulthandler.disable()
            self._stack.close()
        descriptor = os.open(f"{self._path}{_STACK}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._stack = os.fdopen(descriptor, "wb")
        faulthandler.enable(self._stack, all_threads=False)

    def _sample(self) -> None:
        while True:
            self._awake.wait()
            time.sleep(_SAMPLE_SECONDS)
            if not self._awake.is_set():
                continue
            with contextlib.suppress(Exception):
                here.sample(self._now(), _resident())

    def _now(self) -> str:
        frame = sys._current_frames().get(self._thread)
        return self._step(frame) if frame is not None else ""


def _resident() -> int:
    """Return this process's resident bytes; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


recorder: Final = _Recorder()
"""The recorder of this process."""


def step_of(stage: Callable[[], OpenStage | None]) -> Callable[[FrameType], str]:
    """Return a function that finds a stage's running transform, given the innermost frame of its thread.

    Args:
        stage: returns the stage whose user code runs; None if there is none.
    """

    def step(frame: FrameType) -> str:
        found = stage()
        return "" if found is None else found.running_step(frame)

    return step


def _folder(location: JobLocation) -> Path:
    """Return the folder to which the workers of this host write; if the location is not a folder, one on the host."""
    if location.folder is not None:
        return location.folder / _BOXES
    return location.scratch() / _BOXES


def _bring(location: JobLocation) -> None:
    """Copy the notes of workers that died on this host to a location that is not a folder."""
    for path in _folder(location).iterdir():
        if path.suffix or (pid := int(path.name.split("-")[-2])) == os.getpid() or _is_alive(pid):
            continue
        for suffix in (exits.SUFFIX, _STACK, ""):
            part = path.with_name(path.name + suffix)
            with contextlib.suppress(FileNotFoundError):
                location.put_bytes(f"{_BOXES}/{part.name}", part.read_bytes())
                part.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


# On the driver.


@dataclass(frozen=True, slots=True)
class WorkerCrash:
    """How a worker died.

    Attributes:
        step: the transform that ran; "" if unknown.
        how: its exit code or signal, for display; "" if unknown.
        memory: resident bytes shortly before; 0 if unknown.
        stack: the user's Python frames, innermost first, as text; "" if unknown.
        host: the worker's; "" if unknown.
    """

    step: str = ""
    how: str = ""
    memory: int = 0
    stack: str = ""
    host: str = ""

    def __str__(self) -> str:
        """Return all in one line."""
        parts = [self.how or "exit code unknown"]
        parts += [f"in transform '{self.step}'"] if self.step else []
        parts += [f"with {self.memory / 2**20:,.0f} MiB of memory"] if self.memory else []
        return ", ".join(parts)


def crash_of(location: JobLocation, attempts: Iterable[int]) -> WorkerCrash | None:
    """Return how the worker died that ran one of the attempts; None if it left no notes.

    Args:
        location: the job's location.
        attempts: Spark's task attempt ids, the most relevant first.
    """
    return _crash_by(location, "attempt", attempts)


def crash_at(location: JobLocation, place: Sequence[int]) -> WorkerCrash | None:
    """Return the same of the attempt that began with `place`, numbers that no other attempt of the job has."""
    return _crash_by(location, "place", [list(place)])


def _crash_by(location: JobLocation, field: str, values: Iterable[object]) -> WorkerCrash | None:
    try:
        notes = dict(_notes(location))
    except (OSError, ArcbeamError):
        return None
    for value in values:
        for name, found in notes.items():
            if found.running and found.task.get(field) == value:
                return _crash(location, name, found)
    return None


def _notes(location: JobLocation) -> Iterator[tuple[str, whereabouts.Found]]:
    for name in location.list(f"{_BOXES}/"):
        if name.endswith((exits.SUFFIX, _STACK)):
            continue
        found = whereabouts.read(location.get_bytes(name))
        if found is not None:
            yield name, found


def _crash(location: JobLocation, name: str, found: whereabouts.Found) -> WorkerCrash:
    stack = _text(location, name + _STACK)
    fatal = re.match(r"Fatal Python error: ([^\n]+)", stack)
    code = _text(location, name + exits.SUFFIX)
    deadline = time.monotonic() + _EXIT_SECONDS
    while not code and found.task.get("host") == socket.gethostname() and time.monotonic() < deadline:
        time.sleep(0.02)
        code = _text(location, name + exits.SUFFIX)
    if code:
        how = _named(int(code))
    elif found.left:
        how = _named(found.code)
    else:
        how = f"signal of {fatal[1]}" if fatal else ""
    frames = [line.strip() for line in stack.splitlines() if line.lstrip().startswith("File ")]
    # Frames of arcbeam call user code. If arcbeam is installed in another folder on the worker, they stay in the stack.
    frames = list(itertools.takewhile(lambda frame: not frame.startswith(f'File "{_PACKAGE}{os.sep}'), frames))
    step, stack = found.left or found.sampled or found.place, "\n".join(frames[:_FRAMES_MAX])
    return WorkerCrash(step, how, found.memory, stack, str(found.task.get("host", "")))


def _named(code: int) -> str:
    """Return the text for an exit code, or for a signal as a negative number."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def _text(location: JobLocation, name: str) -> str:
    try:
        return location.get_bytes(name).decode("utf-8", "replace")
    except (OSError, ArcbeamError):
        return ""
