"""A folder keeps no files of writes that failed, or whose writers were killed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore
from pyarrow import fs

from arcbeam.store.blobs import fragments
from arcbeam.store.blobs.errors import DeterminateError, StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.blobs.fragments import SCRATCH, Fragment, tidy
from arcbeam.store.blobs.hadoop import HadoopBlobs
from arcbeam.store.blobs.objects import ObjectBlobs
from arcbeam.store.blobs.private import new_file
from arcbeam.store.log.sweep import Sweeper
from tests.golden import check_message
from tests.store.backends import RenamesOnce
from tests.store.samples import opened

pytestmark = pytest.mark.contract("STORE-08")

_DAYS_AGO = (1_000_000_000, 1_000_000_000)


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "job" / SCRATCH
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of one megabyte."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user or system cannot mount a tmpfs")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_full_disk_leaves_no_fragment_and_is_named(small_disk: Path, tmp_path: Path) -> None:
    blobs, source = FolderBlobs(small_disk / "job"), tmp_path / "source"
    source.write_bytes(bytes(10 << 20))
    blobs.put("a", b"small")
    with pytest.raises(DeterminateError) as of_put:
        blobs.put("b", bytes(10 << 20))
    with pytest.raises(DeterminateError):
        blobs.create("b", bytes(10 << 20))
    with pytest.raises(DeterminateError) as of_file:
        blobs.put_file("b", source)
    assert files_below(small_disk) == ["a"]
    assert blobs.create("c", bytes(500_000)), "the space is free again"
    blobs.delete("c")
    free = os.statvfs(small_disk)
    check_message(
        "folder-full",
        str(of_put.value),
        FOLDER=small_disk / "job",
        FREE=f"{free.f_bavail * free.f_frsize:,} of",
    )
    assert str(of_put.value) == str(of_file.value), "the folder's disk, not the source's"


def test_full_disk_removes_fragments_of_dead_writers(small_disk: Path) -> None:
    blobs = FolderBlobs(small_disk / "job")
    blobs.put("a", b"small")
    dead = Fragment(small_disk / "job" / SCRATCH)
    os.write(dead.descriptor, bytes(800_000))
    with pytest.raises(DeterminateError):
        blobs.put("b", bytes(500_000))
    dead.close()
    blobs.put("b", bytes(500_000))
    assert files_below(small_disk) == ["a", "b"]


_OPERATIONS = ("write", "fsync", "replace", "link", "open", "mkdir", "unlink")


@pytest.mark.parametrize("operation", _OPERATIONS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_failed_operation_leaves_no_fragment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, error: int
) -> None:
    """Each operation fails once, at its first, second, … call."""
    source = tmp_path / "source"
    source.write_bytes(b"of a file")
    writes: list[Callable[[FolderBlobs], object]] = [
        lambda blobs: blobs.put("a/b", b"bytes"),
        lambda blobs: blobs.create("a/b", b"bytes"),
        lambda blobs: blobs.put_file("a/b", source),
    ]
    real = getattr(os, operation)
    for number, write in enumerate(writes):
        for failing in range(8):
            root, left = tmp_path / f"{number}-{failing}", [failing]

            def fail(*args: Any, left: list[int] = left, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] == -1:
                    raise OSError(error, os.strerror(error), str(args[0]))
                return real(*args, **kwargs)

            with monkeypatch.context() as patched:
                patched.setattr(os, operation, fail)
                try:
                    write(FolderBlobs(root))
                    failed = False
                except StoreError:
                    failed = True
            blobs = FolderBlobs(root)
            blobs.tidy()  # what could not be removed then
            assert files_below(root) in ([], ["b"])
            if not failed:
                assert blobs.get("a/b") in (b"bytes", b"of a file")
            if left[0] >= 0:
                break


def test_failed_write_removes_its_own_fragment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FolderBlobs(tmp_path / "job")
    for operation in ("write", "fsync"):

        def fail(*args: Any) -> Any:
            raise OSError(errno.EIO, "input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(os, operation, fail)
            for write in (blobs.put, blobs.create):
                with pytest.raises(StoreError):
                    write("a", b"bytes")
        assert files_below(tmp_path) == []


def test_unreadable_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeterminateError) as raised:
        FolderBlobs(tmp_path / "job").put_file("a", tmp_path / "gone")
    check_message("folder-source-unreadable", str(raised.value), TMP=tmp_path)


def test_fragment_of_live_writer_stays(scratch: Path) -> None:
    writer = Fragment(scratch)
    os.utime(writer.path, _DAYS_AGO)
    assert tidy(scratch) == []
    writer.close()
    assert tidy(scratch) == [writer.path]


def test_fragment_that_was_removed_before_its_lock_is_made_again(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def removed(path: Path) -> int:
        descriptor = new_file(path)
        made.append(path)
        if len(made) == 1:
            path.unlink()
        return descriptor

    monkeypatch.setattr(fragments, "new_file", removed)
    writer = Fragment(scratch)
    assert writer.path == made[1]
    assert writer.path.exists()
    writer.close()


def test_fragment_of_killed_process_is_removed(scratch: Path) -> None:
    code = (
        "import sys, pathlib; from arcbeam.store.blobs.fragments import Fragment; "
        "f = Fragment(pathlib.Path(sys.argv[1])); print(f.path, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(scratch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        assert tidy(scratch) == []
        process.kill()
        process.wait()
    assert tidy(scratch) == [path]


def test_old_fragment_of_other_host_is_removed(scratch: Path) -> None:
    names = (f"{uuid.uuid4().hex}-{uuid.uuid4().hex}", uuid.uuid4().hex)
    for name in names:
        (scratch / name).write_bytes(b"half")
    (scratch / "notes").write_bytes(b"of somebody")
    os.utime(scratch / "notes", _DAYS_AGO)
    assert tidy(scratch) == []
    for name in names:
        os.utime(scratch / name, _DAYS_AGO)
    assert tidy(scratch, of_others=False) == []
    assert sorted(tidy(scratch)) == sorted(scratch / name for name in names)
    assert files_below(scratch) == ["notes"]


def test_write_fails_without_its_fragment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, replace = FolderBlobs(tmp_path / "job"), os.replace

    def removed_before(source: Path, target: Path) -> None:
        source.unlink()
        replace(source, target)

    monkeypatch.setattr(os, "replace", removed_before)
    with pytest.raises(DeterminateError):
        blobs.put("a", b"bytes")
    assert files_below(tmp_path) == []


def test_sweep_removes_fragments_of_dead_writers(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "job", sync=False)
    log = opened(blobs)
    live, dead = (Fragment(tmp_path / "job" / SCRATCH) for _ in range(2))
    dead.close()
    Sweeper(log).sweep()
    assert files_below(tmp_path / "job" / SCRATCH) == [live.path.name]
    live.close()


def test_old_fragments_on_hdfs_are_removed(tmp_path: Path) -> None:
    blobs = HadoopBlobs(fs.PyFileSystem(RenamesOnce()), str(tmp_path), "hdfs://test")
    blobs.put("a/b", b"bytes")
    old, new, other = (tmp_path / "a" / name for name in (f".b.{uuid.uuid4().hex}", f".c.{uuid.uuid4().hex}", ".notes"))
    for path in (old, new, other):
        path.write_bytes(b"half")
    for path in (old, other, tmp_path / "a" / "b"):
        os.utime(path, _DAYS_AGO)
    blobs.tidy()
    assert files_below(tmp_path) == sorted(["b", new.name, ".notes"])


def test_object_store_has_no_fragments() -> None:
    blobs = ObjectBlobs(MemoryStore(), "memory://")
    blobs.put("a", b"bytes")
    blobs.tidy()
    assert [info.name for info in blobs.list("")] == ["a"]
