"""What a SIGTERM does to jobs: they end as they say, in time, and a second one cancels them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arcbeam.errors import RequestRefusedError
from arcbeam.jobs.termination import OnSigterm, SigtermWatch, await_event, bring_to_end, relayed
from tests.jobs.fakes import WAIT

pytestmark = pytest.mark.contract("END-03", "END-04")


class Fake:
    """A job that ends when it is asked to, unless it is told otherwise."""

    def __init__(self, how: OnSigterm = OnSigterm.SUSPEND, seconds: float = WAIT, *, id: str = "job") -> None:
        self.id = self.name = id
        self.on_sigterm, self.sigterm_seconds = how, seconds
        self.asked: list[str] = []
        self.over = threading.Event()
        self.answer: Callable[[], None] = self.over.set

    @property
    def ended(self) -> bool:
        return self.over.is_set()

    def ask_to_end(self) -> None:
        self.asked.append("end")
        self.answer()

    def cancel(self, timeout: float) -> None:
        self.asked.append("cancel")
        self.over.set()


@pytest.fixture
def watch() -> Iterator[SigtermWatch]:
    # A job of another test, for whose end nobody has waited, may have left its handler.
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield SigtermWatch()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("how", [OnSigterm.SUSPEND, OnSigterm.DRAIN])
def test_a_job_is_asked_and_given_its_time(how: OnSigterm) -> None:
    job = Fake(how)
    bring_to_end(job, threading.Event())
    assert job.asked == ["end"]


def test_what_takes_too_long_or_is_hurried_or_says_so_is_cancelled() -> None:
    late, hurried, cancelled = Fake(seconds=0.0), Fake(), Fake(OnSigterm.CANCEL)
    again = threading.Event()
    again.set()
    for job in (late, hurried):
        job.answer = lambda: None
    for job, event in ((late, threading.Event()), (hurried, again), (cancelled, threading.Event())):
        bring_to_end(job, event)
    assert [job.asked[-1] for job in (late, hurried, cancelled)] == ["cancel"] * 3
    assert cancelled.asked == ["cancel"]


def test_a_job_that_refuses_goes_on_with_what_it_does_until_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    job = Fake()

    def refuse() -> None:
        # It drains, and comes to its end.
        threading.Timer(0.01, job.over.set).start()
        raise RequestRefusedError("the job is draining already")

    job.answer = refuse
    bring_to_end(job, threading.Event())
    assert job.asked == ["end"]
    assert "job: the job is draining already" in caplog.text


def test_the_first_signal_asks_all_jobs_and_the_second_cancels(watch: SigtermWatch) -> None:
    quick, slow, other = Fake(id="quick"), Fake(id="slow"), Fake(id="other")
    heard = threading.Event()
    slow.answer = heard.set
    for job in (quick, slow, quick):
        watch.add(job)
    signal.raise_signal(signal.SIGTERM)
    assert quick.over.wait(WAIT)
    assert heard.wait(WAIT)
    assert not slow.ended
    signal.raise_signal(signal.SIGTERM)
    assert slow.over.wait(WAIT)
    assert (quick.asked, slow.asked) == (["end"], ["end", "cancel"])
    assert (watch.ended(quick), watch.ended(slow), watch.ended(slow)) == (True, True, True)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    # A job that was not told ends as ever, and so does the next one that is.
    watch.add(other)
    other.over.set()
    assert not watch.ended(other)


def test_a_signal_that_comes_with_the_handler_is_the_jobs(watch: SigtermWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    job, install = Fake(), signal.signal

    def installed(number: int, handler: Any) -> Any:
        before = install(number, handler)
        if handler == watch._handle:
            signal.raise_signal(signal.SIGTERM)
        return before

    monkeypatch.setattr(signal, "signal", installed)
    watch.add(job)
    assert job.over.wait(WAIT)
    assert watch.ended(job)


def test_who_waits_for_a_lock_is_interrupted_all_the_same(watch: SigtermWatch) -> None:
    job = Fake()
    watch.add(job)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert await_event(job.over)
    assert watch.ended(job)


def test_who_waits_as_long_as_he_wants_hears_signals_and_is_told_how_it_went() -> None:
    event = threading.Event()
    assert not await_event(event, 0.0)
    assert not await_event(event, 0.01)
    event.set()
    assert await_event(event)
    assert await_event(event, 0.0)


def test_a_handler_of_the_users_stays(watch: SigtermWatch) -> None:
    seen: list[int] = []

    def own(number: int, frame: Any) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGTERM, own)
    watch.add(Fake())
    assert signal.getsignal(signal.SIGTERM) is own
    signal.signal(signal.SIGTERM, before)
    # Also one that came later.
    job = Fake()
    watch.add(job)
    signal.signal(signal.SIGTERM, own)
    signal.raise_signal(signal.SIGTERM)
    job.over.set()
    assert not watch.ended(job)
    assert signal.getsignal(signal.SIGTERM) is own
    assert seen == [signal.SIGTERM]


def test_in_a_thread_nothing_is_installed(watch: SigtermWatch) -> None:
    def submit() -> None:
        watch.add(Fake())
        with relayed(lambda _: None, signal.SIGTERM):
            handlers.append(signal.getsignal(signal.SIGTERM))

    handlers: list[Any] = []
    thread = threading.Thread(target=submit)
    thread.start()
    thread.join()
    handlers.append(signal.getsignal(signal.SIGTERM))
    assert handlers == [signal.SIG_DFL] * 2


_WITHOUT_A_JOB = """
import os, signal, sys, threading
from tests.jobs.test_termination import Fake, SigtermWatch
watch, job = SigtermWatch(), Fake()
watch.add(job)
if sys.argv[1] == "copied":
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM and 7)
else:
    job.over.set()
signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.parametrize(("what", "code"), [("ended", -signal.SIGTERM), ("copied", 7)])
def test_where_no_job_runs_the_signal_kills_as_ever(what: str, code: int) -> None:
    """Behind the job's end, before anybody has waited for it; and in a copy of the process, which has no threads."""
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", _WITHOUT_A_JOB, what], cwd=root, timeout=WAIT).returncode == code
