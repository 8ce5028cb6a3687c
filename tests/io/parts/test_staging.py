"""Staged files on each file system: complete or invisible, never duplicated, and swept if not published."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import HadoopFileSystemOptions, PipelineOptions

from arcbeam.io.parts import filesystems
from arcbeam.io.parts.filesystems import FileSystemStaging
from arcbeam.io.parts.objects import ObjectStaging
from arcbeam.io.parts.staging import Staged, Staging, origin_of
from arcbeam.model.attempts import Attempt
from tests.io.parts.conftest import Elsewhere

Names = Callable[[], list[str]]
pytestmark = pytest.mark.contract("END-06")


def attempt(micro_batch: int, token: str = "t") -> Attempt:
    return Attempt("job-1", micro_batch, (0, 0), token)


def staged(staging: Staging, name: str, data: bytes = b"data", micro_batch: int = 1) -> Staged:
    writing = staging.begin(attempt(micro_batch), name)
    writing.write(data)
    made = writing.finish()
    return Staged(made.staged, made.size, name, made.upload)


def left(staging: Staging) -> list[tuple[str, int]]:
    return sorted((each.job, each.micro_batch) for each in staging.leftovers())


def test_staged_file_appears_complete_when_published(staging: Staging, names: Names) -> None:
    one, other = staged(staging, "a/b/one", b"1" * 1000), staged(staging, "other", b"2")
    assert names() == []
    assert left(staging) == [("job-1", 1), ("job-1", 1)]
    staging.publish([one])
    assert names() == ["a/b/one"]
    assert staging.get("a/b/one") == b"1" * 1000
    staging.publish([one, other])
    assert names() == ["a/b/one", "other"]
    assert left(staging) == []


def test_publishing_again_changes_nothing(staging: Staging, names: Names) -> None:
    file = staged(staging, "one")
    for _ in range(3):
        staging.publish([Staged.of(file.plain())])
    assert names() == ["one"]
    assert staging.get("one") == b"data"


def test_existing_file_is_replaced(staging: Staging) -> None:
    staging.publish([staged(staging, "one", b"before")])
    staging.publish([staged(staging, "one", b"after")])
    assert staging.get("one") == b"after"


def test_missing_file_warns_or_fails(staging: Staging) -> None:
    file = staged(staging, "one")
    staging.sweep("job-1", 1)
    with pytest.warns(UserWarning, match=f"neither[^|]*{staging.path}/one"):
        staging.publish([file])
    staging.again = False
    with pytest.raises(FileNotFoundError, match=f"neither.*{staging.path}/one.*all hosts"):
        staging.publish([file])


def test_sweep_removes_files_up_to_micro_batch(staging: Staging, names: Names) -> None:
    kept = staged(staging, "kept", micro_batch=3)
    for micro_batch in (1, 2):
        staged(staging, f"of{micro_batch}", micro_batch=micro_batch)
    foreign = staging.begin(Attempt("job-2", 1, (0,), "x"), "foreign")
    foreign.write(b"x")
    foreign.finish()
    staging.sweep("job-1", 2)
    assert left(staging) == [("job-1", 3), ("job-2", 1)]
    staging.publish([kept])
    assert names() == ["kept"]
    staging.sweep("job-1", 9)
    staging.sweep("job-2", 1)
    assert left(staging) == []
    staging.sweep("job-3", 1)


def test_unfinished_file_is_invisible_and_swept(staging: Staging, names: Names) -> None:
    writing = staging.begin(attempt(1), "one")
    writing.write(b"half")
    assert names() == []
    staging.sweep("job-1", 1)
    assert left(staging) == []
    abandoned = staging.begin(attempt(2), "one")
    abandoned.write(b"half")
    abandoned.abandon()
    assert left(staging) == []
    assert names() == []


def test_small_files_are_written_atomically(staging: Staging, names: Names) -> None:
    assert staging.get("x/_SUCCESS") is None
    for data in (b"one", b"two"):
        staging.put("x/_SUCCESS", data, ".arcbeam/job-1/1-t-s")
        assert staging.get("x/_SUCCESS") == data
    assert names() == ["x/_SUCCESS"]
    assert left(staging) == []


@pytest.mark.parametrize("name", ["one", ".arcbeam/one", ".arcbeam/j/x-1", "a/.arcbeam/j/1-x-0"])
def test_foreign_names_are_ignored(name: str) -> None:
    assert origin_of(name) is None


# ------------------------------------------------------------------------------------------------- other file systems


class Store(Elsewhere):
    """Behaves like an object store: a rename is a copy over the target, and then a removal."""

    between: Callable[[], None] | None = None

    @classmethod
    def scheme(cls) -> str:
        return "store"

    def _local(self, path: str) -> str:
        return path.removeprefix("gs://")

    def rename(self, sources: Any, destinations: Any) -> None:
        for source, destination in zip(map(self._local, sources), map(self._local, destinations), strict=True):
            between, self.between = self.between, None
            if between:
                between()
            shutil.copyfile(source, destination)
            os.remove(source)


def test_concurrent_publishers_on_store_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(PipelineOptions([]))
    monkeypatch.setattr(store, "scheme", lambda: "gs")
    monkeypatch.setattr(filesystems, "_filesystem", lambda path, options: store)
    one, other = (FileSystemStaging(f"gs://{tmp_path}/out", {}) for _ in range(2))
    one.publish([staged(one, "one", b"before")])
    file = staged(one, "one", b"after")
    exists, requested = store.exists, []

    def ask(path: str) -> bool:
        found = exists(path)
        requested.append(path)
        if path == one.full(file.staged) and len(requested) == 1:
            # The other publisher has copied the file, but has not removed the staged one yet.
            shutil.copyfile(f"{tmp_path}/out/{file.staged}", f"{tmp_path}/out/one")
            store.between = lambda: os.remove(f"{tmp_path}/out/{file.staged}")
        return found

    monkeypatch.setattr(store, "exists", ask)
    with pytest.raises(OSError, match="No such file"):
        one.publish([file])
    assert one.get("one") == b"after"
    one.publish([file])
    assert other.get("one") == b"after"


class Shared(Elsewhere):
    """Behaves like HDFS. Another process may act before a call, or the call is the last one of a killed process."""

    def __init__(self, before: int = -1, intrusion: Callable[[], None] = lambda: None, last: int = 1 << 30) -> None:
        super().__init__(PipelineOptions([]))
        self._before, self._intrusion, self._last, self._calls = before, intrusion, last, 0

    @classmethod
    def scheme(cls) -> str:
        return "shared"

    def _called(self) -> None:
        self._calls += 1
        if self._calls == self._before:
            self._intrusion()
        if self._calls > self._last:
            raise ConnectionError("killed")

    def exists(self, path: str) -> bool:
        self._called()
        return super().exists(path)

    def rename(self, sources: Any, destinations: Any) -> None:
        self._called()
        super().rename(sources, destinations)

    def delete(self, paths: Any) -> None:
        self._called()
        super().delete(paths)


@pytest.mark.parametrize("there", [True, False])
def test_concurrent_publishers_by_rename_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    def at(files: Elsewhere) -> FileSystemStaging:
        monkeypatch.setattr(filesystems, "_filesystem", lambda path, options: files)
        return FileSystemStaging(f"elsewhere://{tmp_path}/out", {})

    whole = at(Elsewhere(PipelineOptions([])))
    for before in range(1, 12):
        for last in range(1, 12):
            for own in range(before, 12):
                if there:
                    whole.publish([staged(whole, "one", b"before")])
                file = staged(whole, "one", f"{before}, {last}, {own}".encode())

                def other(file: Staged = file, last: int = last) -> None:
                    with contextlib.suppress(OSError):
                        at(Shared(last=last)).publish([file])

                with contextlib.suppress(OSError):
                    at(Shared(before, other, own)).publish([file])
                again = at(Elsewhere(PipelineOptions([])))
                again.again = False  # a missing file would be an error
                again.publish([file])
                assert whole.get("one") == f"{before}, {last}, {own}".encode()
                whole.delete(["one"])
                whole.sweep("job-1", 1 << 30)
                assert not list(whole.leftovers())


def test_file_system_has_options_of_its_job(tmp_path: Path) -> None:
    before = FileSystems._pipeline_options
    for host in ("one", "two"):
        made = FileSystemStaging(f"elsewhere://{tmp_path}/out", {"hdfs_host": host, "hdfs_port": "1"})
        options = made._files.options.view_as(HadoopFileSystemOptions)
        assert (options.hdfs_host, options.hdfs_port) == (host, "1")
    assert FileSystems._pipeline_options is before
    with pytest.raises(ValueError, match="nowhere"):
        FileSystemStaging("nowhere://x", {})


# ------------------------------------------------------------------------------------------------------------ S3 only


@pytest.fixture
def s3(s3_path: str, s3_options: dict[str, Any]) -> ObjectStaging:
    return ObjectStaging(s3_path, s3_options)


def uploads(s3: ObjectStaging) -> list[str]:
    listed = s3._s3.list_multipart_uploads(Bucket="jobs", Prefix=s3._prefix)
    return [each["UploadId"] for each in listed.get("Uploads", ())]


def test_large_file_is_uploaded_in_parts(s3: ObjectStaging) -> None:
    writing = s3.begin(attempt(1), "large")
    for _ in range(21):
        writing.write(b"x" * (1 << 20))
        assert writing.held == writing.size % (8 << 20)
    file = writing.finish()
    assert len(file.upload["tags"]) == 3
    s3.publish([file])
    assert s3._size(s3._key("large")) == 21 << 20
    assert uploads(s3) == []


class Killed(BaseException):
    """Simulates kill -9."""


@pytest.mark.parametrize("call", ["first record", "begin", "second record", "upload"])
@pytest.mark.parametrize("happened", [False, True])
def test_sweep_finds_killed_upload(
    s3: ObjectStaging, call: str, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = staged(s3, "one", micro_batch=2)
    calls = {"first record": ("put_object", 1), "second record": ("put_object", 2)}
    name, turn = calls.get(call, ("create_multipart_upload" if call == "begin" else "upload_part", 1))
    of, seen = getattr(s3._s3, name), []

    def dying(**arguments: Any) -> Any:
        seen.append(name)
        if len(seen) < turn:
            return of(**arguments)
        if happened:
            of(**arguments)
        raise Killed

    monkeypatch.setattr(s3._s3, name, dying)
    with pytest.raises(Killed):
        staged(s3, "one", micro_batch=1)
    monkeypatch.undo()
    s3.sweep("job-1", 1)
    # The upload of the other micro-batch has the same key, and was about to be created when this one was killed.
    assert uploads(s3) == [other.upload["id"]]
    assert left(s3) == [("job-1", 2)]
    s3.publish([other])
    assert s3.get("one") == b"data"


@pytest.mark.parametrize("noted", [False, True])
def test_sweep_spares_new_upload_of_same_key(s3: ObjectStaging, noted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(**_: Any) -> Any:
        raise Killed

    of, going = s3._uploads, []
    with monkeypatch.context() as patch:
        patch.setattr(s3._s3, "create_multipart_upload", killed)
        with pytest.raises(Killed):
            s3.begin(attempt(1), "one")

    def begin_meanwhile(key: str) -> Any:
        if noted:
            going.append(s3.begin(attempt(2), "one"))
        else:
            record = s3._key(".arcbeam/job-1/2-t-live")
            s3._s3.put_object(Bucket="jobs", Key=record, Body=json.dumps({"key": key, "upload": None}).encode())
            s3._s3.create_multipart_upload(Bucket="jobs", Key=key)
        return of(key)

    monkeypatch.setattr(s3, "_uploads", begin_meanwhile)
    s3.sweep("job-1", 1)
    assert len(uploads(s3)) == 1
    if noted:
        (writing,) = going
        writing.write(b"data")
        s3.publish([writing.finish()])
        assert s3.get("one") == b"data"


def test_newest_of_small_files_set_aside_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers die one after the other, each at another call, and leave files aside."""

    def at(files: Elsewhere) -> FileSystemStaging:
        monkeypatch.setattr(filesystems, "_filesystem", lambda path, options: files)
        return FileSystemStaging(f"elsewhere://{tmp_path}/out", {})

    whole, most = at(Elsewhere(PipelineOptions([]))), 0
    for case, lasts in enumerate(itertools.product(range(1, 12), repeat=2)):
        name = f"small{case}"
        whole.put(name, b"first", ".arcbeam/job-1/1-t-0")
        current = b"first"
        for number, last in enumerate(lasts):
            data = b"%d" % number
            with contextlib.suppress(OSError):
                at(Shared(last=last)).put(name, data, ".arcbeam/job-1/1-t-0")
            found = whole.get(name)
            assert found in (current, data), lasts
            current = found
            most = max(most, len(whole._aside(name)))
    assert most > 1
