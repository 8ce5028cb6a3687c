"""Jobs whose transforms run in SDK workers, on a job server of their own, and what happens to them.

All processes of a server have a mark in their environment. Their temporary files are in the server's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc

from tests.chaos.points import arm, is_hit
from tests.chaos.test_kills import processes
from tests.sdks.goprograms import process
from tests.sdks.surviving import KEYS, NUMBERS
from tests.waiting import Deadline, until

_ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 240.0
LEFT_SECONDS: Final = 60.0
"""After the end of a job, no process of it may be left for longer."""
_LOOKS_SECONDS: Final = 0.05
_OF_SPARK: Final = re.compile(r" -m arcbeam\.spark\.daemon |java |^cat $")
"""Processes of the session, which is there for the next job: "cat" copies what Java writes."""
_RETRY: Final = re.compile(r"try \d+ of \d+|attempt \d+ of task")
_AT_THE_END: Final = ("prepared, not committed", "after shutdown", "teardown")
_OF_THE_DRIVER: Final = ("before the manifest", "after the manifest", *_AT_THE_END)
_EACH: Final = NUMBERS // KEYS
EXPECTED: Final = {
    "counts": sorted(f"{key} {what}" for key in range(KEYS) for what in (*range(1, _EACH + 1), f"total {_EACH}")),
    "groups": sorted(f"{key} [{' '.join(map(str, range(key, NUMBERS, KEYS)))}]" for key in range(KEYS)),
}


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs that jobs need.

    Attributes:
        go: the Go programs of the tests.
        go_boot, python_boot: the SDKs' boot programs.
    """

    go: Path
    go_boot: Path
    python_boot: Path

    def submission(self, sdk: str, program: str, output: Path, endpoint: str, name: str) -> list[str]:
        """Return the command that submits a job by PROCESS.

        Args:
            sdk: "Go" or "Python".
            program: "surviving" or "refusing".
            output: an existing folder.
            endpoint: address of the job server.
            name: the job's name.
        """
        if sdk == "Go":
            return [
                *(str(self.go), f"--program={program}", f"--output={output}", "--runner=universal"),
                *(f"--endpoint={endpoint}", f"--worker_binary={self.go}", f"--job_name={name}"),
                *process(self.go_boot),
            ]
        return [
            *(sys.executable, "-m", "tests.sdks.surviving", program, str(output), "--runner=PortableRunner"),
            *(f"--job_endpoint={endpoint}", f"--job_name={name}"),
            *process(self.python_boot, RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT="1"),
            "--experiments=disable_logging_submission_environment",
            # One group of all elements of a key, at the end of the input.
            "--allow_unsafe_triggers",
        ]


class Served:
    """A job server whose processes are on the path of `tests.chaos.points`.

    Args:
        folder: for all its files; it is made.
        master: Spark's master. By default, Spark does not repeat tasks, but arcbeam repeats micro-batches.
    """

    def __init__(self, folder: Path, master: str = "local[2]") -> None:
        folder.mkdir()
        self._master = master
        self._folder, self._log, self._temporary, self._jobs = folder, folder / "log", folder / "tmp", folder / "jobs"
        self._temporary.mkdir()
        key, value = "ARCBEAM_TEST_MARK", uuid.uuid4().hex
        self._mark = f"{key}={value}"
        self._environ = {
            **os.environ,
            key: value,
            "ARCBEAM_TRIAL": str(folder / "now"),
            "ARCBEAM_TRIAL_ROOT": str(_ROOT),
            "PYTHONPATH": os.pathsep.join([str(_ROOT / "tests" / "chaos" / "hook"), str(_ROOT)]),
            # For the SDK's boot program, which starts `python`.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "TMPDIR": str(self._temporary),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        }
        self._server: subprocess.Popen[bytes] | None = None
        self.endpoint = ""

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._server is not None
        return self._server.pid

    def begin(self, trial: Path) -> None:
        """Begin a trial, and start the server if none runs."""
        partial = self._folder / "next"
        partial.symlink_to(trial)
        partial.replace(self._folder / "now")
        if self._server is None:
            self._serve(trial)
        self._know(trial)

    def again(self, trial: Path) -> None:
        """Start another server with the same jobs if the last one was killed."""
        assert self._server is not None
        if (code := self._server.poll()) is not None:
            assert code == -signal.SIGKILL, self.log()
            self._serve(trial)

    def _know(self, trial: Path) -> None:
        for name in ("driver", "server"):
            (trial / name).write_text(str(self.pid))

    def _serve(self, trial: Path) -> None:
        started = self._folder / f"started-{uuid.uuid4().hex}"
        port = self.endpoint.rpartition(":")[2] or "0"
        command = [sys.executable, "-c", "from arcbeam.cli.main import main; main()", "serve", f"--port={port}"]
        command += [f"--folder={self._jobs}", "--json", "--", f"--spark_master={self._master}", "--shards=2"]
        with started.open("ab") as out, self._log.open("ab") as log:
            self._server = subprocess.Popen(
                command, stdout=out, stderr=log, env=self._environ, cwd=self._folder, start_new_session=True
            )
        self._know(trial)

        def is_ready() -> bool:
            for line in started.read_text().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self.endpoint = json.loads(line)["endpoint"]
                    return True
            return False

        self.until(is_ready, "the server")

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process of a job."""
        with log.open("ab") as out:
            return subprocess.Popen(
                command, stdout=out, stderr=out, env=self._environ, cwd=log.parent, start_new_session=True
            )

    def until(self, condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
        """Wait for a condition."""
        until(condition, lambda: f"{what}\n{self.log()}", seconds=seconds)

    def log(self) -> str:
        """Return the end of its log."""
        return self._log.read_text(errors="replace")[-8000:] if self._log.exists() else ""

    def requested(self, name: str, ask: Callable[[Any, str], Any]) -> Any:
        """Ask the server about the job of a name; return None if it does not know it, or does not answer."""
        with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(self.endpoint) as channel:
            stub = job_grpc.JobServiceStub(channel)
            for info in stub.GetJobs(job_pb.GetJobsRequest(), timeout=10).job_info:
                if info.job_name.startswith(name):
                    return ask(stub, info.job_id)
        return None

    def state(self, name: str) -> str:
        """Return the state of a job; "" if it is not known."""
        found = self.requested(
            name, lambda stub, id: stub.GetState(job_pb.GetJobStateRequest(job_id=id), timeout=10).state
        )
        return job_pb.JobState.Enum.Name(found) if found is not None else ""

    def messages(self, name: str) -> str:
        """Return the messages of a job that has ended."""

        def read(stub: Any, id: str) -> str:
            stream = stub.GetMessageStream(job_pb.JobMessagesRequest(job_id=id), timeout=30)
            return "\n".join(each.message_response.message_text for each in stream)

        return self.requested(name, read) or ""

    def processes(self) -> dict[int, str]:
        """Return the processes of the server and of its jobs, with their command lines."""
        found = {}
        for pid, _, command in processes():
            with contextlib.suppress(OSError):
                if self._mark in Path(f"/proc/{pid}/environ").read_text(errors="replace"):
                    found[pid] = command
        return found

    def left(self) -> list[str]:
        """Return what jobs that have ended have left: processes, and folders of SDK workers."""
        assert self._server is not None
        rows = list(processes())
        mine = {self._server.pid}
        while more := {pid for pid, parent, _ in rows if parent in mine} - mine:
            mine |= more
        left = [
            f"{pid} {command}"
            for pid, command in self.processes().items()
            if pid != self._server.pid and not (pid in mine and _OF_SPARK.search(command))
        ]
        return left + [str(path) for path in self._temporary.glob("arcbeam-sdk-worker-*")]

    def kill(self) -> None:
        """Kill the server and all processes of its jobs, and forget them: the next trial has another server."""
        assert self._server is not None
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._server.wait()
        for path in (*self._temporary.glob("arcbeam-sdk-worker-*"), self._jobs):
            shutil.rmtree(path, ignore_errors=True)
        self._server, self.endpoint = None, ""

    def end(self) -> None:
        """End the server, and check that no part of it is left."""
        if self._server is None:
            return
        if self._server.poll() is None:
            self._server.send_signal(signal.SIGTERM)
        self._server.wait(SECONDS)
        self.until(lambda: not self.processes(), "the end of all processes", LEFT_SECONDS)


class Trial:
    """A job of which a process is killed.

    Args:
        folder: an empty folder.
        programs, served: what runs it.
        sdk: of its transforms.
        victim, point: the process to kill, and where.
    """

    def __init__(self, folder: Path, programs: Programs, served: Served, sdk: str, victim: str, point: str) -> None:
        self._folder, self._programs, self._served = folder, programs, served
        self._sdk, self._victim, self._point = sdk, victim, point
        self._name = f"trial-{uuid.uuid4().hex[:8]}"
        self.output = folder / "output"
        self.output.mkdir()

    def run(self) -> float | None:
        """Run the trial; return the seconds from the kill to the first new output, None if none followed.

        Raises AssertionError if a promise is broken, or no process was killed at the point.
        """
        served = self._served
        served.begin(self._folder)
        starting = self._point == "an SDK worker is starting"
        if starting:
            arm(self._folder, self._point, self._victim)
        command = self._programs.submission(self._sdk, "surviving", self.output, served.endpoint, self._name)
        submitter = served.start(command, self._folder / "log")
        (self._folder / "submitter").write_text(str(submitter.pid))
        try:
            if not starting:
                served.until(lambda: self._lines("counts") or self._ended() or submitter.poll(), "the first output")
                arm(self._folder, self._point, self._victim)
            killed = renewed = 0.0
            before: list[str] = []
            deadline = Deadline(lambda: f"the end of the job\n{self._log()}", SECONDS)
            while not self._ended():
                deadline.check()
                accepted = served.state(self._name) or is_hit(self._folder)  # a server that was killed has no state
                assert self._victim == "submitter" or accepted or not submitter.poll(), self._log()
                if not killed and is_hit(self._folder):
                    killed, before = time.monotonic(), self._lines("counts")
                elif killed and not renewed and self._lines("counts") != before:
                    renewed = time.monotonic()
                served.again(self._folder)
                submitter.poll()
                time.sleep(_LOOKS_SECONDS)
            state = served.state(self._name)
            assert state == "DONE", f"{state}\n{self._log()}"
            found = {name: self._lines(name) for name in EXPECTED}
            assert found == EXPECTED, f"{found}\n{self._log()}"
            assert is_hit(self._folder), "no process was killed at the point"
            assert _RETRY.search(self.messages()) or not self._must_retry(), self._log()
            served.until(lambda: submitter.poll() is not None, "the submitter's end", LEFT_SECONDS)
            self._wait_until_nothing_is_left()
        except BaseException:
            served.kill()
            raise
        finally:
            if submitter.poll() is None:
                submitter.kill()
            submitter.wait()
        return renewed - killed if renewed else None

    def messages(self) -> str:
        """Return the messages of its job, which has ended."""
        return self._served.messages(self._name)

    def _must_retry(self) -> bool:
        """Return whether a task is lost for certain: of an idle worker, none is."""
        if self._victim == "SDK worker":
            # Python's boot program starts a worker again that has ended; no task misses one that had not connected.
            is_replaced = self._sdk == "Python" and self._point == "an SDK worker is starting"
            return not is_replaced and self._point not in _AT_THE_END
        return self._victim == "worker" and self._point not in _OF_THE_DRIVER

    def _wait_until_nothing_is_left(self) -> None:
        until(lambda: not self._served.left(), lambda: f"left: {self._served.left()}", seconds=LEFT_SECONDS)

    def _ended(self) -> bool:
        return self._served.state(self._name) in ("DONE", "FAILED", "CANCELLED")

    def _lines(self, name: str) -> list[str]:
        """Return what was collected; what an attempt has written that was not committed, is written again."""
        path = self.output / name
        return sorted(set(path.read_text().splitlines())) if path.exists() else []

    def _log(self) -> str:
        reported = (self._folder / "log").read_text(errors="replace")[-4000:]
        return f"{reported}\n{self.messages()[-4000:]}\n{self._served.log()}"
