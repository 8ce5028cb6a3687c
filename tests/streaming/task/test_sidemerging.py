"""The merging of side input files: which files, and what is read afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.files import SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.manifest.names import Written
from arcbeam.store.shards.cache import HostCache
from arcbeam.streaming.task.outputs import TaskStore
from arcbeam.streaming.task.sidefiles import SideCopies, SideFileReader, SideFileWriter, in_order
from arcbeam.streaming.task.sidemerging import worth_joining
from arcbeam.testing.blobs import MemoryBlobs

PORT = Port("rates", "main")
KEYED, CHUNKS = "keyed", "chunks"


class Job:
    """A side input whose files are merged as soon as it is worth it."""

    def __init__(self, folder: Path, form: str, newest: bool) -> None:
        self.folder, self.form, self.newest = folder, form, newest
        self.store = TaskStore(MemoryBlobs(), HostCache(folder), folder)
        self.files: list[SideFile] = []
        self.copies = SideCopies()
        self.joins = 0

    def micro_batch(self, micro_batch: int, *tasks: dict[bytes, bytes], until: int | None = None) -> None:
        """In a micro-batch each task writes to some windows; then files are merged."""
        head = tuple(self.files)
        for n, put in enumerate(tasks):
            writer = SideFileWriter(self.folder, 70, PORT)
            for window, what in put.items():
                if self.form == KEYED:
                    writer.put(window, what[:1], what)
                    writer.put(window, what[:1] * 600, what)
                else:
                    writer.append(window, what)
            data = writer.data(n, None if until is None else Timestamp(until))
            assert data is not None
            self.files.append(self.store.side(Written(70, n, micro_batch, 1, "task", "side"), data))
        if many := worth_joining(head):
            joined = self.store.joined(Written(70, 0, micro_batch, 1, "task.merged", "side"), many, self.newest)
            self.files = [file for file in self.files if file not in many] + [joined]
            self.joins += 1

    def read(self, window: bytes) -> list[bytes]:
        self.copies.keep({file.name for file in self.files})
        blobs, newest = self.store.blobs, {7} if self.newest else set[int]()
        reader = SideFileReader(blobs, self.folder, self.files, {7: (70,)}, self.copies, newest)
        if self.form == CHUNKS:
            assert reader.has_chunks(7, window) == bool(list(reader.chunks(7, window)))
            return _pairs(reader.chunks(7, window))
        short = [key for key in reader.keys(7, window) if len(key) == 1]
        for key in short:
            assert list(reader.values(7, window, key * 600)) == list(reader.values(7, window, key))
        return sorted(pair for key in short for pair in _pairs(reader.values(7, window, key)))


def _pairs(chunks: object) -> list[bytes]:
    whole = b"".join(chunks)  # type: ignore[call-overload]
    return [whole[i : i + 2] for i in range(0, len(whole), 2)]


@pytest.fixture(params=[CHUNKS, KEYED])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.contract("ENG-05", "STORE-04")
def test_merged_files_stay_few_and_keep_order(tmp_path: Path, form: str) -> None:
    job = Job(tmp_path, form, newest=False)
    for micro_batch in range(1, 41):
        job.micro_batch(micro_batch, {b"w": b"a%c" % (micro_batch + 48), b"v": b"b%c" % (micro_batch + 48)})
        assert job.read(b"w") == [b"a%c" % (n + 48) for n in range(1, micro_batch + 1)]
        assert len(job.files) <= 10
    assert job.read(b"v") == [b"b%c" % (n + 48) for n in range(1, 41)]
    assert job.read(b"u") == []
    assert job.joins > 5
    assert not list(tmp_path.iterdir()), "files are left on the host"


@pytest.mark.contract("ENG-05", "STORE-04")
def test_only_newest_firing_is_read_after_merge(tmp_path: Path, form: str) -> None:
    job = Job(tmp_path, form, newest=True)
    newest: dict[bytes, list[bytes]] = {}
    for micro_batch in range(1, 30):
        window = b"wvuwww"[micro_batch % 6 :][:1]
        # Two tasks in the same micro-batch are one firing.
        job.micro_batch(
            micro_batch,
            {window: b"a%c" % (micro_batch + 48), b"x": b"x%c" % (micro_batch + 48)},
            {window: b"b%c" % (micro_batch + 48)},
        )
        newest[window] = [b"a%c" % (micro_batch + 48), b"b%c" % (micro_batch + 48)]
        newest[b"x"] = [b"x%c" % (micro_batch + 48)]
        assert {of: job.read(of) for of in newest} == newest
        assert len(job.files) <= 6
    assert job.joins > 5
    assert sum(file.size for file in job.files) < 29 * job.files[0].size / 2


@pytest.mark.xfail(strict=True, reason="a merged file counts as its last micro-batch, with all of its values")
def test_merged_values_keep_their_order_among_producers(tmp_path: Path, form: str) -> None:
    job = Job(tmp_path, form, newest=False)

    def write(number: int, micro_batch: int, what: bytes) -> SideFile:
        writer = SideFileWriter(tmp_path, number, PORT)
        if form == KEYED:
            writer.put(b"w", b"k", what)
        else:
            writer.append(b"w", what)
        data = writer.data(0, None)
        assert data is not None
        return job.store.side(Written(number, 0, micro_batch, 1, "task", "side"), data)

    other = write(71, 2, b"b2")
    one = [write(70, micro_batch, b"a%d" % micro_batch) for micro_batch in (1, 2, 3, 4)]

    def read(*files: SideFile) -> list[bytes]:
        reader = SideFileReader(job.store.blobs, tmp_path, files, {7: (70, 71)}, SideCopies())
        return _pairs(reader.values(7, b"w", b"k") if form == KEYED else reader.chunks(7, b"w"))

    ordered = read(*one, other)
    assert ordered == [b"a1", b"a2", b"b2", b"a3", b"a4"]
    merged = job.store.joined(Written(70, 0, 5, 1, "task.merged", "side"), tuple(one), False)
    assert read(merged, other) == ordered


def sided(micro_batch: int, size: int = 1, until: int | None = None) -> SideFile:
    name = f"side/70/0/{micro_batch:012}-00000001-t.side"
    return SideFile(70, 0, name, size, 0, None if until is None else Timestamp(until), micro_batch)


def test_only_whole_micro_batches_leaving_together_are_merged() -> None:
    assert worth_joining([]) == ()
    assert worth_joining([sided(1), sided(2), sided(3)]) == ()
    assert len(worth_joining([sided(n) for n in range(4)])) == 4
    mixed = [sided(1, until=5), *(sided(n, until=9) for n in range(2, 6))]
    assert worth_joining(mixed) == tuple(mixed[1:])
    assert worth_joining([*mixed, sided(6, until=11)]) == ()
    # The two of a micro-batch count as one file of their size, and one is not taken without the other.
    pairs = [sided(1, 500), sided(2), sided(2), sided(3), sided(3)]
    assert worth_joining(pairs) == tuple(pairs[1:])


def test_merged_file_has_position_of_last_micro_batch() -> None:
    joined = replace(sided(9), micro_batch=4)
    assert in_order([sided(5), joined, sided(3)]) == [sided(3), joined, sided(5)]
