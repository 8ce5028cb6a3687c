"""Streaming jobs whose processes are killed at random moments: their output equals that of an undisturbed run.

A driver is killed in one of three phases of its life (`PHASES`): before its first commit, after a few micro-batches,
and late. Phases are counted in micro-batches that call the source, not in seconds, so each is reached on any machine.

For more kills than in `make test`: `python -m tests.chaos.test_kills driver 20`. With `s3` at the end, the job's folder
is in an object store (moto's, in this process). That also runs an undisturbed job, and compares. Each driver has
another number of slots than the one before. Executors are separate processes on a small cluster.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import requests
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.historyfile import history_in
from arcbeam.store.log.requests import Request
from tests.chaos.pipeline import essence, reading, wrong
from tests.store.backends import s3_server

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 60.0
"""Seconds in which a job continues after a kill, also after its last read, when it has nothing more to read."""
_START_SECONDS = _MICRO_BATCH_SECONDS = 4.0
_BEGINNING = "before its first commit"
PHASES: Mapping[str, tuple[int, int]] = {_BEGINNING: (0, 0), "early": (1, 3), "late": (7, 10)}
"""Phases of a driver's life: calls of the source until it is killed, at least and at most."""
_WEIGHTS = (2, 5, 3)
"""How often each phase is chosen."""
_DAEMON = " -m arcbeam.spark.daemon "
_SUPERVISOR = "/environments/supervisor.py"


class Victim:
    """A job that is killed and resumed.

    Args:
        folder: for its output and state.
        seed: of all chance.
        by_folder: whether later drivers have only its folder, not its script.
        masters: Spark's masters, for one driver after the other.
        calls: calls of the source from one kill to the next, at least and at most; None: by the chosen phase.
        state: the job's folder; None: in `folder`.
        environ: variables of its processes in addition to those of this process.

    Attributes:
        output: the folder of its output.
        kills: the number of kills.
        phases: the kills by phase of the driver's life.
        drivers: the number of drivers.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        masters: Sequence[str] = ("local[2,8]",),
        state: str | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        by_folder: bool = False,
        calls: tuple[int, int] | None = None,
    ) -> None:
        self._by_folder, self._calls = by_folder, calls
        self.output, self._log = folder / "output", folder / "log"
        self._state, self._masters, self._environ = state or str(folder / "state"), cycle(masters), environ or {}
        self.output.mkdir()
        self._chance = random.Random(seed)
        self.kills = self.drivers = 0
        self.phases: Counter[str] = Counter()

    @property
    def state(self) -> DurableBlobs:
        """The job's folder."""
        return FolderBlobs(Path(self._state))

    def start(self) -> subprocess.Popen[bytes]:
        """Start a driver in a separate process group."""
        first = [sys.executable, "-m", "tests.chaos.pipeline", str(self.output), f"--checkpoint_dir={self._state}"]
        later = [sys.executable, "-c", "from arcbeam.cli.main import main; main()", "resume", str(self._state)]
        if self._by_folder:
            # Its workers cannot begin without the staged files, which are now only in the folder.
            staged = self.output.parent / "staged.txt"
            staged.write_text("words", encoding="utf-8")
            first.append(f"--files_to_stage={staged}")
        command = later if self._by_folder and read_newest(self.state) is not None else first
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [
                    *command,
                    f"--spark_master={next(self._masters)}",
                    "--shards=3",
                    "--spark_conf=spark.executor.memory=512m",
                ],
                cwd=_ROOT,
                # It lives for seconds, so compiling its code well does not pay.
                env={**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", **self._environ},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, kills: int, kill: Callable[[int, random.Random], bool]) -> None:
        """Run it to its end, with as many kills on the way as there is time for.

        The first driver makes a commit. The moment of a kill is random within its phase.
        """
        while True:
            driver = self.start()
            self.drivers += 1
            phase = self._phase(beginning=self.drivers > 1 and self._calls is None)
            try:
                if phase == _BEGINNING:
                    reading(self.output).unlink(missing_ok=True)
                    self._pass(driver, self._chance.uniform(0.5, _START_SECONDS), self._calls_source)
                while driver.poll() is None:
                    if phase != _BEGINNING:
                        self._continue(driver, self._calls or PHASES[phase])
                    if driver.poll() is None and self.kills < kills and kill(driver.pid, self._chance):
                        self.kills += 1
                        self.phases[phase] += 1
                    phase = self._phase(beginning=False)
            finally:
                # The JVM of a killed driver ends by itself, but not immediately.
                kill_all(driver.pid)
            if driver.returncode == 0:
                return
            assert driver.returncode == -signal.SIGKILL, self._log.read_text(errors="replace")[-4000:]

    def _phase(self, *, beginning: bool) -> str:
        """Choose the phase of the next kill; the first phase only if it is still possible."""
        return self._chance.choices(list(PHASES), (_WEIGHTS[0] * beginning, *_WEIGHTS[1:]))[0]

    def _calls_source(self) -> bool:
        return reading(self.output).exists()

    def _continue(self, driver: subprocess.Popen[bytes], calls: tuple[int, int]) -> None:
        """Wait for a random moment in one of the next micro-batches that call the source; if none does, in any."""
        micro_batch, bound = 0.0, _SECONDS
        for _ in range(self._chance.randint(*calls)):
            reading(self.output).unlink(missing_ok=True)
            began = time.monotonic()
            self._pass(driver, bound, self._calls_source)
            micro_batch = time.monotonic() - began
            # A micro-batch after what a kill has delayed, or the end.
            bound = 3 * micro_batch if bound == _SECONDS else bound
        self._pass(driver, self._chance.uniform(0, min(micro_batch, _MICRO_BATCH_SECONDS)))

    def _pass(self, driver: subprocess.Popen[bytes], seconds: float, over: Callable[[], bool] = bool) -> None:
        """Wait while the driver lives."""
        until = time.monotonic() + seconds
        while driver.poll() is None and time.monotonic() < until and not over():
            time.sleep(0.02)

    def check(self) -> None:
        """Check the output."""
        faults = wrong(self.output)
        assert not faults, f"{len(faults)} faults: {faults[:5]}"


def kill_all(group: int) -> None:
    """End a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def kill_driver(group: int, chance: random.Random) -> bool:
    """Kill a driver, with all that runs for it."""
    kill_all(group)
    return True


def processes() -> Iterator[tuple[int, int, str]]:
    """Yield the processes of this machine: number, parent's number, command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(entry.name), int(stat.rpartition(")")[2].split()[1]), command


def below(group: int) -> dict[int, tuple[int, str]]:
    """Return the processes below a driver: parent and command line, by number."""
    rows = {pid: (parent, command) for pid, parent, command in processes()}
    found = {group}
    while more := {pid for pid, (parent, _) in rows.items() if parent in found} - found:
        found |= more
    return {pid: rows[pid] for pid in found - {group}}


def workers(group: int) -> list[int]:
    """Return the Python workers below a driver."""
    # Workers are forks of the daemon, which a JVM has started. The driver's command line also contains the daemon's
    # name.
    found = {pid: parent for pid, (parent, command) in below(group).items() if _DAEMON in command}
    daemons = set(found.values()) & set(found)
    return [pid for pid in found if pid not in daemons] if daemons else []


def kill_worker(group: int, chance: random.Random) -> bool:
    """Kill one of the Python workers below a driver; return whether there was one."""
    return kill_one(workers(group), chance)


def worker_above(pid: int) -> int:
    """Return the Python worker in which a process is: the process itself, or the nearest one above it."""
    rows = {each: (parent, command) for each, parent, command in processes()}
    while _DAEMON not in rows[pid][1]:
        pid = rows[pid][0]
    return pid


def sdk_workers(group: int) -> list[int]:
    """Return the SDK workers below a process. While one starts, it is its boot program."""
    rows = below(group)
    supervisors = {pid for pid, (_, command) in rows.items() if _SUPERVISOR in command}
    boots = {pid for pid, (parent, _) in rows.items() if parent in supervisors}
    return [pid for pid, (parent, _) in rows.items() if parent in boots] or list(boots)


def executors(group: int) -> list[int]:
    """Return the executors below a driver."""
    return [pid for pid, (_, command) in below(group).items() if "CoarseGrainedExecutorBackend" in command]


def kill_executor(group: int, chance: random.Random) -> bool:
    """Kill one of the executors below a driver, whose workers end with it; return whether there was one."""
    return kill_one(executors(group), chance)


def kill_one(pids: list[int], chance: random.Random) -> bool:
    """Kill one of some processes; return whether there was one."""
    with contextlib.suppress(ProcessLookupError):
        if pids:
            os.kill(chance.choice(sorted(pids)), signal.SIGKILL)
            return True
    return False


@contextlib.contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """Run an S3 server in this process, with the bucket "jobs"; yield the environment of its users."""
    with s3_server() as endpoint:
        yield {
            "AWS_ENDPOINT": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
        }


KILLS = {"driver": kill_driver, "worker": kill_worker, "executor": kill_executor}
MASTERS = {
    "driver": ("local[2,8]", "local[3,8]", "local[1,8]"),
    "worker": ("local[2,8]",),
    "executor": ("local-cluster[2,1,1024]",),
}


@pytest.mark.contract("STORE-01", "STORE-02", "STORE-04", "STORE-05", "ENG-05", "END-06", "WM-09")
def test_kills_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    # The driver last, because the next driver has another master.
    left = [kill_driver, kill_executor, kill_worker]

    def kill(group: int, chance: random.Random) -> bool:
        return left[-1](group, chance) and bool(left.pop())

    victim = Victim(tmp_path, 2, (*MASTERS["executor"], "local[1,8]"), calls=(1, 2))
    victim.run(len(left), kill)
    assert left == []
    victim.check()
    # A lost executor and a lost worker repeat one micro-batch each at most.
    troubles = [event.text for event in history_in(victim.state).events if event.kind == "trouble"]
    assert len(troubles) <= 2, troubles


@pytest.mark.long
@pytest.mark.contract("END-02", "STORE-04", "STORE-05", "API-05")
def test_drain_survives_kills_without_script(tmp_path: Path) -> None:
    victim = Victim(tmp_path, seed=3, by_folder=True)
    requested: list[Request] = []

    def kill(group: int, chance: random.Random) -> bool:
        if not requested:
            requested.append(
                requests.ask(victim.state, requests.RequestKind.DRAIN, "last", Timestamp(time.time_ns() // 1000))
            )
        return kill_driver(group, chance)

    victim.run(2, kill)
    victim.check()
    head = known(read_newest(victim.state))  # type: ignore[arg-type]
    assert head.mode is CommitMode.DRAINED
    assert head.pin("last") is not None
    assert requests.waiting(victim.state) == []


@pytest.mark.long
@pytest.mark.contract("STORE-04", "STORE-07")
def test_object_store_job_survives_killed_driver(tmp_path: Path) -> None:
    with object_store() as environ:
        victim = Victim(tmp_path, 5, MASTERS["driver"], "s3://jobs/state", environ)
        victim.run(2, kill_driver)
        assert victim.kills == 2
        victim.check()


def main(what: str, kills: int, on_s3: bool) -> None:
    """Kill until there were that many, in as many jobs as it takes, and compare with an undisturbed job."""
    undisturbed: Counter[tuple[str, ...]] | None = None
    made = jobs = 0
    phases: Counter[str] = Counter()
    began = time.monotonic()
    while undisturbed is None or made < kills:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            environ = stack.enter_context(object_store()) if on_s3 else None
            # The server keeps its content from one job to the next.
            state = f"s3://jobs/{'undisturbed' if undisturbed is None else jobs}" if on_s3 else None
            victim = Victim(Path(folder), jobs, MASTERS[what], state, environ)
            victim.run(0 if undisturbed is None else kills - made, KILLS[what])
            victim.check()
            found = essence(victim.output)
        if undisturbed is None:
            undisturbed = found
            continue
        assert found == undisturbed
        made, jobs, phases = made + victim.kills, jobs + 1, phases + victim.phases
        seconds = time.monotonic() - began
        by_phase = ", ".join(f"{count} {phase}" for phase, count in phases.items())
        sys.stdout.write(
            f"{made} kills ({what}; {by_phase}) in {jobs} jobs, {seconds:.0f} s: nothing lost or duplicated\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "s3" in sys.argv[3:])
