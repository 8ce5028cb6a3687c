"""Kafka to Kafka with a stateful stage, while drivers, executors, Python workers and the broker are killed.

A committed reader watches all the time: each record arrives once, in the order of its key. Half of the kills happen at
chosen points: between staging, manifest, and each call of a transaction.

    python -m tests.chaos.test_kafka 20
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.chaos.points import arm, is_hit
from tests.chaos.test_kills import kill_all, kill_driver, kill_executor, kill_worker
from tests.io.kafka.conftest import EXPIRY
from tests.io.kafka.kills.points import POINTS
from tests.waiting import Deadline
from tools.kafka.broker import Broker, missing
from tools.kafka.watcher import Watcher

_ROOT: Final = Path(__file__).resolve().parents[2]
_PARTITIONS: Final = 4
_KEYS: Final = 40
_SECONDS: Final = 120.0
"""Until a driver must have brought something to its readers."""
_AT: Final = ("after the files", "before the manifest", "after the manifest", *POINTS)
_LOCAL, _CLUSTER = "local[2,8]", "local-cluster[2,1,1024]"


class Copying:
    """A job that copies a topic, and its reader.

    Args:
        folder: for the job.
        broker: the broker.
        seed: of all chance.
    """

    def __init__(self, folder: Path, broker: Broker, seed: int) -> None:
        self._folder, self._broker = folder, broker
        self.chance = random.Random(seed)
        self._driver: subprocess.Popen[bytes] | None = None
        self._drivers = self._produced = 0
        self._wanted: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for topic in ("in", "out"):
            broker.topic(topic, _PARTITIONS)
        self._producer = Producer({"bootstrap.servers": broker.address, "log_level": 2})
        self.watcher = Watcher(broker.address, "out", _PARTITIONS, self._wanted)
        self.trial = folder / "trial"
        self.trial.mkdir()

    def produce(self, count: int) -> None:
        """Produce records."""
        for number in range(self._produced, self._produced + count):
            key, value = b"%d" % (number % _KEYS), b"%d" % number
            self._producer.produce("in", value, key, number % _KEYS % _PARTITIONS)
            self._wanted[key].append(value)
        self._produced += count
        self._producer.flush(60)

    def start(self, master: str = _LOCAL) -> None:
        """Start a driver: with the script at first, then from the job's folder."""
        job, config = str(self._folder / "job"), ["--spark_master", master, "--spark_conf=spark.executor.memory=512m"]
        command = ["resume", job]
        if not self._drivers:
            places = ["--input", "in", "--output", "out", "--staging", str(self._folder / "staging")]
            places += ["--servers", self._broker.address, "--checkpoint_dir", job, "--shards", "4", "--streaming"]
            command = ["run", str(_ROOT / "examples" / "kafka_to_kafka.py"), *places]
        path = os.pathsep.join([str(_ROOT / "tests" / "chaos" / "hook"), str(_ROOT), str(_ROOT / "src")])
        trial = {"ARCBEAM_TRIAL": str(self.trial), "ARCBEAM_TRIAL_ROOT": str(_ROOT), "PYTHONPATH": path}
        with open(self._folder / "log", "ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-c", "from arcbeam.cli.main import main; main()", *command, *config],
                cwd=_ROOT,
                env={**os.environ, **trial, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._drivers += 1
        (self.trial / "driver").write_text(str(self._driver.pid))

    def until(self, over: Callable[[], bool], seconds: float = _SECONDS) -> None:
        """Watch until a condition holds, or the driver is dead."""
        assert self._driver is not None
        driver = self._driver
        deadline = Deadline(self.tail, seconds)
        while not over() and driver.poll() is None:
            deadline.check()
            self.watcher.look(0.1)
            assert self.watcher.wrong == []

    def kill_driver(self, point: str) -> None:
        """Start a driver, let it copy something, and kill it at a point, or soon if there is none."""
        (self.trial / "hit").unlink(missing_ok=True)
        # Only once in the life of a driver.
        first = "init_transactions" in point
        if first:
            arm(self.trial, point, "driver")
        self.start()
        assert self._driver is not None
        before = self.watcher.seen
        if first:
            self.until(lambda: is_hit(self.trial))
            self.end()
            self.produce(1_400)
            return
        self.until(lambda: self.watcher.seen > before)
        assert self._driver.poll() is None, self.tail()
        self.produce(700)
        if point:
            arm(self.trial, point, "driver")
            self.until(lambda: is_hit(self.trial))
        else:
            over = time.monotonic() + self.chance.uniform(0, 1.5)
            self.until(lambda: time.monotonic() > over)
            kill_driver(self._driver.pid, self.chance)
        self.end()
        self.produce(700)

    def kill_part(self, kill: Callable[[int, random.Random], bool]) -> None:
        """Kill a process of the job, which continues."""
        assert self._driver is not None
        driver, before = self._driver, self.watcher.seen
        self.produce(400)
        self.until(lambda: kill(driver.pid, self.chance))
        self.produce(400)
        self.until(lambda: self.watcher.seen > before)
        assert driver.poll() is None, self.tail()

    def kill_broker(self, seconds: float) -> None:
        """Kill the broker, and start it again after a time."""
        assert self._driver is not None
        before = self.watcher.seen
        self.produce(400)
        self._broker.kill()
        over = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > over)
        self._broker.start()
        self.produce(400)
        self.until(lambda: self.watcher.seen > before)
        assert self._driver.poll() is None, self.tail()

    def check(self, count: int) -> None:
        """Produce what is missing to a number, and check that all arrive, once."""
        self.produce(max(0, count - self._produced))
        self.until(lambda: self.watcher.seen >= self._produced)
        self.watcher.wait(self._produced, 0, quiet=4)
        assert (self.watcher.verdict(), self.watcher.seen) == ([], self._produced), self.tail()

    def end(self) -> None:
        """End the driver and all that it has started."""
        if self._driver is not None:
            kill_all(self._driver.pid)
            self._driver.wait()

    def tail(self) -> str:
        """Return the end of the log."""
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / "log").read_text(errors="replace")[-4000:]
        return ""


def copy_through_kills(folder: Path, kills: int, records: int, seed: int = 35) -> None:
    """Copy records through kills of drivers, and then of executors, workers and the broker."""
    with Broker(folder / "broker", **EXPIRY) as broker, contextlib.ExitStack() as stack:
        copying = Copying(folder, broker, seed)
        stack.callback(copying.end)
        copying.produce(700)
        points = [*_AT, *[""] * max(0, kills - len(_AT))]
        copying.chance.shuffle(points)
        for number, point in enumerate(points[:kills], 1):
            copying.kill_driver(point)
            sys.stdout.write(f"{number} of {kills}: driver killed {point or 'at a random moment'}\n")
            sys.stdout.flush()
        copying.start(_CLUSTER)
        for kill in (kill_worker, kill_executor, kill_worker):
            copying.kill_part(kill)
        copying.kill_broker(5)
        copying.check(records)
        sys.stdout.write(f"{copying.watcher.seen:,} records: each once, in order per key\n")


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.contract("KAFKA-01", "KAFKA-06", "KAFKA-07")
def test_twenty_kills_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    copy_through_kills(tmp_path, 20, 30_000)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found:
        copy_through_kills(Path(found), int(sys.argv[1]), 30_000)
