"""A driver that dies is reported as the cause, and dropped."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from arcbeam.spark.session import driver

SCRIPT = """
import os, signal
import apache_beam as beam
from pyspark import SparkContext
from arcbeam.errors import ArcbeamError

def end(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

def run(*pids):
    try:
        with beam.Pipeline(argv=["--runner=arcbeam.ArcbeamRunner", "--spark_master=local[1]"]) as p:
            p | beam.Create(range(3)) | beam.Reshuffle() | beam.Map(lambda x: end(pids))
        print("done", flush=True)
    except ArcbeamError as e:
        print(type(e).__name__, e, flush=True)

jvm = lambda: SparkContext._gateway.proc
run()
run(jvm().pid)
run()
jvm().kill()
jvm().wait()
run()
"""


@pytest.mark.long
@pytest.mark.contract("BAT-04")
def test_dead_driver_is_reported_and_replaced(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=400)
    printed = done.stdout.splitlines()
    assert printed[0] == "done", done.stderr[-3000:]
    assert printed[1].startswith("DriverLostError "), printed
    assert "SIGKILL" in printed[1]
    assert "spark.driver.memory" in printed[2]
    assert printed[3] == "done", "the next pipeline must run on a new driver"
    assert printed[4] == "done", "and so did one after a death that no call had noticed"
    assert re.search(r"driver has died \(.*SIGKILL", done.stderr)


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (52, "out of memory (exit code 52)"),
        (3, "out of memory (exit code 3)"),
        (-signal.SIGKILL, "killed by SIGKILL, which the system sends when memory runs out (exit code -9)"),
        (134, "killed by SIGABRT (exit code 134)"),
        (1, "exit code 1"),
    ],
)
def test_exit_code_has_meaning(code: int, meaning: str) -> None:
    assert driver._meaning(code) == meaning


class Alive:
    """A process of which a test knows that it lives."""

    def poll(self) -> None: ...

    def wait(self, seconds: float) -> None:
        raise AssertionError("it does not end")


def test_failed_task_is_not_taken_for_the_end_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=Alive()))
    error = RuntimeError("Job aborted due to stage failure: Lost task 0.0: java.net.SocketException: Broken pipe")
    assert driver.lost(Alive(), error) is None


def test_live_driver_is_kept(spark: Any) -> None:
    assert driver.death(spark) is None
    assert driver.lost(spark, ValueError("something else")) is None
    assert spark.range(3).count() == 3
