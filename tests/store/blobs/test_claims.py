"""Work folders are removed after their process, however it ends."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from arcbeam.store.blobs.claims import ProcessFolder, WorkFolder, remove_all, work_folder

pytestmark = pytest.mark.contract("STORE-11")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's work folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"arcbeam-{os.getuid()}" / "work"


def test_work_folder_goes_with_its_block(work: Path) -> None:
    with work_folder("staging") as folder:
        (folder / "a").write_bytes(b"x")
        assert [path.name.partition("-")[0] for path in work.iterdir()] == ["staging"]
        for path in (folder, *folder.parents[:3]):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert list(work.iterdir()) == []


def test_next_work_folder_removes_that_of_killed_process(work: Path) -> None:
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]; from arcbeam.store.blobs.claims import WorkFolder; "
        "folder = WorkFolder('staging'); print(folder.path, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(work.parents[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        with work_folder("build"):
            assert theirs.is_dir()
        process.kill()
        process.wait()
    ours = WorkFolder("build")
    assert [path.name for path in work.iterdir()] == [ours.path.parent.name]
    ours.remove()
    ours.remove()
    assert list(work.iterdir()) == []


def test_process_folder_is_created_once_per_process(work: Path) -> None:
    folder = ProcessFolder("scratch")
    path = folder.path()
    assert folder.path() == path
    if not (pid := os.fork()):
        other = folder.path()
        remove_all()
        os._exit(0 if other != path and path.is_dir() and not other.exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert path.is_dir()
    folder.remove()
    assert list(work.iterdir()) == []


def test_interrupted_removal_is_completed_by_next_sweep(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = WorkFolder("scratch")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.remove()
    folder._claim.release()  # as the end of the process does
    with work_folder("build"):
        assert not folder.path.parent.exists()
