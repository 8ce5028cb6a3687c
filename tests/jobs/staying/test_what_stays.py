"""The effect of a request on a server's job, and what stays on disk: the table of docs/reference/what-stays.md."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from arcbeam.errors import ArcbeamError, JobCancelledError, JobNotFoundError, RequestRefusedError, SubmissionError
from arcbeam.jobs import lifecycle
from arcbeam.jobs.execution import JobEvents, JobState, MetricsNow, StagedFile, StagedFileKind, Submission
from arcbeam.jobs.lifecycle import Jobs
from arcbeam.jobs.registry import Registry
from arcbeam.store.log.requests import RequestKind
from tests.jobs.fakes import WAIT
from tests.jobs.staying.tables import cells_for

DAY = 24 * 3600.0


@dataclass
class Runs:
    """Executors whose runs stop where the test requires, keep state in their home, and accept requests.

    Attributes:
        stop_at: the state that a run reaches by itself.
        ends: its final state there; None: it runs until a request ends it.
        stubborn: it ignores requests.
        slow: a suspension waits for the running micro-batch. The job is suspending until `orders` lets it end.
    """

    stop_at: JobState = JobState.RUNNING
    ends: JobState | None = None
    stubborn: bool = False
    slow: bool = False
    orders: list[threading.Event] = field(default_factory=list)
    made: Executor = field(init=False)

    def __call__(self) -> Executor:
        self.made = Executor(self)
        return self.made


class Executor:
    """One run. SUBTLE: as the real one, it creates its home when it takes over the job, and removes it when done."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._order, self._wanted = runs, threading.Event(), JobState.CANCELLED
        self._begun = self._suspends = False
        self._home: Path | None = None

    def check(self, submission: Submission) -> None:
        pass

    def resumable_state(self, submission: Submission) -> JobState | None:
        home = submission.home
        assert home is not None
        if not home.exists():
            return None
        return JobState.STOPPED if (home / "suspended").exists() else JobState.RUNNING

    def run(self, submission: Submission, events: JobEvents) -> JobState | None:
        runs, home = self._runs, submission.home
        runs.orders.append(self._order)
        assert home is not None
        if runs.stop_at is not JobState.STARTING:
            home.mkdir(parents=True, exist_ok=True)
            (home / "suspended").unlink(missing_ok=True)
            self._begun, self._home = True, home
            events.running()
            if runs.stop_at is JobState.DRAINING:
                events.turned(JobState.DRAINING)
        if runs.ends is None:
            assert self._order.wait(WAIT)
        ends = runs.ends or self._wanted
        if ends is JobState.CANCELLED:
            raise JobCancelledError("interrupted")
        if ends is JobState.FAILED:
            raise ArcbeamError("failed")
        if ends is JobState.STOPPED:
            (home / "suspended").touch()
        if ends is JobState.DONE:
            (home / "suspended").unlink(missing_ok=True)
            home.rmdir()
        return ends

    def ask(self, what: RequestKind, savepoint: str = "") -> str:
        if (
            not self._begun
            or (self._runs.stop_at is JobState.DRAINING and what is RequestKind.SUSPEND)
            or (self._suspends and what is RequestKind.DRAIN)
            or self.is_suspended()
            or self._runs.stubborn
        ):
            raise RequestRefusedError("the request cannot succeed")
        if what is RequestKind.SUSPEND and self._runs.slow:
            self._suspends, self._wanted = True, JobState.STOPPED
        elif what in (RequestKind.SUSPEND, RequestKind.DRAIN):
            self._end(JobState.STOPPED if what is RequestKind.SUSPEND else JobState.DRAINED)
        return ""

    def commit(self) -> None:
        """Commit the last micro-batch of a suspending job; its last calls follow later."""
        assert self._suspends
        assert self._home is not None
        (self._home / "suspended").touch()

    def is_suspended(self) -> bool:
        """Return whether its last micro-batch is committed."""
        return self._home is not None and (self._home / "suspended").exists()

    def _end(self, state: JobState) -> None:
        self._wanted = state
        self._order.set()

    def status(self) -> Mapping[str, Any]:
        return {}

    def metrics(self) -> MetricsNow | None:
        return None

    def end(self, again: threading.Event) -> None:
        self.cancel()

    def cancel(self) -> None:
        if self.is_suspended():
            # It ends in the same state, only earlier.
            self._order.set()
        elif not self._runs.stubborn:
            self._end(JobState.CANCELLED)


class Server:
    """A server's jobs; `restart` acts as after the server's death."""

    def __init__(self, folder: Path, runs: Runs) -> None:
        self.folder, self.runs, self.now = folder, runs, 1.0
        self.jobs = self._opened()

    def _opened(self) -> Jobs:
        return Jobs(Registry(self.folder / "jobs.sqlite"), self.runs, self.folder / "staged", {}, lambda: self.now)

    def restart(self) -> None:
        # The threads of a real server die with it. Here they end later, with a closed registry.
        self.jobs.registry.close()
        self.runs = Runs()
        self.jobs = self._opened()
        self.jobs.resume()

    def close(self) -> None:
        self.runs.stubborn = False
        self.jobs.close(WAIT)
        self.jobs.registry.close()

    def prepared(self) -> str:
        id = self.jobs.prepare("words", b"pipeline", {}, b"", needs_files=True)
        folder = self.jobs.folder(id)
        folder.mkdir(parents=True)
        (folder / "module.py").write_text("pass")
        self.jobs.staged(id, [StagedFile("module.py", folder / "module.py", StagedFileKind.FILE, "role", "0", ("e",))])
        return id

    def begun(self, id: str, until: JobState) -> None:
        """Start a job, and wait until it is in a state."""
        seen = len(self.states(id))
        self.jobs.run(id, {})
        self.wait(id, lambda states: until in states[seen:])

    def states(self, id: str) -> list[JobState]:
        return [event.state for event in self.jobs.registry.events(id, 0, states_only=True)]  # type: ignore[union-attr]

    def wait(self, id: str, over: Callable[[list[JobState]], bool]) -> None:
        while True:
            version = self.jobs.registry.version()
            if over(states := self.states(id)):
                return
            self.jobs.registry.wait(version, WAIT)
            assert self.jobs.registry.version() != version, f"no further event: {states}"

    def left(self, id: str) -> str:
        """Return the job's state, and the letters of what exists of it."""
        try:
            state = str(self.jobs.registry.job(id).state)
        except JobNotFoundError:
            state = "forgotten"
        there = {"R": state != "forgotten", "F": self.jobs.folder(id).exists()}
        there["S"] = (self.folder / "state" / id).exists()
        return f"{state} {''.join(letter for letter, is_there in there.items() if is_there)}".strip()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, Runs())
    runs = server.runs
    yield server
    server.close()
    for order in runs.orders:
        order.set()


def put_into(server: Server, state: str) -> str:
    """Return a job in a state, by the name of its row."""
    id = server.prepared()
    runs = server.runs
    match state:
        case "prepared":
            pass
        case "starting":
            runs.stop_at = JobState.STARTING
            server.begun(id, JobState.STARTING)
        case "starting again":
            runs.ends = JobState.STOPPED
            server.begun(id, JobState.STOPPED)
            runs.ends, runs.stop_at = None, JobState.STARTING
            (server.folder / "state" / id / "suspended").unlink()
            server.begun(id, JobState.STARTING)
        case "running":
            server.begun(id, JobState.RUNNING)
        case "draining":
            runs.stop_at = JobState.DRAINING
            server.begun(id, JobState.DRAINING)
        case "suspending" | "suspending, with its last commit":
            runs.slow = True
            server.begun(id, JobState.RUNNING)
            run = runs.made
            server.jobs.ask(id, RequestKind.SUSPEND)
            if state != "suspending":
                run.commit()
        case "cancelling":
            runs.stubborn = True
            server.begun(id, JobState.RUNNING)
            server.jobs.cancel(id)
        case _:
            runs.ends = JobState(state.upper() if state != "suspended" else "STOPPED")
            server.begun(id, runs.ends)
            runs.ends = None
    return id


def suspended(server: Server, id: str) -> None:
    """Wait until a job is suspended after a request."""
    for order in server.runs.orders:
        order.set()
    server.wait(id, lambda states: states[-1] is JobState.STOPPED)


def ask(server: Server, id: str, request: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a request by the name of its column, and wait until its effects have ended."""
    jobs = server.jobs
    match request:
        case "run":
            server.begun(id, JobState.RUNNING)
        case "savepoint":
            jobs.ask(id, RequestKind.SAVEPOINT, "safe")
            if server.runs.slow:
                suspended(server, id)
        case "suspend":
            jobs.ask(id, RequestKind.SUSPEND)
            suspended(server, id)
        case "drain":
            jobs.ask(id, RequestKind.DRAIN)
            server.wait(id, lambda states: states[-1] in (JobState.DRAINED, JobState.DONE))
        case "cancel":
            server.runs.stubborn = False
            jobs.cancel(id)
            for order in server.runs.orders:
                order.set()
            server.wait(id, lambda states: states[-1].terminal)
        case "newer jobs":
            monkeypatch.setattr(lifecycle, "KEPT_JOBS", 3)
            server.now += 2 * DAY
            for _ in range(4):
                jobs.prepare("newer", b"", {}, b"", needs_files=False)
        case "restart":
            server.restart()
            if server.jobs.registry.job(id).state is JobState.STARTING:
                server.wait(id, lambda states: states[-1] is JobState.RUNNING)


@pytest.mark.contract("OPS-02", "END-03", "END-04")
@pytest.mark.parametrize(("state", "request_", "expected"), list(cells_for(__file__)))
def test_request_leaves_what_the_table_says(
    server: Server, state: str, request_: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = put_into(server, state)
    before = server.left(id)
    if expected.startswith("refused"):
        with pytest.raises((RequestRefusedError, SubmissionError)):
            ask(server, id, request_, monkeypatch)
        assert server.left(id) == before, "a request that is refused changes nothing"
        assert f"refused {before.partition(' ')[2]}" == expected
    else:
        ask(server, id, request_, monkeypatch)
        assert server.left(id) == expected


def test_the_table_has_every_state_and_request() -> None:
    cells = list(cells_for(__file__))
    assert len(cells) == 13 * 7
    named = {state.partition(" ")[0].strip(",").upper() for state, _, _ in cells}
    assert named - {"PREPARED", "SUSPENDING", "SUSPENDED"} == {state.name for state in JobState} - {"STOPPED"}


@pytest.mark.parametrize("jobs", [1005])
def test_suspended_job_survives_a_thousand_newer_ones(server: Server, jobs: int) -> None:
    """The job can still be run with its files and state."""
    id = put_into(server, "suspended")
    ended = put_into(server, "done")
    server.now += 2 * DAY
    for _ in range(jobs):
        server.jobs.registry.add(f"newer-{_}", "newer", b"", b"", "[]", server.jobs.now())
    server.jobs.prepare("last", b"", {}, b"", needs_files=False)
    assert server.left(ended) == "forgotten"
    assert server.left(id) == "STOPPED RFS"
    server.begun(id, JobState.RUNNING)
