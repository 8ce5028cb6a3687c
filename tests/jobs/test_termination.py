"""The effect of a SIGTERM on jobs: they end as they require, in time, and a second one cancels them."""

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
    """A job that ends on request, unless a test changes that."""

    def __init__(self, how: OnSigterm = OnSigterm.SUSPEND, seconds: float = WAIT, *, id: str = "job") -> None:
        self.id = self.name = id
        self.on_sigterm, self.sigterm_seconds = how, seconds
        self.requested: list[str] = []
        self.over = threading.Event()
        self.answer: Callable[[], None] = self.over.set

    @property
    def ended(self) -> bool:
        return self.over.is_set()

    def ask_to_end(self) -> None:
        self.requested.append("end")
        self.answer()

    def cancel(self, timeout: float) -> None:
        self.requested.append("cancel")
        self.over.set()


@pytest.fixture
def watch() -> Iterator[SigtermWatch]:
    # A job of another test that did not wait for its end may have left its handler.
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield SigtermWatch()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("how", [OnSigterm.SUSPEND, OnSigterm.DRAIN])
def test_job_ends_on_request_within_its_time(how: OnSigterm) -> None:
    job = Fake(how)
    bring_to_end(job, threading.Event())
    assert job.requested == ["end"]


def test_late_job_is_cancelled() -> None:
    late, hurried, cancelled = Fake(seconds=0.0), Fake(), Fake(OnSigterm.CANCEL)
    again = threading.Event()
    again.set()
    for job in (late, hurried):
        job.answer = lambda: None
    for job, event in ((late, threading.Event()), (hurried, again), (cancelled, threading.Event())):
        bring_to_end(job, event)
    assert [job.requested[-1] for job in (late, hurried, cancelled)] == ["cancel"] * 3
    assert cancelled.requested == ["cancel"]


def test_job_that_refuses_has_until_deadline(caplog: pytest.LogCaptureFixture) -> None:
    job = Fake()

    def refuse() -> None:
        # It drains, and ends by itself.
        threading.Timer(0.01, job.over.set).start()
        raise RequestRefusedError("the job is draining already")

    job.answer = refuse
    bring_to_end(job, threading.Event())
    assert job.requested == ["end"]
    assert "job: the job is draining already" in caplog.text


def test_second_signal_cancels_jobs(watch: SigtermWatch) -> None:
    quick, slow, slower, other = (Fake(seconds=9 * WAIT, id=id) for id in ("quick", "slow", "slower", "other"))
    heard = threading.Barrier(3)

    def wait_for_others() -> None:
        heard.wait(WAIT)

    slow.answer = slower.answer = wait_for_others
    for job in (quick, slow, slower, quick):
        watch.add(job)
    signal.raise_signal(signal.SIGTERM)
    assert quick.over.wait(WAIT)
    heard.wait(WAIT)
    assert not slow.ended
    assert not slower.ended
    signal.raise_signal(signal.SIGTERM)
    assert slow.over.wait(WAIT)
    assert slower.over.wait(WAIT)
    assert (quick.requested, slow.requested, slower.requested) == (["end"], ["end", "cancel"], ["end", "cancel"])
    assert all(watch.ended(job) for job in (quick, slow, slow, slower))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    # A job without a signal ends as usual.
    watch.add(other)
    other.over.set()
    assert not watch.ended(other)


def test_signal_during_installation_reaches_job(watch: SigtermWatch, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_signal_interrupts_wait_for_event(watch: SigtermWatch) -> None:
    job = Fake()
    watch.add(job)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert await_event(job.over)
    assert watch.ended(job)


def test_await_event_returns_whether_event_is_set() -> None:
    event = threading.Event()
    assert not await_event(event, 0.0)
    assert not await_event(event, 0.01)
    event.set()
    assert await_event(event)
    assert await_event(event, 0.0)


def test_handler_of_user_is_kept(watch: SigtermWatch) -> None:
    seen: list[int] = []

    def own(number: int, frame: Any) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGTERM, own)
    watch.add(Fake())
    assert signal.getsignal(signal.SIGTERM) is own
    signal.signal(signal.SIGTERM, before)
    # Also a handler that was installed later.
    job = Fake()
    watch.add(job)
    signal.signal(signal.SIGTERM, own)
    signal.raise_signal(signal.SIGTERM)
    job.over.set()
    assert not watch.ended(job)
    assert signal.getsignal(signal.SIGTERM) is own
    assert seen == [signal.SIGTERM]


def test_job_that_has_ended_gets_no_handler(watch: SigtermWatch) -> None:
    job = Fake()
    job.over.set()
    watch.add(job)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not watch.ended(job)


def test_no_handler_is_installed_on_other_threads(watch: SigtermWatch) -> None:
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
def test_signal_without_running_job_kills(what: str, code: int) -> None:
    """After the job's end, before anyone has waited for it; and in a forked child, which has no threads."""
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", _WITHOUT_A_JOB, what], cwd=root, timeout=WAIT).returncode == code


_OF_A_CHILD = """
import os, signal, sys
from tests.jobs.test_termination import WAIT, Fake, SigtermWatch
watch, of_parent, of_child = SigtermWatch(), Fake(id="of parent"), Fake(id="of child")
watch.add(of_parent)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
watch.add(of_child)
signal.raise_signal(signal.SIGTERM)
assert of_child.over.wait(WAIT)
assert watch.ended(of_child)
assert not of_parent.requested, "the parent's jobs end with the parent"
sys.exit(7)
"""


def test_signal_to_forked_child_ends_its_own_job() -> None:
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", _OF_A_CHILD], cwd=root, timeout=WAIT).returncode == 7
