"""The job graph is stored whole beside the state, and copied with a savepoint."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from arcbeam.model.fingerprint import Fingerprint
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import DamagedFileError, NewerFormatError
from arcbeam.store.blobs.fileheader import file_header
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.savepoints import copy_savepoint, path_of, pinned, split_path
from arcbeam.store.manifest.jobgraphfile import JobGraph, JobGraphFile, decode, encode
from arcbeam.store.manifest.names import job_graph_epoch
from arcbeam.testing.blobs import MemoryBlobs
from tests.store.samples import opened

pytestmark = pytest.mark.contract("STORE-05")

GOLDEN = Path(__file__).parents[1] / "manifest" / "golden" / "job-graph-1"
"""Written by `encode(JOB_GRAPH)` when the format had version 1. After its release it must never be written again."""

FILE = JobGraphFile("x.zip", "ab" * 32, 9, f"job_graphs/files/00000003-{'ab' * 32}")
JOB_GRAPH = JobGraph(
    "words",
    b"\x00proto\xff",
    {"shards": 3, "spark_conf": ["a=b"]},
    {"archives": ["x.zip"]},
    (FILE,),
    {"python": "3.11", "beam": "2.77.0", "arcbeam": "0.1"},
    {"Read": Fingerprint("beam:transform:impulse:v1", (), "c0de")},
    ("s3_secret_access_key",),
)


def test_job_graph_is_read_back_by_name() -> None:
    name, data = encode(JOB_GRAPH, 7)
    assert decode(data, name, "here") == JOB_GRAPH
    assert encode(JOB_GRAPH, 7) == (name, data)
    assert name.startswith("job_graphs/00000007-")
    assert job_graph_epoch(name) == 7
    assert job_graph_epoch(FILE.blob) == 3
    assert job_graph_epoch("job_graphs/" + "ab" * 16) is None


def test_order_of_options_does_not_change_job_graph() -> None:
    options = dict(reversed(JOB_GRAPH.options.items()))
    assert encode(replace(JOB_GRAPH, options=options), 7) == encode(JOB_GRAPH, 7)


def test_existing_job_graph_is_not_written_again() -> None:
    blobs, job_graph = MemoryBlobs(), replace(JOB_GRAPH, files=())
    name = jobgraphs.keep(blobs, job_graph, {}, 2, "")
    whole = blobs.get(name)
    written: list[str] = []

    class Written(MemoryBlobs):
        def put(self, name: str, data: bytes) -> None:
            written.append(name)
            super().put(name, data)

    again = Written()
    assert jobgraphs.keep(again, job_graph, {}, 2, "") == name
    assert jobgraphs.keep(again, job_graph, {}, 2, "") == name
    assert written == []
    again.delete(name)
    again.create(name, whole[:-1])
    assert jobgraphs.keep(again, job_graph, {}, 2, "") == name
    assert (written, again.get(name)) == ([name], whole)


def test_version_1_is_read() -> None:
    assert decode(GOLDEN.read_bytes(), "p", "here") == JOB_GRAPH


def test_damaged_or_newer_job_graph_is_refused() -> None:
    name, data = encode(JOB_GRAPH, 1)
    for at in range(len(data)):
        with pytest.raises(DamagedFileError, match=f"'{name}' in 's3://x'"):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], name, "s3://x")
        with pytest.raises(DamagedFileError):
            decode(data[:at], name, "here")
    with pytest.raises(NewerFormatError, match=r" 2; .* 1\n"):
        decode(file_header(b"arcgraph", 2) + struct.pack("<I", 0), name, "here")


@pytest.mark.contract("STORE-07")
def test_job_graph_is_stored_once_and_copied(blobs: DurableBlobs, tmp_path: Path) -> None:
    path, empty = tmp_path / "x.zip", tmp_path / "nothing"
    path.write_bytes(b"zip" * 5)
    empty.write_bytes(b"")
    files = {"x.zip": path, "nothing": empty}
    described = tuple(jobgraphs.described(name, file) for name, file in files.items())
    job_graph = JobGraph("words", b"proto", files=described)
    name = jobgraphs.keep(blobs, job_graph, files, 1, "")
    path.unlink()
    assert jobgraphs.keep(blobs, job_graph, files, 1, "") == name, "an existing one is not written again"
    assert jobgraphs.keep(blobs, job_graph, files, 2, name) == name, "nor by the next driver"
    log = opened(blobs, job_graph=lambda *_: name)
    log.propose(pinned(log.draft(Timestamp(1)), "safe"))
    assert opened(blobs).head.job_graph == name, "a driver without a job graph keeps the present one"
    target = FolderBlobs(tmp_path / "copy", sync=False)
    copy_savepoint(blobs, log.head, "safe", target, tmp_path / "scratch")
    kept = jobgraphs.read(target, opened(target).head.job_graph)
    assert replace(kept, files=described) == job_graph
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
    job_graph = JobGraph("words", b"proto", files=(jobgraphs.described("x.zip", path),))
    name = jobgraphs.keep(blobs, job_graph, {"x.zip": path}, 1, "")
    for each in (name, jobgraphs.read(blobs, name).files[0].blob):
        blobs.delete(each) if damage is None else blobs.put(each, damage)
        name = jobgraphs.keep(blobs, job_graph, {"x.zip": path}, 2, name)
        file = jobgraphs.read(blobs, name).files[0]
        assert replace(job_graph, files=(file,)) == jobgraphs.read(blobs, name)
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
    job_graph = JobGraph("words", b"proto", files=(jobgraphs.described("x.zip", path),))
    name = jobgraphs.keep(blobs, job_graph, {"x.zip": path}, 1, "")
    blobs.read = 0
    other = jobgraphs.keep(blobs, replace(job_graph, pipeline=b"changed"), {"x.zip": path}, 2, name)
    assert other != name
    assert (blobs.read < 10_000, blobs.wrote) == (True, 1_000_000)
    # So a changed file of the same length is detected by its reader, and by a check.
    file = jobgraphs.read(blobs, name).files[0]
    blobs.put(file.blob, b"Z" * 1_000_000)
    assert jobgraphs.keep(blobs, job_graph, {"x.zip": path}, 2, name) == name
    with pytest.raises(DamagedFileError, match=r"'x\.zip'"):
        jobgraphs.fetch(blobs, file, len)
    blobs.delete(file.blob)
    mended = jobgraphs.read(blobs, jobgraphs.keep(blobs, job_graph, {"x.zip": path}, 2, name)).files[0]
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
