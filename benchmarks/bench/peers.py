"""The peers that are measured: one object per peer, all with the same `run`.

Owns the Spark session that the Spark peers share, and how one run is timed. Must not know what runs when.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.memory import Sampler
from bench.processor import Clock, processor_seconds
from bench.works import registry
from bench.works.work import Answer, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TAG = "BENCH_PEER"
_FOLDER = Path(__file__).resolve().parents[1]
_MIB = 2**20
_LOCAL_TIMEOUT = 1800  # seconds


class WrongAnswerError(Exception):
    """A peer did not do the work."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory of a run, in MiB.

    Attributes:
        python, jvm: each at its own peak; for Python, its workers plus the growth of the driver.
        total: at the peak of the sum.
    """

    python: float
    jvm: float
    total: float


class Peer(Protocol):
    """Something that can do every work."""

    name: str

    def does(self, work: Work) -> bool:
        """Return whether it has a job for a work."""
        ...

    def run(self, work: Work, elements: int, warm_up: int) -> float:
        """Do a work once with `warm_up` elements, then again and timed; errors are raised.

        Returns:
            Seconds by the peer's clock, from building the job to having its result.
        """
        ...

    def memory(self, work: Work, elements: int, warm_up: int) -> Memory:
        """Do the same, but sample the memory. Sampling takes time, so this is a separate run."""
        ...


class SparkPeer:
    """A peer in the shared session, with its own Python workers (identified by a variable in their environment).

    Args:
        start: does one of the peer's jobs.
        clock: the clock for runs.
    """

    def __init__(
        self, name: str, session: SparkSession, start: Callable[[SparkSession, Any, int], Answer], clock: Clock
    ) -> None:
        self.name = name
        self._session = session
        self._start = start
        self._clock = clock
        self._jobs = registry.jobs(name)

    def does(self, work: Work) -> bool:
        return work.name in self._jobs

    def run(self, work: Work, elements: int, warm_up: int) -> float:
        self._warm_up(work, warm_up)
        start = self._clock()
        answer = self._job(work, elements)
        seconds = self._clock() - start
        _check(work, elements, answer)
        return seconds

    def _job(self, work: Work, elements: int) -> Answer:
        return self._start(self._session, self._jobs[work.name], elements)

    def memory(self, work: Work, elements: int, warm_up: int) -> Memory:
        self._warm_up(work, warm_up)
        with Sampler(f"{_TAG}={self.name}", jvm=True) as memory:
            answer = self._job(work, elements)
        _check(work, elements, answer)
        return Memory(memory.python / _MIB, memory.jvm / _MIB, memory.total / _MIB)

    def _warm_up(self, work: Work, elements: int) -> None:
        self._session.sparkContext.environment[_TAG] = self.name
        _check(work, elements, self._job(work, elements))
        # Garbage of earlier runs must not count for the next one.
        gc.collect()
        jvm = self._session.sparkContext._jvm
        if jvm is not None:
            jvm.System.gc()


class LocalPeer:
    """Beam's local runner, in a fresh process for every run."""

    name = "local"

    def __init__(self, clock: Clock) -> None:
        self._clock = "processor" if clock is processor_seconds else "wall"

    def does(self, work: Work) -> bool:
        return work.name in registry.jobs(self.name)

    def run(self, work: Work, elements: int, warm_up: int) -> float:
        return self._run(work, elements, warm_up)

    def memory(self, work: Work, elements: int, warm_up: int) -> Memory:
        with Sampler(f"{_TAG}={self.name}", jvm=False) as memory:
            self._run(work, elements, warm_up)
        return Memory(memory.python / _MIB, 0.0, memory.total / _MIB)

    def _run(self, work: Work, elements: int, warm_up: int) -> float:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            command = [sys.executable, "-m", "bench.local", work.name, str(elements), str(warm_up), folder, self._clock]
            environment = os.environ | {_TAG: self.name}
            done = subprocess.run(
                command, cwd=_FOLDER, env=environment, capture_output=True, text=True, timeout=_LOCAL_TIMEOUT
            )
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")
        result = json.loads(done.stdout.strip().rpartition("\n")[2])
        _check(work, elements, Answer(result["count"], result["total"]))
        seconds: float = result["seconds"]
        return seconds


def _check(work: Work, elements: int, answer: Answer) -> None:
    right = work.answer(elements)
    if answer != right:
        raise WrongAnswerError(f"{work.name} of {elements}: {answer} instead of {right}")


def _arcbeam(session: SparkSession, build: Any, elements: int) -> Answer:
    from arcbeam import ArcbeamRunner
    from bench.works import pipelines

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return pipelines.run(build, elements, ArcbeamRunner(), folder)


def _in_context(session: SparkSession, job: Any, elements: int) -> Answer:
    answer: Answer = job(session.sparkContext, elements)
    return answer


def _in_session(session: SparkSession, job: Any, elements: int) -> Answer:
    answer: Answer = job(session, elements)
    return answer


_STARTS = {"arcbeam": _arcbeam, "rdd": _in_context, "frames": _in_session, "sql": _in_session}
NAMES = ("arcbeam", "rdd", "frames", "sql", "local")
CORES = 2
SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.ui.showConsoleProgress": "false",
}


def open_session() -> SparkSession:
    """Return the session of all Spark peers: `local[2]`, defaults except for `SETTINGS`."""
    # Python workers and the local runner's process import this package by name.
    paths = [str(_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{CORES}]").appName("bench")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # A failure is a row of the table; Spark would log it at length.
    return session


def peers(names: tuple[str, ...], session: SparkSession, clock: Clock) -> list[Peer]:
    """Return the peers of those names, in that order."""
    return [LocalPeer(clock) if name == "local" else SparkPeer(name, session, _STARTS[name], clock) for name in names]
