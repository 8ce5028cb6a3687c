"""How a job's end is reported to the user's program, and to the sender of a SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arcbeam.errors import RequestRefusedError
from arcbeam.jobs.termination import TERMINATED, OnSigterm, SigtermWatch
from arcbeam.runner import result
from arcbeam.runner.job import Job
from arcbeam.runner.result import ArcbeamResult
from arcbeam.store.log.requests import Answer, AnswerKind
from arcbeam.streaming.driver.requests import settled
from tests.golden import check_message
from tests.jobs.fakes import WAIT
from tools.check_docs import ROOT


class Suspended:
    """A job that is suspended some seconds after the SIGTERM."""

    on_sigterm, sigterm_seconds, cancelled, state = OnSigterm.SUSPEND, WAIT, False, "RUNNING"

    def __init__(self, id: str, seconds: float) -> None:
        self.id = self.name = id
        self._seconds = seconds
        self._end = threading.Event()

    @property
    def ended(self) -> bool:
        return self._end.is_set()

    def run(self) -> str:
        assert self._end.wait(WAIT)
        return "STOPPED"

    def ask_to_end(self) -> None:
        threading.Timer(self._seconds, self._end.set).start()

    def cancel(self, timeout: float | None = None) -> None:
        self._end.set()


@pytest.mark.contract("END-03", "API-06")
def test_sigterm_ends_program_after_all_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(result, "SIGTERMS", SigtermWatch())
    jobs = [Suspended("quick", 0.0), Suspended("slow", 0.3)]
    quick, slow = (ArcbeamResult(cast(Any, None), cast(Any, job)) for job in jobs)
    signal.raise_signal(signal.SIGTERM)
    for each in (quick, quick, slow):
        with pytest.raises(SystemExit) as exit:
            each.wait_until_finish()
        assert exit.value.code == TERMINATED
        assert jobs[1].ended, "the end of the process would stop its thread"
    signal.signal(signal.SIGTERM, before)


_GIVES_UP = """
from tests.runner.test_result import Suspended
from arcbeam.runner.result import ArcbeamResult
result = ArcbeamResult(None, Suspended("words", 0.0))
print(result.wait_until_finish(1))
"""


@pytest.mark.contract("API-06")
def test_job_that_runs_longer_than_the_program_waits_is_cancelled() -> None:
    command = [sys.executable, "-c", _GIVES_UP]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10 * WAIT)
    assert (done.returncode, done.stdout) == (0, "RUNNING\n"), done.stderr
    assert "words: cancelled, because the program has ended" in done.stderr


@pytest.mark.contract("API-06")
def test_wait_ends_after_its_milliseconds() -> None:
    job = Suspended("words", 0.0)
    waiting = ArcbeamResult(cast(Any, None), cast(Any, job))
    for milliseconds in (300, 1200):
        began = time.monotonic()
        assert waiting.wait_until_finish(milliseconds) == "RUNNING"
        assert time.monotonic() - began >= milliseconds / 1000
    assert waiting.cancel() == "STOPPED"


@pytest.mark.contract("END-04")
def test_cancel_interrupts_the_run_until_its_time_is_over() -> None:
    interrupts: list[None] = []
    run = SimpleNamespace(interrupt=lambda: interrupts.append(None))
    job = SimpleNamespace(_cancelled=threading.Event(), _ended=threading.Event(), _run=run)
    Job.cancel(cast(Any, job), 0.5)
    assert interrupts, "the run has not ended at once"
    assert job._cancelled.is_set()


@pytest.mark.contract("END-02")
def test_refused_drain_is_raised_after_sigterm() -> None:
    refused = settled(Answer(AnswerKind.REFUSED, "the job is suspending already"))
    run = SimpleNamespace(draining=lambda: None, ask=lambda what, name: refused, ends=False)
    job = SimpleNamespace(on_sigterm=OnSigterm.DRAIN, _begun_run=lambda what: run, _label=lambda: "job 'words'")
    with pytest.raises(RequestRefusedError) as caught:
        Job.ask_to_end(cast(Any, job))
    check_message("drain-refused-suspending", str(caught.value))
    run.ends = True
    Job.ask_to_end(cast(Any, job))  # the last line of the job reports its end
