"""The promises of a location, on each backend: a local folder, HDFS, an object store."""

from __future__ import annotations

import os
import pickle
import re
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.hadoop import HadoopBlobs
from arcbeam.store.blobs.private import own_folder
from arcbeam.store.jobtemp.framefile import FrameFileWriter
from arcbeam.store.jobtemp.jobblobs import RemoteBlobs
from arcbeam.store.jobtemp.location import JobLocation
from tests.golden import check_message
from tests.store.backends import Local, location_of


@pytest.fixture(params=["local", "hadoop", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> JobLocation:
    return location_of(request, tmp_path)


def test_bytes_are_read_back(location: JobLocation) -> None:
    assert not location.exists("a/b")
    location.put_bytes("a/b", b"one")
    assert location.exists("a/b")
    assert location.get_bytes("a/b") == b"one"


@pytest.mark.parametrize("size", [0, 10, 300_000])
def test_file_is_moved_and_published_whole(location: JobLocation, size: int) -> None:
    path = location.scratch_file()
    path.write_bytes(os.urandom(size))
    data = path.read_bytes()
    location.put_file(path, "side/3/x")
    assert not path.exists()
    assert location.get_bytes("side/3/x") == data
    assert location.local_copy("side/3/x").read_bytes() == data


def test_names_are_listed_by_prefix(location: JobLocation) -> None:
    assert location.list("a") == []
    for name in ("a/2", "a/1", "ab", "b/c/d"):
        location.put_bytes(name, b"")
    location.scratch_file().write_bytes(b"not published")
    assert location.list("a/") == ["a/1", "a/2"]
    assert location.list("a") == ["a/1", "a/2", "ab"]
    assert location.list("b/c") == ["b/c/d"]
    assert location.list() == ["a/1", "a/2", "ab", "b/c/d"]


def test_missing_file_is_named(location: JobLocation) -> None:
    with pytest.raises(StoreError, match=r"'side/1/gone' .*job"):
        location.get_bytes("side/1/gone")
    with pytest.raises(StoreError, match="'side/1/gone'"):
        location.local_copy("side/1/gone")


def test_errors_are_listed_earliest_first(location: JobLocation) -> None:
    assert location.errors() == []
    location.record_error("s1/../x", b"first")
    location.record_error("s0", b"second")
    assert location.errors() == [b"first", b"second"]


def test_delete_all_removes_everything(location: JobLocation, tmp_path: Path) -> None:
    location.put_bytes("a/b", b"1")
    location.local_copy("a/b")
    location.delete_all()
    assert location.list() == []
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    location.delete_all()


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a//b", "a/.hidden", "a/"])
def test_names_stay_inside(location: JobLocation, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        location.put_bytes(name, b"")


def test_local_location_pickles_and_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    location = JobLocation("job 1")
    assert location.url == str(tmp_path / "job 1")
    location.put_bytes("a", b"1")
    copy = pickle.loads(pickle.dumps(location))
    assert copy == location
    assert hash(copy) == hash(location)
    assert copy.get_bytes("a") == b"1"
    assert JobLocation(f"file://{tmp_path}/job%201") == location
    assert JobLocation.under(f"{tmp_path}/", "job 1") == location


def test_unknown_file_system_is_refused() -> None:
    with pytest.raises(StoreError, match="nowhere://host/x"):
        JobLocation("nowhere://host/x").exists("a")


def test_settings_of_url_follow_the_path(s3_endpoint: str) -> None:
    where = s3_endpoint.removeprefix("http://")
    root = f"s3://k:s@jobs/tmp/?region=us-east-1&scheme=http&endpoint_override={where}"
    location = JobLocation.under(root, "job-1")
    assert location.url.startswith("s3://k:s@jobs/tmp/job-1?region")
    location.put_bytes("a", b"1")
    assert JobLocation.under(root, "job-1").get_bytes("a") == b"1"
    assert not JobLocation.under(root, "job-2").exists("a")
    assert JobLocation.under("/tmp/why?", "job-1").url == "/tmp/why?/job-1"


def test_secrets_of_a_url_are_not_shown() -> None:
    location = JobLocation("s3://key:secret@bucket/x")
    assert "secret" not in repr(location) + str(location)
    assert pickle.loads(pickle.dumps(location)).url == "s3://key:secret@bucket/x"


def test_local_file_moves_between_file_systems(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system here")
    source = shared / f"arcbeam-test-{os.getpid()}"
    source.write_bytes(b"data")
    location = JobLocation(str(tmp_path / "job"))
    location.put_file(source, "x")
    assert not source.exists()
    assert location.get_bytes("x") == b"data"


class CountingFileSystem(Local):
    """Counts how often a file is opened for reading."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def open_input_file(self, path: str) -> Any:
        self.opened += 1
        return super().open_input_file(path)


def test_remote_file_is_downloaded_once(tmp_path: Path) -> None:
    handler = CountingFileSystem()
    filesystem, cache = fs.PyFileSystem(handler), tmp_path / "cache" / "j"
    locations = [
        JobLocation("test://x", blobs=RemoteBlobs(HadoopBlobs(filesystem, str(tmp_path / "remote"), "test"), cache))
        for _ in range(4)
    ]
    locations[0].put_bytes("side/1/a", b"data" * 1000)
    threads = [threading.Thread(target=location.local_copy, args=("side/1/a",)) for location in locations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handler.opened == 1
    assert locations[0].local_copy("side/1/a").read_bytes() == b"data" * 1000
    assert list((tmp_path / "cache" / "j" / "scratch").iterdir()) == []


@pytest.mark.contract("OPS-06")
@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_location_of_another_user_is_not_read(tmp_path: Path) -> None:
    JobLocation(str(tmp_path / "job")).put_bytes("plan", b"x")
    os.chown(tmp_path / "job", 54_321, -1)
    location = JobLocation(str(tmp_path / "job"))
    for use in (
        lambda: location.get_bytes("plan"),
        lambda: location.local_copy("plan"),
        lambda: location.put_bytes("plan", b"y"),
        lambda: location.put_file(tmp_path / "file", "plan"),
        location.scratch_file,
    ):
        with pytest.raises(StoreError) as raised:
            use()
    with pytest.raises(StoreError) as raised:
        location.get_bytes("plan")
    check_message("location-of-another-user", str(raised.value), TMP=tmp_path)


@pytest.mark.contract("OPS-06")
@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("theirs", ["", "jobs"])
def test_own_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = own_folder("jobs")
    assert folder == tmp_path / f"arcbeam-{os.getuid()}" / "jobs"
    for path in (folder, folder.parent):
        path.chmod(0o755)
    own_folder("jobs")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)] == [0o700, 0o700]
    os.chown(folder.parent / theirs, 54_321, -1)
    with pytest.raises(StoreError) as raised:
        own_folder("jobs")
    check_message(f"temporary-folder-of-another-user{'-jobs' if theirs else ''}", str(raised.value), TMP=tmp_path)


@pytest.mark.contract("OPS-06")
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_location_is_private(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        location = JobLocation(str(tmp_path / "new" / "job"))
        path = location.scratch_file()
        path.write_bytes(b"x")
        location.put_file(path, "side/3/x")
        location.put_bytes("plan", b"x")
        frames = FrameFileWriter(location, "frames")
        frames.append(b"x")
        frames.close()
        remote = RemoteBlobs(
            HadoopBlobs(fs.PyFileSystem(Local()), str(tmp_path / "hdfs"), "hdfs"), tmp_path / "c" / "d"
        )
        remote.put("plan", b"x")
        remote.local_copy("plan")
        remote.scratch()
    finally:
        os.umask(before)
    made = [path for folder in ("new", "c") for path in (tmp_path / folder, *(tmp_path / folder).rglob("*"))]
    assert len(made) > 8
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
