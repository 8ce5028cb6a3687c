"""A program that ends before its jobs: the process waits for them, and its exit code reports their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from arcbeam.cli.main import main
from arcbeam.model.commits import CommitMode
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.inspection import inspect
from tests.jobs.fakes import WAIT
from tests.jobs.test_sigterm import Driver
from tests.runner.test_steering import Job
from tests.spark.streaming.fed import feed

pytestmark = pytest.mark.contract("API-06")

_FAKE = """
import atexit, concurrent.futures, os, signal, sys, threading, time
from arcbeam.errors import JobFailedError
from arcbeam.jobs.termination import await_event
from arcbeam.runner.unawaited import UNAWAITED

# Programs that a shell starts in the background ignore it, and so do theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Fake:
    # Ends when the program has ended, with work in a pool and in a new thread.
    def __init__(self, name, error=None, runs=True):
        self.name, self.error, self.over, self.runs = name, error, threading.Event(), runs
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        UNAWAITED.add(self)

    @property
    def ended(self):
        return self.over.is_set()

    def wait_until_finish(self):
        if self.runs:
            self.pool.submit(threading.Thread(target=self.over.set).start).result()
        print("waiting for", self.name, flush=True)
        await_event(self.over)
        if self.error:
            raise self.error

    def cancel(self):
        self.over.set()
        print(self.name, "is cancelled", flush=True)

atexit.register(print, "exit functions are called")
"""


def _run(program: str, *flags: str, text: str = "") -> tuple[int, list[str], str]:
    command = [sys.executable, *flags, "-c", _FAKE + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, input=text)
    return done.returncode, done.stdout.splitlines(), done.stderr


_LAST = "exit functions are called"


def test_process_waits_for_job() -> None:
    code, printed, log = _run("Fake('words')")
    assert (code, printed) == (0, ["waiting for words", _LAST])
    assert log.startswith("arcbeam: the program has ended; waiting for job 'words'")


def test_failed_job_is_exit_code() -> None:
    code, printed, log = _run("Fake('bad', JobFailedError('no luck')); Fake('next')")
    assert (code, printed) == (1, ["waiting for bad", "waiting for next", _LAST])
    assert "JobFailedError: no luck" in log


def test_exit_code_of_program_is_kept() -> None:
    assert _run("Fake('words'); sys.exit(5)")[0] == 5


def test_job_that_program_has_given_up_is_cancelled() -> None:
    assert _run("UNAWAITED.give_up(Fake('words'))")[:2] == (0, ["words is cancelled", _LAST])


def test_drained_job_is_not_given_up() -> None:
    code, printed, _ = _run("job = Fake('words'); UNAWAITED.give_up(job); UNAWAITED.add(job)")
    assert (code, printed) == (0, ["waiting for words", _LAST])


def test_job_whose_end_was_seen_is_forgotten() -> None:
    assert _run("UNAWAITED.remove(Fake('words', JobFailedError('seen')))")[:2] == (0, [_LAST])


def test_jobs_of_failing_program_are_cancelled() -> None:
    code, printed, log = _run("Fake('words'); raise ValueError('mistake')")
    assert (code, printed) == (1, ["words is cancelled", _LAST])
    assert "words: cancelled, because the program has ended" in log


@pytest.mark.parametrize(
    ("raised", "printed"),
    [
        ("ValueError", ["words is cancelled", "ended"]),
        ("KeyboardInterrupt", ["words is cancelled", "ended"]),
        ("SystemExit", ["left"]),
    ],
)
def test_program_of_a_command_that_fails_cancels_its_jobs(raised: str, printed: list[str]) -> None:
    program = f"""
job = Fake("words")
try:
    with UNAWAITED.finished():
        raise {raised}(5)
except {raised}:
    print("left" if not job.ended else "ended", flush=True)
"""
    assert _run(program)[1][: len(printed)] == printed


def test_jobs_of_interactive_session_are_cancelled() -> None:
    assert "words is cancelled" in _run("Fake('words')", "-i", text="1\n")[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_waits_for_its_own_jobs() -> None:
    program = (
        "Fake('of parent')\nif not os.fork():\n    Fake('of child', JobFailedError('no luck'))\n"
        "else:\n    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)"
    )
    assert _run(program)[1] == ["waiting for of child", _LAST, "1", "waiting for of parent", _LAST]


def test_child_of_multiprocessing_has_exit_code() -> None:
    program = """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=Fake, args=("of child", JobFailedError("no luck")))
child.start()
child.join()
print(child.exitcode, flush=True)
"""
    assert _run(program)[1] == ["waiting for of child", "1", _LAST]


@pytest.mark.parametrize(("press", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_waiting(press: signal.Signals, code: int) -> None:
    program = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
Fake("words", runs=False)
Fake("others", runs=False)
"""
    with subprocess.Popen([sys.executable, "-c", _FAKE + program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting for words\n"
        process.send_signal(press)
        if press is signal.SIGTERM:
            # Here each job is ended by a signal of its own.
            assert process.stdout.readline() == "waiting for others\n"
            process.send_signal(press)
        rest = process.stdout.read().splitlines()
        assert process.wait(WAIT) == code
    assert rest == ([_LAST] if press is signal.SIGTERM else ["others is cancelled", _LAST])


_SCRIPT = """
import sys
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

out, text, *options = sys.argv[1:]
p = beam.Pipeline(options=PipelineOptions(options))
p | beam.Create([text]) | beam.Map(int) | beam.io.WriteToText(out, shard_name_template="")
p.run()
"""


@pytest.mark.contract("API-01", "END-01")
@pytest.mark.parametrize("mode", [(), ("--streaming",)])
@pytest.mark.usefixtures("spark")
def test_command_waits_for_job_of_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    # The command leaves its script's arguments and folder, which pipelines of later tests would read.
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    script, out = tmp_path / "ends.py", tmp_path / "out"
    script.write_text(_SCRIPT)
    done = CliRunner().invoke(main, ["run", str(script), str(out), "7", *mode])
    assert done.exit_code == 0, done.output
    assert out.read_text() == "7\n"
    failed = CliRunner().invoke(main, ["run", str(script), str(tmp_path / "other"), "seven", *mode])
    assert failed.exit_code == 1
    assert "ValueError" in failed.stderr


@pytest.mark.contract("API-01")
@pytest.mark.parametrize(("text", "code"), [("7", 0), pytest.param("seven", 1, marks=pytest.mark.long)])
def test_process_waits_for_job_of_script(tmp_path: Path, text: str, code: int) -> None:
    script, out = tmp_path / "ends.py", tmp_path / "out"
    script.write_text(_SCRIPT)
    options = ["--runner=arcbeam.ArcbeamRunner", "--spark_master=local[1]"]
    done = subprocess.run([sys.executable, script, out, text, *options], capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stderr
    assert "waiting for job 'ends'" in done.stderr
    assert out.exists() == (not code)
    assert ("ValueError" in done.stderr) == bool(code)


_STREAMS = """
import sys
from pathlib import Path
from tests.runner.test_steering import Job

class Going(Job):
    def __init__(self, folder):
        self.source, self.state, self.out, self.read = (folder / name for name in ("source", "state", "out", "read"))

Going(Path(sys.argv[1])).submit("--spark_master=local[2]", *sys.argv[2:])
"""


@pytest.mark.long
@pytest.mark.contract("END-03")
def test_sigterm_suspends_streaming_job_after_end_of_program(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with Driver(tmp_path, str(tmp_path), code=_STREAMS) as driver:
        driver.until(lambda: len(job.panes()) == 3)
        assert "waiting for job" in driver.output
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(600) == 143, driver.output
        assert "SIGTERM: suspend" in driver.output
    found = inspect(FolderBlobs(job.state), check=True)
    assert (found.mode, found.problems) == (str(CommitMode.SUSPENDED), ())
