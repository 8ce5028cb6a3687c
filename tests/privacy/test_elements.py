"""Other users of a machine can read no element of a job, in no file that any of its processes writes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from arcbeam.jobs.environments import EMBEDDED_TYPE
from tests.jobs.test_sigterm import _CLI, Driver
from tests.notes import noted
from tests.privacy import marked
from tests.spark.streaming.fed import feed

pytestmark = [pytest.mark.contract("OPS-06"), pytest.mark.long]

_PROGRAM = "from tests.privacy.marked import main; main()"
_LOCAL = ("--spark_master=local[2]", "--group_memory_mb=1", *marked.PLAIN)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for all files that the processes of a test write, as open to others as the system's is."""
    for name in ("tmp", "home", "cwd", "out", "server", "submitted"):
        (tmp_path / name).mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("_JAVA_OPTIONS", f"-Djava.io.tmpdir={tmp_path / 'tmp'}")
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    return tmp_path


@contextmanager
def running(place: Path, *arguments: str, code: str = _PROGRAM, log: str = ".") -> Iterator[Driver]:
    with Driver(place / log, *arguments, code=code, cwd=place / "cwd") as driver:
        yield driver


def look(place: Path, driver: Driver, *among: str) -> None:
    """Check all files of a job while it runs; some of those that hold elements must match each pattern."""
    assert marked.written_elsewhere(driver.process.pid, place) == set()
    found = dict(marked.holding(place))
    assert [str(path) for path, is_open in found.items() if is_open] == []
    names = [str(path.relative_to(place)) for path in found]
    assert [each for each in among if not any(re.search(each, name) for name in names)] == [], names


_SHUFFLED = r"arcbeam-\d+/spark/blockmgr-"


@pytest.mark.parametrize("variable", [False, True])
def test_elements_of_a_batch_job_are_private(place: Path, monkeypatch: pytest.MonkeyPatch, variable: bool) -> None:
    if variable:
        (place / "disk").mkdir()
        (place / "disk").chmod(0o1777)
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(place / "disk"))
    with running(place, "bounded", str(place), *_LOCAL) as driver:
        driver.until(lambda: bool(noted(place / "out")))
        look(place, driver, f"{'disk' if variable else 'tmp'}/{_SHUFFLED}")
        (place / "gate").touch()
        assert driver.process.wait(300) == 0, driver.output


def test_elements_of_a_streaming_job_are_private(place: Path) -> None:
    feed(place / "source", 15)
    state = f"--checkpoint_dir={place / 'state'}"
    with running(place, "streaming", str(place), "--streaming", "--shards=2", state, *_LOCAL) as driver:
        driver.until(lambda: bool(noted(place / "out")))
        look(place, driver, _SHUFFLED)
        driver.process.send_signal(signal.SIGTERM)
        driver.process.wait(300)
        assert [str(path) for path, is_open in marked.holding(place) if is_open] == []


@pytest.mark.parametrize("workers", [EMBEDDED_TYPE, "LOOPBACK"])
def test_elements_of_a_job_server_are_private(place: Path, workers: str) -> None:
    feed(place / "source", 15)
    serve = ("serve", "--port=0", f"--folder={place / 'server' / 'jobs'}", "--", *_LOCAL)
    with running(place, *serve, code=_CLI, log="server") as server:
        server.until(lambda: "serving Beam's Job API on " in server.output)
        endpoint = server.output.partition("Job API on ")[2].split()[0]
        submission = ("--runner=PortableRunner", f"--job_endpoint={endpoint}", f"--environment_type={workers}")
        quick = "--experiments=disable_logging_submission_environment"

        def submitted(kind: str, *options: str, until: Callable[[], bool]) -> None:
            arguments = (kind, str(place), *submission, quick, *options)
            with running(place, *arguments, log="submitted") as program:
                program.until(until)
                look(place, server, _SHUFFLED)
                assert marked.written_elsewhere(program.process.pid, place) == set()
                if kind == "bounded":
                    (place / "gate").touch()
                    assert program.process.wait(300) == 0, program.output

        submitted("bounded", until=lambda: bool(noted(place / "out")))
        for note in (place / "out").iterdir():
            note.unlink()
        submitted("streaming", "--streaming", "--shards=2", until=lambda: bool(noted(place / "out")))
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(300)


def test_search_finds_what_others_can_read(tmp_path: Path) -> None:
    for name, mode, around in (("open", 0o644, 0o755), ("file", 0o640, 0o755), ("folder", 0o644, 0o750)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "inner").mkdir()
        path = tmp_path / name / "inner" / "file"
        path.write_text(f"before {marked.MARK}-1")
        path.chmod(mode)
        (tmp_path / name).chmod(around)
    (tmp_path / "other").write_text("mark")
    assert {path.parents[1].name: is_open for path, is_open in marked.holding(tmp_path)} == {
        "open": True,
        "file": False,
        "folder": False,
    }
    with open(tmp_path / "other", "a"):
        assert str(tmp_path / "other") in marked.written_elsewhere(os.getpid(), tmp_path / "open")
        assert str(tmp_path / "other") not in marked.written_elsewhere(os.getpid(), tmp_path)
