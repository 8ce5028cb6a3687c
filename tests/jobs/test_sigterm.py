"""SIGTERM to a process that drives a job, with Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.model.commits import CommitMode
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.inspection import inspect
from tests.jobs.fakes import connected
from tests.jobs.test_serving_streams import windows
from tests.notes import noted
from tests.runner.test_steering import Job, expected
from tests.spark.streaming.fed import feed
from tests.waiting import until

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 300.0

_SUBMITS = """
import sys
from pathlib import Path
from tests.runner.test_steering import Job

class Going(Job):
    def __init__(self, folder):
        self.source, self.state, self.out, self.read = (folder / name for name in ("source", "state", "out", "read"))

try:
    result = Going(Path(sys.argv[1])).submit("--spark_master=local[2]", *sys.argv[2:])
    print("program sees the end:", result.wait_until_finish(), flush=True)
finally:
    print("cleaned up", flush=True)
"""


_CLI = "from arcbeam.cli.main import main; main()"


class Driver:
    """A process with a job, in its own session. The end of the block kills it."""

    def __init__(self, folder: Path, *arguments: str, code: str = _SUBMITS, cwd: Path = _ROOT) -> None:
        self._output = folder / "output"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, *([str(folder)] if code is _SUBMITS else []), *arguments],
                cwd=cwd,
                # It lives for seconds: optimizing its code is not worth it.
                env={**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        # SUBTLE: once it has been waited for, its id may be that of another test's process.
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: self.output, seconds=_SECONDS, process=self.process)


@pytest.mark.contract("END-03", "API-06", "OPS-02")
@pytest.mark.usefixtures("spark")
def test_sigterm_suspends_job_that_can_be_resumed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with Driver(tmp_path) as driver:
        driver.until(lambda: len(job.panes()) == 3)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 143, driver.output
        assert "SIGTERM: suspend" in driver.output
        assert "program sees the end" not in driver.output, "the program does nothing with a job that is not done"
        assert "cleaned up" in driver.output
    assert job.panes() == expected(0, 10), "no window fires because of it"
    found = inspect(FolderBlobs(job.state), check=True)
    assert (found.mode, found.savepoints, found.problems) == (str(CommitMode.SUSPENDED), (), ())
    feed(job.source, 25, end=True)
    resumed = CliRunner().invoke(main.main, ["resume", str(job.state)])
    assert resumed.stdout.endswith(" is DONE\n"), resumed.output
    assert job.panes() == expected(0, 25)
    assert sorted(noted(job.read)) == list(range(25)), "the running micro-batch was committed: nothing is read twice"


@pytest.mark.long
@pytest.mark.contract("END-02", "API-06")
def test_sigterm_drains_job_and_program_continues(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with Driver(tmp_path, "--on_sigterm=drain") as driver:
        driver.until(lambda: len(job.panes()) == 3)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 0, driver.output
        assert "program sees the end: DRAINED" in driver.output
    assert job.panes() == expected(0, 15)


@pytest.mark.long
@pytest.mark.contract("END-04", "API-06")
@pytest.mark.parametrize("how", [("--on_sigterm=cancel",), ("--sigterm_seconds=0",)])
def test_sigterm_cancels_job_that_can_be_resumed(tmp_path: Path, how: tuple[str, ...]) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with Driver(tmp_path, *how) as driver:
        driver.until(lambda: len(job.panes()) == 3)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 143, driver.output
        assert "cleaned up" in driver.output


@pytest.mark.long
@pytest.mark.contract("END-03")
@pytest.mark.usefixtures("spark")
def test_sigterm_to_spark_too_suspends_job(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with Driver(tmp_path) as driver:
        driver.until(lambda: len(job.panes()) == 3)
        os.killpg(driver.process.pid, signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 143, driver.output
    assert inspect(FolderBlobs(job.state)).mode == str(CommitMode.SUSPENDED)
    feed(job.source, 25, end=True)
    resumed = CliRunner().invoke(main.main, ["resume", str(job.state)])
    assert resumed.stdout.endswith(" is DONE\n"), resumed.output
    # The running micro-batch is repeated, with its effects outside of the job.
    assert [pane for pane, _ in groupby(job.panes())] == expected(0, 25)


@pytest.mark.long
@pytest.mark.contract("END-03", "API-06")
def test_sigterm_suspends_jobs_of_run_and_resume(tmp_path: Path) -> None:
    job = Job(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(_SUBMITS)
    feed(job.source, 15)
    with Driver(tmp_path, "run", str(script), str(tmp_path), "--spark_master=local[2]", code=_CLI) as driver:
        driver.until(lambda: len(job.panes()) == 3)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 143, driver.output
        assert "program sees the end" not in driver.output
    feed(job.source, 25)
    with Driver(tmp_path, "resume", str(job.state), code=_CLI) as driver:
        driver.until(lambda: len(job.panes()) == 6)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(_SECONDS) == 143, driver.output
    assert inspect(FolderBlobs(job.state)).mode == str(CommitMode.SUSPENDED)
    feed(job.source, 25, end=True)
    with Driver(tmp_path, "resume", str(job.state), code=_CLI) as driver:
        assert driver.process.wait(_SECONDS) == 0, driver.output
        assert driver.output.endswith(" is DONE\n")
    assert job.panes() == expected(0, 25)
    assert sorted(noted(job.read)) == list(range(25))


@pytest.mark.long
@pytest.mark.contract("END-03", "API-02")
def test_sigterm_to_server_suspends_its_jobs(tmp_path: Path) -> None:
    source, out, folder = (tmp_path / name for name in ("source", "out", "server"))
    feed(source, 15)
    id = ""
    for panes in (1, 2):
        with Driver(
            tmp_path, "serve", "--port=0", f"--folder={folder}", "--json", "--", "--spark_master=local[2]", code=_CLI
        ) as driver:
            driver.until(lambda driver=driver: "endpoint" in driver.output)  # type: ignore[misc]
            first = next(line for line in driver.output.splitlines() if line.startswith('{"endpoint'))
            with connected(grpc.insecure_channel(json.loads(first)["endpoint"])) as client:
                id = id or client.run(windows(source, out), streaming=True, shards=2)
                driver.until(lambda panes=panes: len(noted(out)) == panes)  # type: ignore[misc]
                if panes == 2:
                    assert client.states(id)[-1] == "DONE"
                    assert sorted(noted(out)) == [list(range(10)), list(range(10, 20))]
            driver.process.send_signal(signal.SIGTERM)
            assert driver.process.wait(_SECONDS) == 0, driver.output
        if panes == 1:
            assert noted(out) == [list(range(10))], "no window fires because of it"
            (state,) = (path.parent for path in folder.rglob("manifests"))
            assert inspect(FolderBlobs(state), check=True).mode == str(CommitMode.SUSPENDED)
        feed(source, 20, end=True)
