"""The error for a worker that died, made of the notes that it left."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from arcbeam.errors import WorkerLostError
from arcbeam.harness.operations.whereabouts import SIZE, Whereabouts, place_of, read
from arcbeam.spark.tasks import failure, lostworker
from arcbeam.spark.tasks.crashlog import _Recorder
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.jobtemp.jobblobs import RemoteBlobs
from arcbeam.store.jobtemp.location import JobLocation
from tests.golden import check_message

_TEXT = """Job aborted due to stage failure: Task 0 in stage 5.0 failed 4 times, most recent failure: \
Lost task 0.3 in stage 5.0 (TID 23) (10.0.0.7 executor 4): org.apache.spark.SparkException: \
Python worker exited unexpectedly (crashed)
Caused by: java.io.EOFException"""
_STACK = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/job.py", line 12 in parse
"""


def note(place: str, attempt: int, *, memory: int = 0, host: str = "elsewhere") -> bytes:
    data = bytearray(SIZE)
    of = Whereabouts()
    of.use(data)
    of.begin({"attempt": attempt, "host": host})
    of.enter(place_of(place))
    if memory:
        of.sample("", memory)
    return bytes(data)


def described(location: JobLocation, text: str = _TEXT) -> WorkerLostError:
    assert lostworker.is_one(text)
    return lostworker.described(text, ["Read", "Parse"], location, "Caused by: java.io.EOFException")


@pytest.fixture
def location(tmp_path: Path) -> JobLocation:
    location = JobLocation(str(tmp_path / "job"))
    location.put_bytes("boxes/a-1-1", note("Write", 22))
    return location


@pytest.mark.contract("BAT-06")
def test_crash_is_described_with_transform_and_signal(location: JobLocation) -> None:
    location.put_bytes("boxes/a-2-1", note("Parse", 23, memory=150 << 20))
    location.put_bytes("boxes/a-2-1.stack", _STACK.encode())
    location.put_bytes("boxes/a-2-1.exit", b"-11")
    error = described(location)
    assert (error.step, error.how, error.memory, error.died) == ("Parse", "signal 11 (SIGSEGV)", 150 << 20, True)
    check_message("worker-lost-by-crash", str(error.after(3)))
    copied = pickle.loads(pickle.dumps(error.after(3)))
    assert (copied.step, copied.tries, str(copied)) == ("Parse", 3, str(error.after(3)))


def test_exit_code_is_described(location: JobLocation) -> None:
    location.put_bytes("boxes/a-2-1", note("Parse", 23))
    location.put_bytes("boxes/a-2-1.exit", b"7")
    error = described(location)
    assert (error.step, error.how) == ("Parse", "exit code 7")
    check_message("worker-lost-by-exit", str(error))


def test_kill_is_described(location: JobLocation) -> None:
    location.put_bytes("boxes/a-2-1", note("Parse", 23))
    location.put_bytes("boxes/a-2-1.exit", b"-9")
    error = described(location)
    assert error.how == "signal 9 (SIGKILL)"
    check_message("worker-lost-by-kill", str(error))


def test_stack_names_signal_without_exit_note(location: JobLocation) -> None:
    location.put_bytes("boxes/a-2-1", note("Parse", 23))
    location.put_bytes("boxes/a-2-1.stack", _STACK.encode())
    assert described(location).how == "signal of Segmentation fault"


def test_worker_of_this_host_without_exit_is_described(location: JobLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcbeam.spark.tasks.crashlog._EXIT_SECONDS", 0.0)
    location.put_bytes("boxes/a-2-1", note("Parse", 23, host=socket.gethostname()))
    assert (described(location).step, described(location).how) == ("Parse", "")


def test_worker_that_left_nothing_names_stages(tmp_path: Path) -> None:
    error = described(JobLocation(str(tmp_path / "none")))
    assert (error.step, error.how, error.died) == ("", "", True)
    check_message("worker-lost-without-trace", str(error))


def test_lost_executor_is_not_a_worker_death(tmp_path: Path) -> None:
    text = "Lost task 1.3 in stage 2.0 (TID 9) (10.0.0.7 executor 4): ExecutorLostFailure"
    assert not described(JobLocation(str(tmp_path / "none")), text).died


class LateBlobs(FolderBlobs):
    """The daemon writes the exit code of a worker after the driver has looked for it twice."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.looks = 0

    def get(self, name: str) -> bytes:
        if name.endswith(".exit"):
            self.looks += 1
            if self.looks == 3:
                self.put(name, b"-9")
        return super().get(name)


@pytest.mark.parametrize(("host", "looks", "how"), [("", 3, "signal 9 (SIGKILL)"), ("elsewhere", 1, "")])
def test_driver_waits_for_exit_of_worker_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, looks: int, how: str
) -> None:
    monkeypatch.setattr("arcbeam.spark.tasks.crashlog._EXIT_SECONDS", 60.0)
    blobs = LateBlobs(tmp_path / "job")
    location = JobLocation("test://job", blobs=RemoteBlobs(blobs, tmp_path / "cache" / "job"))
    location.put_bytes("boxes/a-2-1", note("Parse", 23, host=host or socket.gethostname()))
    error = described(location)
    assert (error.step, error.how, blobs.looks) == ("Parse", how, looks)


@pytest.mark.contract("STORE-11")
def test_notes_for_remote_location_go_with_copies(tmp_path: Path) -> None:
    location = JobLocation(
        "test://job", blobs=RemoteBlobs(FolderBlobs(tmp_path / "remote"), tmp_path / "cache" / "job")
    )
    recorder = _Recorder()
    recorder._pid = os.getpid()  # no thread, and no other os._exit
    recorder._open(location)
    assert recorder._path.is_relative_to(tmp_path / "cache")
    location.delete_all()
    assert not (tmp_path / "cache" / "job").exists()


_TWO_TASKS = """
import sys, threading
from arcbeam.spark.tasks.crashlog import recorder
from arcbeam.store.jobtemp.location import JobLocation
for attempt in (22, 23):
    recorder.begin(JobLocation(sys.argv[1]), attempt, "Parse", careful=False)
print([thread.name for thread in threading.enumerate()].count("whereabouts"))
"""


def test_tasks_of_a_worker_share_its_notes(tmp_path: Path) -> None:
    # A process of its own: the recorder replaces `os._exit`.
    command = [sys.executable, "-c", _TWO_TASKS, str(tmp_path / "job")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    (note,) = (tmp_path / "job" / "boxes").glob("*-*-*[0-9]")
    found = read(note.read_bytes())
    assert found is not None
    assert (found.task["attempt"], found.memory > 1 << 20) == (23, True)


_SAMPLED_TASK = """
import sys, threading
from arcbeam.spark.tasks.crashlog import recorder
from arcbeam.store.jobtemp.location import JobLocation
samples = threading.Semaphore(0)
def step(frame):
    samples.release()
    return "Parse"
recorder.begin(JobLocation(sys.argv[1]), 23, "Parse", careful=False)
recorder.running(step)
# The second call comes after the first sample is written.
print(samples.acquire(timeout=60) and samples.acquire(timeout=60))
"""


@pytest.mark.contract("BAT-06")
def test_running_transform_is_sampled(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SAMPLED_TASK, str(tmp_path / "job")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    (note,) = (tmp_path / "job" / "boxes").glob("*-*-*[0-9]")
    found = read(note.read_bytes())
    assert found is not None
    assert (found.running, found.sampled, found.memory > 1 << 20) == (True, "Parse", True)


@pytest.mark.contract("BAT-06")
def test_memory_error_is_described_with_transform(tmp_path: Path) -> None:
    raised = RuntimeError("MemoryError [while running 'Parse']")
    raised._tagged_with_step = True  # type: ignore[attr-defined]  # as the SDK raises it
    raised.__context__ = MemoryError()
    error = failure.unrecorded(raised, "Read")
    text = _TEXT.replace("Python worker exited unexpectedly (crashed)", f"{type(error).__name__}: {error}")
    reported = described(JobLocation(str(tmp_path / "job")), text)
    assert (reported.step, reported.how, reported.died) == ("Parse", "MemoryError", True)
    check_message("worker-out-of-memory", str(reported.after(3)))


def test_other_error_is_raised_to_spark_unchanged() -> None:
    error = KeyboardInterrupt()
    assert failure.unrecorded(error, "Read") is error
