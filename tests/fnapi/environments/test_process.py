"""Worker processes: their end, however it comes, and what is said about it."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arcbeam.fnapi.environments.process import WorkerProcess, worker_arguments
from arcbeam.fnapi.lost import ProcessEnd
from tests.waiting import until

SECONDS = 20.0

_SLEEPERS = "setsid -w true; sh -c 'echo $$ > inner; exec sleep 100' & echo $$ > outer; wait"
"""A shell and its child, which has the same session."""


def _in(folder: Path, script: str) -> list[str]:
    """Return the command that runs a shell's script in a folder."""
    return ["sh", "-c", 'cd "$0" && ' + script, str(folder)]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _pids(folder: Path) -> list[int]:
    files = [folder / "inner", folder / "outer"]
    until(lambda: all(file.exists() and file.read_text().strip() for file in files))
    return [int(file.read_text()) for file in files]


@pytest.fixture
def ends() -> queue.SimpleQueue[ProcessEnd]:
    return queue.SimpleQueue()


def test_stopped_process_ends_with_its_children(tmp_path: Path, ends: queue.SimpleQueue[ProcessEnd]) -> None:
    process = WorkerProcess(_in(tmp_path, "echo {folder} > folder; " + _SLEEPERS), {}, ends.put)
    pids = _pids(tmp_path)
    folder = Path((tmp_path / "folder").read_text().strip())
    assert folder.is_dir()
    process.stop()
    until(lambda: not any(map(_lives, pids)))
    assert "'sh' has ended" in ends.get(timeout=SECONDS).why
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from arcbeam.fnapi.environments.process import WorkerProcess; "
        "WorkerProcess(sys.argv[1:], {}, print); time.sleep(100)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, *_in(tmp_path, _SLEEPERS)])
    try:
        pids = _pids(tmp_path)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until(lambda: not any(map(_lives, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_process_ends_when_its_supervisor_is_killed(tmp_path: Path, ends: queue.SimpleQueue[ProcessEnd]) -> None:
    command = _in(tmp_path, "echo $$ > inner; echo $$ > outer; exec sleep 100")
    process = WorkerProcess(command, {}, ends.put)
    pid, _ = _pids(tmp_path)
    os.kill(process._supervisor.pid, signal.SIGKILL)
    assert ends.get(timeout=SECONDS) == ProcessEnd("its process 'sh' has ended with status -9", "signal 9 (SIGKILL)")
    until(lambda: not _lives(pid))
    assert not Path(process._folder).exists()
    process.stop()


@pytest.mark.parametrize(
    ("command", "status", "reported"),
    [
        (["sh", "-c", "echo one; echo $WORD >&2; exit 3"], 3, ["one", "two"]),
        (["sh", "-c", "printf '%0900d' 0; echo : no module"], 0, [f"{'0' * 80} … {'0' * 209}: no module"]),
        (["/no/such/boot"], 127, ["cannot start '/no/such/boot': No such file or directory"]),
        (["sh", "-c", "kill -9 $$"], 137, []),
    ],
    ids=["fails", "long line", "does not exist", "killed"],
)
def test_end_is_described_with_last_lines(
    command: list[str], status: int, reported: list[str], ends: queue.SimpleQueue[ProcessEnd]
) -> None:
    process = WorkerProcess(command, {"WORD": "two"}, ends.put)
    how = "signal 9 (SIGKILL)" if status == 137 else f"exit status {status}"
    assert ends.get(timeout=SECONDS) == ProcessEnd(f"its process '{command[0]}' has ended with status {status}", how)
    assert list(process.last_lines()) == reported
    assert not Path(process._folder).exists()


def test_processes_do_not_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: queue.SimpleQueue[ProcessEnd]
) -> None:
    monkeypatch.chdir(tmp_path)
    boot = tmp_path / "boot"
    boot.write_text("#!/bin/sh\necho options > pipeline_options.json; pwd\n")
    boot.chmod(0o700)
    first, second = (WorkerProcess(["./boot"], {}, ends.put) for _ in range(2))
    for _ in range(2):
        ends.get(timeout=SECONDS)
    assert (first.last_lines(), second.last_lines()) == ((first._folder,), (second._folder,))
    assert [path.name for path in tmp_path.iterdir()] == ["boot"]


def test_arguments_are_those_of_boot_programs() -> None:
    assert worker_arguments("w", "localhost:1") == [
        "--id=w",
        "--provision_endpoint=localhost:1",
        "--control_endpoint=localhost:1",
        "--logging_endpoint=localhost:1",
        "--artifact_endpoint=localhost:1",
    ]
