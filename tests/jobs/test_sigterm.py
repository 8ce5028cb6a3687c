"""SIGTERM to a process that drives a job: a real one, with Spark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
from click.testing import CliRunner

from arcbeam import cli
from arcbeam.model.commits import CommitMode
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.inspection import inspect
from tests.notes import noted
from tests.spark.steps.fed import feed
from tests.spark.steps.test_steering import Job, expected

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 300.0

_SUBMITS = """
import sys
from pathlib import Path
from tests.spark.steps.test_steering import Job

class Going(Job):
    def __init__(self, folder):
        self.source, self.state, self.out, self.read = (folder / name for name in ("source", "state", "out", "read"))

try:
    result = Going(Path(sys.argv[1])).submit("--spark_master=local[2]", *sys.argv[2:])
    print("ended", result.wait_until_finish(), flush=True)
finally:
    print("cleaned up", flush=True)
"""


class Driver:
    """A process with a job of its own, and a session of its own; it is gone with the block."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._said = folder / "said"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SUBMITS, str(folder), *options],
                cwd=_ROOT,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def said(self) -> str:
        return self._said.read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)


@pytest.mark.contract("END-03", "API-06", "OPS-02")
@pytest.mark.usefixtures("spark")
def test_a_job_is_suspended_and_resumed_from_its_folder(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with Driver(tmp_path) as driver:
        driver.until(lambda: len(job.panes()) == 3)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 143, driver.said
        assert "suspend, as it was told to end" in driver.said
        assert "ended" not in driver.said, "the program does nothing with a job that is not done"
        assert "cleaned up" in driver.said
    assert job.panes() == expected(0, 10), "no window fires for it"
    found = inspect(FolderBlobs(job.state), check=True)
    assert (found.mode, found.savepoints, found.problems) == (str(CommitMode.SUSPENDED), (), ())
    feed(job.source, 25, end=True)
    resumed = CliRunner().invoke(cli.main, ["resume", str(job.state)])
    assert resumed.stdout.endswith(" is DONE\n"), resumed.output
    assert job.panes() == expected(0, 25)
    assert sorted(noted(job.read)) == list(range(25)), "the step that ran was committed: nothing was read twice"


@pytest.mark.long
@pytest.mark.contract("END-02", "API-06")
def test_a_job_is_drained_and_its_program_goes_on(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with Driver(tmp_path, "--on_sigterm=drain") as driver:
        driver.until(lambda: len(job.panes()) == 3)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 0, driver.said
        assert "ended DRAINED" in driver.said
    assert job.panes() == expected(0, 15)


@pytest.mark.long
@pytest.mark.contract("END-04", "API-06")
@pytest.mark.parametrize("how", [("--on_sigterm=cancel",), ("--sigterm_seconds=0",)])
def test_a_job_is_cancelled_and_goes_on_from_what_it_has_committed(tmp_path: Path, how: tuple[str, ...]) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with Driver(tmp_path, *how) as driver:
        driver.until(lambda: len(job.panes()) == 3)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 143, driver.said
        assert "cleaned up" in driver.said


@pytest.mark.long
@pytest.mark.contract("END-03")
@pytest.mark.usefixtures("spark")
def test_where_spark_is_told_too_the_job_is_suspended_all_the_same(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with Driver(tmp_path) as driver:
        driver.until(lambda: len(job.panes()) == 3)
        os.killpg(driver.process.pid, signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 143, driver.said
    assert inspect(FolderBlobs(job.state)).mode == str(CommitMode.SUSPENDED)
    feed(job.source, 25, end=True)
    resumed = CliRunner().invoke(cli.main, ["resume", str(job.state)])
    assert resumed.stdout.endswith(" is DONE\n"), resumed.output
    # The step that ran is run again; what it did outside the job, too.
    assert [pane for pane, _ in groupby(job.panes())] == expected(0, 25)
