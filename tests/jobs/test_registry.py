"""Records survive a restart, and only one process writes."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from arcbeam.errors import JobNotFoundError, SetupError
from arcbeam.jobs.execution import JobState, Level
from arcbeam.jobs.registry import MessageLogged, Metrics, Registry, StateChanged
from tests.golden import check_message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / "jobs.sqlite"


@pytest.fixture
def registry(path: Path) -> Iterator[Registry]:
    registry = Registry(path)
    yield registry
    registry.close()


def add(registry: Registry, id: str = "j-1", at: int = 100) -> None:
    registry.add(id, "words", b"pipeline", b"options", None, at)


def test_records_survive_reopening(registry: Registry, path: Path) -> None:
    add(registry)
    registry.set_files("j-1", "[]")
    assert registry.transition("j-1", JobState.STARTING, {JobState.STOPPED}, 200)
    registry.log("j-1", Level.WARNING, "slow", 300)
    registry.set_metrics("j-1", [b"a"], [b"c", b"d"])
    before = registry.job("j-1"), registry.events("j-1", 0), registry.metrics("j-1"), registry.pipeline("j-1")
    registry.close()
    again = Registry(path)
    assert (again.job("j-1"), again.events("j-1", 0), again.metrics("j-1"), again.pipeline("j-1")) == before
    again.close()
    assert before[0].state is JobState.STARTING
    assert before[0].files == "[]"
    assert before[1] == [
        StateChanged(1, JobState.STOPPED, 100),
        StateChanged(2, JobState.STARTING, 200),
        MessageLogged(3, Level.WARNING, "slow", 300),
    ]
    assert before[2] == Metrics((b"a",), (b"c", b"d"))
    assert before[3] == b"pipeline"


def test_transition_requires_allowed_state(registry: Registry) -> None:
    add(registry)
    assert not registry.transition("j-1", JobState.RUNNING, {JobState.STARTING}, 200)
    assert registry.job("j-1").state is JobState.STOPPED
    assert len(registry.events("j-1", 0)) == 1


def test_start_is_that_of_the_first_run(registry: Registry) -> None:
    add(registry)
    add(registry, "j-2")
    assert registry.started("j-1") == 0
    stopped, running = {JobState.STOPPED}, {JobState.RUNNING}
    for id, state, before, at in (
        ("j-1", JobState.STARTING, stopped, 200),
        ("j-2", JobState.STARTING, stopped, 210),
        ("j-2", JobState.RUNNING, {JobState.STARTING}, 220),
        ("j-1", JobState.RUNNING, {JobState.STARTING}, 300),
        # Suspended, and resumed by the server.
        ("j-1", JobState.STOPPED, running, 400),
        ("j-1", JobState.STARTING, stopped, 500),
        ("j-1", JobState.RUNNING, {JobState.STARTING}, 600),
        ("j-1", JobState.DONE, running, 700),
    ):
        assert registry.transition(id, state, before, at)
    assert (registry.started("j-1"), registry.started("j-2"), registry.started("j-3")) == (300, 220, 0)


def test_events_continue_after_last_one_seen(registry: Registry) -> None:
    add(registry)
    registry.log("j-1", Level.BASIC, "one", 1)
    registry.log("j-1", Level.BASIC, "two", 2)
    events = registry.events("j-1", 0)
    assert registry.events("j-1", events[1].seq) == events[2:]
    assert registry.events("j-1", 0, states_only=True) == events[:1]


def test_message_after_end_is_dropped(registry: Registry) -> None:
    add(registry)
    registry.transition("j-1", JobState.CANCELLED, {JobState.STOPPED}, 2)
    assert not registry.log("j-1", Level.BASIC, "late", 3)
    assert len(registry.events("j-1", 0)) == 2


def test_metrics_are_replaced(registry: Registry) -> None:
    add(registry)
    assert registry.metrics("j-1") == Metrics((), ())
    registry.set_metrics("j-1", [b"1"], [])
    registry.set_metrics("j-1", [b"2"], [b"3"])
    assert registry.metrics("j-1") == Metrics((b"2",), (b"3",))


def test_unknown_job_is_named(registry: Registry) -> None:
    for ask in (registry.job, registry.pipeline, registry.metrics):
        with pytest.raises(JobNotFoundError, match="'j-9'"):
            ask("j-9")


def test_old_ended_jobs_are_forgotten_with_events(registry: Registry) -> None:
    for id in ("ended", "running", "prepared", "new"):
        add(registry, id, at=100)
    registry.transition("ended", JobState.FAILED, {JobState.STOPPED}, 100)
    registry.transition("running", JobState.RUNNING, {JobState.STOPPED}, 100)
    assert registry.forget(keep=1, prepared_before=50) == ["ended"]
    assert registry.forget(keep=1, prepared_before=150) == ["prepared"]
    assert [job.id for job in registry.jobs()] == ["running", "new"]
    assert registry.events("ended", 0) == []


def test_suspended_job_is_kept_whether_it_was_seen_running(registry: Registry) -> None:
    for id in ("prepared", "suspended", "newest"):
        registry.add(id, id, b"", b"", "[]", at=1)
    registry.transition("suspended", JobState.STARTING, [JobState.STOPPED], at=2)
    registry.transition("suspended", JobState.STOPPED, [JobState.STARTING], at=3)
    assert registry.forget(1, prepared_before=10) == ["prepared"]


def test_write_ends_wait(registry: Registry) -> None:
    version = registry.version()
    add(registry)
    registry.wait(version, seconds=20)
    assert registry.version() != version


@pytest.mark.contract("OPS-05")
def test_registry_is_readable_for_owner_only(registry: Registry, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_second_server_is_refused(registry: Registry, path: Path) -> None:
    with pytest.raises(SetupError) as refused:
        Registry(path)
    check_message("registry-in-use", str(refused.value), PATH=path)


def test_other_file_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("no database " * 100)
    with pytest.raises(SetupError, match=str(path)):
        Registry(path)


def test_registry_of_another_version_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=7")
    database.close()
    with pytest.raises(SetupError, match="7, not 1"):
        Registry(path)


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=str(tmp_path / "file")):
        Registry(tmp_path / "file" / "jobs.sqlite")
