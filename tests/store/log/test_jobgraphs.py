"""The job graph is stored whole beside the state, and copied with a savepoint."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import DamagedFileError, NewerFormatError
from arcbeam.store.blobs.fileheader import file_header
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.savepoints import copy_savepoint, path_of, pinned, split_path
from arcbeam.store.manifest.jobgraphfile import JobGraph, JobGraphFile, decode, encode
from arcbeam.store.manifest.names import program_epoch
from arcbeam.testing.blobs import MemoryBlobs
from tests.store.samples import opened

pytestmark = pytest.mark.contract("STORE-05")

GOLDEN = [Path(__file__).parents[1] / "manifest" / "golden" / f"program-{version}" for version in (1, 2)]
"""Written by `encode` of the job graph below when the format had that version. They must never be written again."""

FILE = JobGraphFile("x.zip", "ab" * 32, 9, f"programs/files/00000003-{'ab' * 32}")
PROGRAM = JobGraph(
    "words",
    b"\x00proto\xff",
    {"shards": 3, "spark_conf": ["a=b"]},
    {"archives": ["x.zip"]},
    (FILE,),
    {"python": "3.11", "beam": "2.77.0", "arcbeam": "0.1"},
)


def test_job_graph_is_read_back_by_name() -> None:
    name, data = encode(PROGRAM, 7)
    assert decode(data, name, "here") == PROGRAM
    assert encode(PROGRAM, 7) == (name, data)
    assert name.startswith("programs/00000007-")
    assert program_epoch(name) == 7
    assert program_epoch(FILE.blob) == 3
    assert program_epoch("programs/" + "ab" * 16) is None


def test_order_of_options_does_not_change_job_graph() -> None:
    options = dict(reversed(PROGRAM.options.items()))
    assert encode(replace(PROGRAM, options=options), 7) == encode(PROGRAM, 7)


def test_existing_job_graph_is_not_written_again() -> None:
    blobs, program = MemoryBlobs(), replace(PROGRAM, files=())
    name = jobgraphs.keep(blobs, program, {}, 2, "")
    whole = blobs.get(name)
    written: list[str] = []

    class Written(MemoryBlobs):
        def put(self, name: str, data: bytes) -> None:
            written.append(name)
            super().put(name, data)

    again = Written()
    assert jobgraphs.keep(again, program, {}, 2, "") == name
    assert jobgraphs.keep(again, program, {}, 2, "") == name
    assert written == []
    again.delete(name)
    again.create(name, whole[:-1])
    assert jobgraphs.keep(again, program, {}, 2, "") == name
    assert (written, again.get(name)) == ([name], whole)


def test_all_versions_of_job_graph_are_read() -> None:
    of_1, of_2 = (decode(path.read_bytes(), "p", "here") for path in GOLDEN)
    assert of_2 == PROGRAM
    # Names of files contained only their digest.
    assert of_1 == replace(PROGRAM, files=(replace(FILE, blob="programs/files/" + "ab" * 32),))


def test_damaged_or_newer_job_graph_is_refused() -> None:
    name, data = encode(PROGRAM, 1)
    for at in range(len(data)):
        with pytest.raises(DamagedFileError, match=f"'{name}' in 's3://x'"):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], name, "s3://x")
        with pytest.raises(DamagedFileError):
            decode(data[:at], name, "here")
    with pytest.raises(NewerFormatError, match=r" 3; .* 2\n"):
        decode(file_header(b"arcprogr", 3) + struct.pack("<I", 0), name, "here")


@pytest.mark.contract("STORE-07")
def test_job_graph_is_stored_once_and_copied(blobs: DurableBlobs, tmp_path: Path) -> None:
    path, empty = tmp_path / "x.zip", tmp_path / "nothing"
    path.write_bytes(b"zip" * 5)
    empty.write_bytes(b"")
    files = {"x.zip": path, "nothing": empty}
    described = tuple(jobgraphs.described(name, file) for name, file in files.items())
    program = JobGraph("words", b"proto", files=described)
    name = jobgraphs.keep(blobs, program, files, 1, "")
    path.unlink()
    assert jobgraphs.keep(blobs, program, files, 1, "") == name, "an existing one is not written again"
    assert jobgraphs.keep(blobs, program, files, 2, name) == name, "nor by the next driver"
    log = opened(blobs, program=lambda *_: name)
    log.propose(pinned(log.draft(Timestamp(1)), "safe"))
    assert opened(blobs).head.program == name, "a driver without a job graph keeps the present one"
    target = FolderBlobs(tmp_path / "copy", sync=False)
    copy_savepoint(blobs, log.head, "safe", target, tmp_path / "scratch")
    kept = jobgraphs.read(target, opened(target).head.program)
    assert replace(kept, files=described) == program
    got: list[bytes] = []
    jobgraphs.fetch(target, kept.files[0], got.append)
    assert b"".join(got) == b"zip" * 5
    assert inspect(target, check=True).problems == ()
    target.put(kept.files[0].blob, b"other")
    with pytest.raises(DamagedFileError, match=r"'x\.zip'"):
        jobgraphs.fetch(target, kept.files[0], got.append)
    problems = inspect(target, check=True).problems
    assert problems is not None
    assert [problem for problem in problems if "x.zip" in problem]


@pytest.mark.contract("STORE-07")
@pytest.mark.parametrize("damage", [b"", b"zip" * 6, None])
def test_new_submission_repairs_job_graph(blobs: DurableBlobs, tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(b"zip" * 5)
    program = JobGraph("words", b"proto", files=(jobgraphs.described("x.zip", path),))
    name = jobgraphs.keep(blobs, program, {"x.zip": path}, 1, "")
    for each in (name, jobgraphs.read(blobs, name).files[0].blob):
        blobs.delete(each) if damage is None else blobs.put(each, damage)
        name = jobgraphs.keep(blobs, program, {"x.zip": path}, 2, name)
        file = jobgraphs.read(blobs, name).files[0]
        assert replace(program, files=(file,)) == jobgraphs.read(blobs, name)
        assert blobs.get(file.blob) == b"zip" * 5


class Metered(MemoryBlobs):
    """Counts the bytes that are read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self.wrote = 0

    def get(self, name: str) -> bytes:
        data = super().get(name)
        self.read += len(data)
        return data

    def get_range(self, name: str, start: int, length: int) -> bytes:
        data = self.data[name][start : start + length] if name in self.data else super().get(name)
        self.read += len(data)
        return data

    def put_file(self, name: str, path: Path) -> None:
        self.wrote += path.stat().st_size
        super().put_file(name, path)


def test_start_does_not_read_job_graph_files(tmp_path: Path) -> None:
    blobs, path = Metered(), tmp_path / "x.zip"
    path.write_bytes(b"z" * 1_000_000)
    program = JobGraph("words", b"proto", files=(jobgraphs.described("x.zip", path),))
    name = jobgraphs.keep(blobs, program, {"x.zip": path}, 1, "")
    blobs.read = 0
    other = jobgraphs.keep(blobs, replace(program, pipeline=b"changed"), {"x.zip": path}, 2, name)
    assert other != name
    assert (blobs.read < 10_000, blobs.wrote) == (True, 1_000_000)
    # So a changed file of the same length is detected by its reader, and by a check.
    file = jobgraphs.read(blobs, name).files[0]
    blobs.put(file.blob, b"Z" * 1_000_000)
    assert jobgraphs.keep(blobs, program, {"x.zip": path}, 2, name) == name
    with pytest.raises(DamagedFileError, match=r"'x\.zip'"):
        jobgraphs.fetch(blobs, file, len)
    blobs.delete(file.blob)
    mended = jobgraphs.read(blobs, jobgraphs.keep(blobs, program, {"x.zip": path}, 2, name)).files[0]
    assert blobs.get(mended.blob) == b"z" * 1_000_000


def test_path_of_savepoint_is_split() -> None:
    for url, path in (
        ("/data/job", "/data/job/savepoints/a-1"),
        ("s3://k:s@b/job?region=x", "s3://k:s@b/job/savepoints/a-1?region=x"),
    ):
        assert path_of(url, "a-1") == path
        assert split_path(path) == (url, "a-1")
        assert split_path(url) == (url, "")
    assert split_path("/data/savepoints/a b") == ("/data/savepoints/a b", "")
