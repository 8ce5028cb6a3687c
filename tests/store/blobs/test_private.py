"""The permissions of new files, and the owners whose files are accepted."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from arcbeam.store.blobs.backends import check_owner
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.blobs.private import NotOursError, check_ours, group_rights, make_private
from tests.golden import check_message

pytestmark = pytest.mark.contract("OPS-06")

_OTHER_USER = 54_321


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def filled(root: Path, tmp_path: Path) -> tuple[Path, ...]:
    """Return everything in a folder to which each method has written."""
    blobs = FolderBlobs(root, sync=False)
    blobs.put("a/b/put", b"1")
    blobs.create("a/created", b"2")
    for rights in (0o600, 0o644):
        source = tmp_path / f"source-{rights:o}"
        source.touch()
        source.chmod(rights)
        for _ in range(2):
            blobs.put_file(f"c/file-{rights:o}", source)
        assert mode(source) == rights
    return (root, *sorted(root.rglob("*")))


def test_folder_is_private_with_any_umask(tmp_path: Path) -> None:
    for path in filled(tmp_path / "below" / "job", tmp_path):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert mode(tmp_path / "below") == 0o700


def test_setgid_folder_is_shared_with_its_group(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    for path in filled(shared / "job", tmp_path):
        assert mode(path) == (0o2770 if path.is_dir() else 0o660), path
        assert path.stat().st_gid == shared.stat().st_gid


def test_setgid_folder_limits_group_rights(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2757)
    for path in filled(shared / "job", tmp_path):
        assert mode(path) == (0o2750 if path.is_dir() else 0o640), path


@pytest.mark.skipif(shutil.which("setfacl") is None, reason="there is no setfacl")
def test_default_acl_decides_who_reads(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    subprocess.run(["setfacl", "-d", "-m", "u:12345:rx", str(shared)], check=True)
    for path in filled(shared / "job", tmp_path):
        listed = subprocess.run(["getfacl", "-cn", str(path)], check=True, capture_output=True, text=True).stdout
        assert "user:12345:r-x" in listed
        assert "other::---" in listed
        assert "#effective:---" not in listed


def test_folder_without_setgid_is_not_shared(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert group_rights(tmp_path) == 0


def test_files_of_libraries_become_private(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.touch()
    path.chmod(0o666)
    make_private(path)
    assert mode(path) == 0o600
    path.chmod(0o777)
    make_private(path)
    assert mode(path) == 0o700
    make_private(tmp_path / "gone")


def test_own_files_are_accepted(tmp_path: Path) -> None:
    check_ours(tmp_path)
    (tmp_path / "a").touch()
    (tmp_path / "a").chmod(0o644)
    check_ours(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        check_ours(tmp_path / "gone")


def test_folder_writable_by_all_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(NotOursError):
        check_ours(tmp_path)
    tmp_path.chmod(0o1777)
    check_ours(tmp_path)


def test_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(NotOursError):
        check_ours(tmp_path / "link")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_files_of_another_user_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "file", tmp_path / "folder"):
        path.touch() if path.name == "file" else path.mkdir()
        os.chown(path, _OTHER_USER, -1)
        with pytest.raises(NotOursError):
            check_ours(path)
        assert [p.name for p in tmp_path.rglob(".owner-*")] == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_job_in_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    check_owner(str(folder))
    check_owner("s3://bucket/job")
    folder.mkdir()
    folder.chmod(0o755)
    (tmp_path / "link").symlink_to(folder)
    check_owner(str(tmp_path / "link"))
    os.chown(folder, _OTHER_USER, -1)
    for url in (str(folder), f"file://{folder}", str(tmp_path / "link")):
        with pytest.raises(StoreError):
            check_owner(url)
    with pytest.raises(StoreError) as raised:
        check_owner(str(folder))
    check_message("job-folder-of-another-user", str(raised.value), FOLDER=folder)
    os.chown(folder, 0, -1)
    folder.chmod(0o777)
    with pytest.raises(StoreError) as raised:
        check_owner(str(folder))
    check_message("job-folder-writable-by-all", str(raised.value), FOLDER=folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_files_in_shared_folder_are_accepted(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, -1, os.getegid())
    shared.chmod(0o2770)
    path = shared / "file"
    path.touch()
    path.chmod(0o660)
    os.chown(path, _OTHER_USER, -1)
    check_ours(path)
    path.chmod(0o666)
    with pytest.raises(NotOursError):
        check_ours(path)
