"""The promises of durable blobs, on every backend."""

from __future__ import annotations

import errno
import os
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import S3Store
from pyarrow import fs

from arcbeam.store.blobs import durable
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.blobs.durable import BlobInfo, ClearableBlobs, DurableBlobs
from arcbeam.store.blobs.errors import AwayError, DeterminateError, IndeterminateError, MissingFileError, StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.blobs.hadoop import HadoopBlobs
from arcbeam.store.blobs.objects import ObjectBlobs
from tests.golden import check_message
from tests.store.backends import RenamesOnce

pytestmark = pytest.mark.contract("STORE-07")


def test_bytes_are_read_whole_and_in_ranges(blobs: DurableBlobs) -> None:
    blobs.put("a/b", b"0123456789")
    assert blobs.get("a/b") == b"0123456789"
    assert blobs.get_range("a/b", 3, 4) == b"3456"
    assert blobs.get_range("a/b", 8, 100) == b"89", "to the end"
    assert blobs.get_range("a/b", 10, 1) == b""
    assert blobs.get_range("a/b", 500, 1) == b""
    assert blobs.get_range("a/b", 2, 0) == b""
    blobs.put("a/b", b"other")
    assert blobs.get("a/b") == b"other"


def test_file_is_read_in_pieces(blobs: DurableBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_PART_BYTES", 4)
    for size in (0, 1, 3, 4, 5, 8, 9):
        data = bytes(range(size))
        blobs.put("a/b", data)
        assert b"".join(durable.pieces(blobs, "a/b", size)) == data
        assert b"".join(durable.pieces(blobs, "a/b", size + 2)) == data
        if size:
            assert len(b"".join(durable.pieces(blobs, "a/b", size - 1))) == size
    with pytest.raises(MissingFileError):
        list(durable.pieces(blobs, "a/c", 0))


def test_several_names_are_deleted_together(blobs: DurableBlobs) -> None:
    for name in ("a/1", "a/2", "a/3"):
        blobs.put(name, b"x")
    blobs.delete_each(["a/1", "a/gone", "a/3"])
    assert [info.name for info in blobs.list("a")] == ["a/2"]
    blobs.delete_each([])
    blobs.delete_each(["a/2"])
    assert list(blobs.list("a")) == []


def test_name_is_created_once(blobs: DurableBlobs) -> None:
    assert blobs.create("manifests/1", b"one")
    assert not blobs.create("manifests/1", b"two")
    assert not blobs.create("manifests/1", b"one"), "also with the same bytes"
    assert blobs.get("manifests/1") == b"one"
    blobs.delete("manifests/1")
    assert blobs.create("manifests/1", b"three")


def test_one_of_many_concurrent_creates_succeeds(blobs: DurableBlobs) -> None:
    barrier, created = threading.Barrier(4), []

    def create(i: int) -> None:
        barrier.wait()
        if blobs.create("x", str(i).encode()):
            created.append(i)

    threads = [threading.Thread(target=create, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(i).encode() for i in created] == [blobs.get("x")]


@pytest.mark.parametrize("size", [0, 10, 300_000])
def test_put_file_keeps_local_file(blobs: DurableBlobs, tmp_path: Path, size: int) -> None:
    path = tmp_path / "local"
    data = os.urandom(size)
    path.write_bytes(data)
    blobs.put_file("files/x", path)
    blobs.put_file("files/x", path)
    assert blobs.get("files/x") == data
    path.unlink()
    assert blobs.get("files/x") == data


def test_names_below_a_folder_are_listed(blobs: DurableBlobs) -> None:
    assert list(blobs.list("a")) == []
    for name in ("a/2", "a/1", "ab/0", "b/c/d"):
        blobs.put(name, b"123")
    assert list(blobs.list("a")) == [BlobInfo("a/1", 3), BlobInfo("a/2", 3)]
    assert [info.name for info in blobs.list("")] == ["a/1", "a/2", "ab/0", "b/c/d"]
    assert [info.name for info in blobs.list("a", after="a/1")] == ["a/2"]
    blobs.delete("a/1")
    blobs.delete("a/1")
    assert [info.name for info in blobs.list("a")] == ["a/2"]


def test_missing_file_is_named(blobs: DurableBlobs) -> None:
    for read in (lambda: blobs.get("a/gone"), lambda: blobs.get_range("a/gone", 0, 1)):
        with pytest.raises(MissingFileError, match="'a/gone'") as missing:
            read()
        assert str(blobs) in missing.value.message


def test_missing_folder_differs_from_missing_file(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "job")
    blobs.put("x", b"1")
    (tmp_path / "job").rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(AwayError, match=r"'x' .*'.*job'"):
            blobs.get("x")
        # In the second round there is a file in its place.
        (tmp_path / "job").touch()
    (tmp_path / "job").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "job")
    assert blobs.get("x") == b"1"
    (tmp_path / "job" / "x").unlink()
    with pytest.raises(MissingFileError) as lost:
        blobs.get("x")
    assert not isinstance(lost.value, AwayError)


def test_lost_folder_is_not_created_again(tmp_path: Path) -> None:
    writer = FolderBlobs(tmp_path / "job")
    writer.put("x", b"1")
    reader = FolderBlobs(tmp_path / "job")
    reader.get("x")
    (tmp_path / "job").rename(tmp_path / "elsewhere")
    opened = open_blobs(str(tmp_path / "job"), made=True), open_blobs(f"file://{tmp_path / 'job'}", made=True)
    for blobs in (writer, reader, pickle.loads(pickle.dumps(writer)), *opened):
        for write in (lambda blobs=blobs: blobs.put("y", b""), lambda blobs=blobs: blobs.create("y", b"")):
            with pytest.raises(DeterminateError, match=rf"'y' .*'{tmp_path}/job'"):
                write()
    assert not (tmp_path / "job").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "job")
    assert writer.create("y", b"2")
    writer.clear()
    writer.put("x", b"3")
    assert FolderBlobs(tmp_path / "job").get("x") == b"3"


def test_folder_lost_during_write_is_not_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FolderBlobs(tmp_path / "job")
    write = blobs._written

    def and_away(data: bytes) -> Path:
        scratch = write(data)
        (tmp_path / "job").rename(tmp_path / "elsewhere")
        return scratch

    for put in (blobs.put, blobs.create):
        monkeypatch.setattr(blobs, "_written", and_away)
        with pytest.raises(DeterminateError, match=rf"'a/b' .*'{tmp_path}/job'"):
            put("a/b", b"1")
        assert not (tmp_path / "job").exists()
        monkeypatch.setattr(blobs, "_written", write)
        (tmp_path / "elsewhere").rename(tmp_path / "job")
        assert put("a/b", b"1") in (None, True)
        blobs.delete("a/b")


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a//b", "a/.hidden", "a/"])
def test_names_stay_inside(memory: DurableBlobs, tmp_path: Path, name: str) -> None:
    for blobs in (memory, FolderBlobs(tmp_path)):
        with pytest.raises(ValueError, match=repr(name)):
            blobs.put(name, b"")


def test_write_is_synced_and_leaves_no_scratch(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "job")
    blobs.put("a/b/c", b"1")
    blobs.create("a/b/d", b"2")
    blobs.create("a/b/d", b"3")
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["c", "d"]


def test_refused_write_did_not_happen(tmp_path: Path) -> None:
    (tmp_path / "job").write_bytes(b"a file where a folder should be")
    blobs = FolderBlobs(tmp_path / "job")
    for write in (lambda: blobs.put("x", b""), lambda: blobs.create("x", b"")):
        with pytest.raises(DeterminateError, match=r"'x' .*job"):
            write()


def test_refusals_have_remedies(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(b"a file")
    (tmp_path / "job" / "a" / "b").mkdir(parents=True)
    file, job = FolderBlobs(tmp_path / "passwd"), FolderBlobs(tmp_path / "job")
    refusals: list[Callable[[], object]] = [
        lambda: list(file.list("epochs")),
        lambda: file.put("x", b""),
        lambda: job.get("a/b"),
        lambda: job.delete("a/b"),
        lambda: job.put("a/b", b""),
    ]
    texts = []
    for refused in refusals:
        with pytest.raises(DeterminateError) as raised:
            refused()
        texts.append(str(raised.value))
    check_message("folder-refusals", "\n".join(texts), TMP=tmp_path, SCRATCH=re.compile(r"\.scratch/[0-9a-f-]+"))


def test_error_of_scratch_file_does_not_fail_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, unlink = FolderBlobs(tmp_path / "job"), Path.unlink
    (tmp_path / "file").write_bytes(b"3")

    def refused(path: Path, missing_ok: bool = False) -> None:
        if ".scratch" in path.parts:
            raise PermissionError(errno.EACCES, "refused", str(path))
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        assert blobs.create("m/1", b"1")
        assert not blobs.create("m/1", b"2")
        blobs.put("m/2", b"2")
        blobs.put_file("m/3", tmp_path / "file")
        blobs.put_file("m/3", tmp_path / "file")
    assert [(info.name, blobs.get(info.name)) for info in blobs.list("")] == [
        ("m/1", b"1"),
        ("m/2", b"2"),
        ("m/3", b"3"),
    ]


def test_missing_answer_is_indeterminate() -> None:
    store = S3Store(
        "jobs",
        endpoint="http://127.0.0.1:1",
        access_key_id="k",
        secret_access_key="s",
        region="x",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    with pytest.raises(IndeterminateError, match=r"'m/1' .*'s3://jobs'"):
        ObjectBlobs(store, "s3://jobs").create("m/1", b"x")


def test_forked_child_refuses_object_store(memory: DurableBlobs) -> None:
    memory.put("a", b"1")
    pid = os.fork()
    if not pid:
        try:
            memory.get("a")
        except DeterminateError as e:
            os._exit(0 if str(memory) in e.message else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert memory.get("a") == b"1"


def test_rename_without_answer_counts_as_ours(tmp_path: Path) -> None:
    handler = RenamesOnce()
    blobs = HadoopBlobs(fs.PyFileSystem(handler), str(tmp_path), "hdfs://test")
    handler.silent_moves = 1
    assert blobs.create("m/1", b"ours")
    assert not blobs.create("m/1", b"ours")


def test_object_store_is_opened_by_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = {"access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}
    by_config = open_blobs("s3://jobs/by-url/job", {"endpoint": s3_endpoint, **credentials})
    assert by_config.create("a/b", b"1")
    for name, value in {**credentials, "endpoint": s3_endpoint, "allow_http": "true"}.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    by_environment = open_blobs("s3://jobs/by-url/job/")
    assert [info.name for info in by_environment.list("a")] == ["a/b"]
    assert not by_environment.create("a/b", b"2")


def test_s3_url_may_have_credentials_and_endpoint(s3_endpoint: str) -> None:
    where = s3_endpoint.removeprefix("http://")
    url = f"s3://k:s@jobs/by-url/other?region=us-east-1&scheme=http&endpoint_override={where}"
    blobs = open_blobs(url)
    assert blobs.create("a/b", b"1")
    assert open_blobs(url).get("a/b") == b"1"
    assert "k:s@" not in str(blobs)


def test_clear_removes_all_repeatedly(blobs: ClearableBlobs) -> None:
    for name in ("a/b", "a/c/d", "e"):
        blobs.put(name, b"1")
    blobs.clear()
    assert list(blobs.list("")) == []
    blobs.clear()
    blobs.put("a/b", b"2")
    assert [info.name for info in blobs.list("")] == ["a/b"]


def test_scheme_chooses_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(open_blobs("job")) == f"{tmp_path}/job"
    assert str(open_blobs(f"file://{tmp_path}/a%20job")) == f"{tmp_path}/a job"
    store = open_blobs("s3://bucket/some/job", {"region": "eu-north-1"})
    assert isinstance(store, ObjectBlobs)
    assert str(store) == "s3://bucket/some/job"
    with pytest.raises(StoreError, match="'ftp://host/x'"):
        open_blobs("ftp://host/x")
    with pytest.raises(StoreError, match=r"'s3://…@bucket/x'") as refused:
        open_blobs("s3://key:secret@bucket/x", {"no_such_setting": 1})
    assert "secret" not in str(refused.value)
