"""Copies on a host: the processes that use them, and the removal of unused ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arcbeam.store.blobs import hostcopies
from arcbeam.store.blobs.hostcopies import IN_USE, hold, release, sweep

pytestmark = pytest.mark.contract("STORE-11")


def test_old_folder_in_use_stays(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    hold(folder)
    os.utime(folder / IN_USE, (0, 0))
    assert sweep(tmp_path, 0) == []
    release(folder)
    assert sweep(tmp_path, 0) == [folder]


def test_old_folder_of_killed_process_is_removed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from arcbeam.store.blobs.hostcopies import hold; "
        "hold(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert sweep(tmp_path, 0) == []
        process.kill()
        process.wait()
    assert sweep(tmp_path) == [], "it was used recently"
    assert sweep(tmp_path, 0) == [tmp_path / "a"]


def test_removed_folder_is_held_again(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    hold(folder)
    (folder / IN_USE).unlink()
    folder.rmdir()
    hold(folder)
    assert sweep(tmp_path, 0) == []
    release(folder)


def test_child_of_a_fork_does_not_hold_it(tmp_path: Path) -> None:
    hold(tmp_path / "a")
    if not (pid := os.fork()):
        os._exit(len(hostcopies._in_use._held))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sweep(tmp_path, 0) == []
    release(tmp_path / "a")


def test_folder_of_an_earlier_version_is_as_old_as_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "0-1").mkdir(parents=True)
    (folder / "0-1" / "data.mdb").write_bytes(b"")
    for path in (folder / "0-1", folder):
        os.utime(path, (0, 0))
    assert sweep(tmp_path) == []
    os.utime(folder / "0-1" / "data.mdb", (0, 0))
    assert sweep(tmp_path) == [folder]


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_links_and_folders_of_other_users_stay(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 54_321, -1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "link").symlink_to(tmp_path / "elsewhere")
    assert sweep(tmp_path / "copies", 0) == []
    sweep(tmp_path, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]
    assert sweep(tmp_path / "nowhere", 0) == []
