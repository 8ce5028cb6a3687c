"""A job whose driver is killed continues by the command that its status prints, whatever the name of its folder."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.drivernote import driver_note_of, record_driver
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.words import silent
from tests.chaos.test_kills import kill_all
from tests.cli.test_copied_commands import commands_in
from tests.notes import noted
from tests.runner.test_steering import Job, expected
from tests.spark.streaming.fed import feed
from tests.waiting import until

_ROOT = Path(__file__).parents[2]
_SECONDS = 240.0
_NAME = """-it's "a" job; $HOME"""
_DRIVER = f"""
import sys
from pathlib import Path
from tests.runner.test_steering import Job

job = Job(Path(sys.argv[1]))
job.state = {_NAME!r}
job.submit().wait_until_finish()
"""


@pytest.mark.contract("STORE-05", "OPS-04")
def test_killed_job_resumes_by_the_printed_command(tmp_path: Path) -> None:
    job = Job(tmp_path)
    folder = FolderBlobs(tmp_path / _NAME)
    feed(job.source, 15)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PATH": path, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, str(tmp_path)], cwd=tmp_path, env=environment, start_new_session=True
    )
    try:
        until(lambda: len(job.panes()) == 3, "the first window", seconds=_SECONDS, process=driver)
    finally:
        kill_all(driver.pid)
        driver.wait()
    assert job.panes() == expected(0, 10)
    _age(folder)

    def in_a_shell(command: str) -> str:
        ran = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=_SECONDS
        )
        assert ran.returncode == 0, (command, ran.stderr)
        return ran.stdout

    printed = commands_in(in_a_shell(f"arcbeam status {shlex.quote(f'./{_NAME}')}"))
    resume = {command for command in printed if command.startswith("arcbeam resume ")}
    feed(job.source, 35, end=True)
    (command,) = resume
    in_a_shell(command)
    # The driver may have died before it committed what user code has noted.
    panes = job.panes()
    assert [pane for n, pane in enumerate(panes) if pane not in panes[:n]] == expected(0, 35)
    assert set(noted(job.read)) == set(range(35))
    assert status_in(folder).mode == "done"


def _age(folder: FolderBlobs) -> None:
    """Let the last note of the dead driver be older than any that a driver would leave."""
    head = known(read_newest(folder))  # type: ignore[arg-type]
    note = driver_note_of(folder, head)
    assert note is not None
    record_driver(folder, replace(note, time=Timestamp(note.time - 3_600_000_000)))
    assert silent(status_in(folder)) is not None
