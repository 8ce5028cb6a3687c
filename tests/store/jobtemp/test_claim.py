"""Folders of drivers: a live driver's stays, a dead one's is removed, and nothing is removed without evidence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from arcbeam.store.blobs import claims as claim
from arcbeam.store.jobtemp.claim import LOCK, Claim, sweep
from arcbeam.store.jobtemp.location import JobLocation

DRIVER = """
import sys
from arcbeam.store.jobtemp.claim import Claim
from arcbeam.store.jobtemp.location import JobLocation
location = JobLocation(sys.argv[1])
held = Claim(location)
location.put_bytes("side/1/x", b"x")
location.scratch_file().write_bytes(b"half")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that holds the folder "job"."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "job")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_folder_of_killed_driver_is_removed(driver: subprocess.Popen[str], tmp_path: Path) -> None:
    own = JobLocation.under(str(tmp_path), "own")
    held = Claim(own)
    own.put_bytes("a", b"")
    assert sweep(tmp_path) == []
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert sweep(tmp_path) == [tmp_path / "job"]
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    assert own.list() == ["a"], "the lock file is not one of its names"
    held.release()
    held.release()
    assert sweep(tmp_path) == [tmp_path / "own"]


def test_folder_without_evidence_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = claim._BOOT_ID.read_bytes().strip()
    for name, content in {"other": b"0" * 36, "empty": b"", "longer": boot + b"x"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / LOCK).write_bytes(content)
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / "unlocked").mkdir()
    (tmp_path / "file").write_bytes(boot)
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK).write_bytes(boot)
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / LOCK).symlink_to(elsewhere / LOCK)
    assert sweep(tmp_path) == []
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead" / LOCK).write_bytes(boot)
    (tmp_path / "dead" / "link").symlink_to(elsewhere)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert sweep(tmp_path) == [], "another user's"
    monkeypatch.undo()
    assert sweep(tmp_path) == [tmp_path / "dead"]
    assert (elsewhere / LOCK).exists()


def test_nothing_to_claim_or_sweep_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep(tmp_path / "nowhere") == []
    Claim(JobLocation("s3://bucket/job")).release()
    (tmp_path / "file").touch()
    Claim(JobLocation(str(tmp_path / "file" / "job"))).release()
    monkeypatch.setattr(claim, "_BOOT_ID", tmp_path / "none")
    Claim(JobLocation(str(tmp_path / "job"))).release()
    assert not (tmp_path / "job").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / LOCK).touch()
    assert sweep(tmp_path) == [], "a system without a boot id"
