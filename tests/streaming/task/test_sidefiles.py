"""A task's output to side inputs, and its reads of the head's."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import permutations
from pathlib import Path

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.files import SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import MissingFileError, StoreError
from arcbeam.store.manifest.names import Written
from arcbeam.store.shards.cache import HostCache
from arcbeam.streaming.interfaces import SideData
from arcbeam.streaming.task.outputs import TaskStore
from arcbeam.streaming.task.sidefiles import SideCopies, SideFileReader, SideFileWriter
from arcbeam.testing.blobs import MemoryBlobs

PORT = Port("rates", "main")


class Job:
    """A job's folder, and a host."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.blobs, self.copies = folder, MemoryBlobs(), SideCopies()
        self.files: list[SideFile] = []

    def writer(self, number: int = 70) -> SideFileWriter:
        return SideFileWriter(self.folder, number, PORT)

    def publish(self, data: SideData | None) -> None:
        assert data is not None
        store = TaskStore(self.blobs, HostCache(self.folder), self.folder)
        name = Written(data.channel, data.shard, len(self.files) + 1, 1, "attempt", "side")
        self.files.append(store.side(name, data))

    def reader(self) -> SideFileReader:
        self.copies.keep({file.name for file in self.files})
        return SideFileReader(self.blobs, self.folder, self.files, {7: (70, 71), 8: ()}, self.copies)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.contract("ENG-05")
def test_window_contains_output_of_all_micro_batches(job: Job) -> None:
    for number, chunks in ((70, [(b"w", b"one"), (b"v", b"two")]), (71, [(b"w", b"three")])):
        writer = job.writer(number)
        for window, chunk in chunks:
            writer.append(window, chunk)
        assert writer.windows == {window for window, _ in chunks}
        job.publish(writer.data(0, Timestamp(5)))
    reader = job.reader()
    assert list(reader.chunks(7, b"w")) == [b"one", b"three"]
    assert list(reader.chunks(7, b"v")) == [b"two"]
    assert not list(reader.chunks(7, b"u"))
    assert not list(reader.chunks(8, b"w"))
    assert reader.has_chunks(7, b"v")
    assert not reader.has_chunks(7, b"u")
    assert [(file.channel, file.until) for file in job.files] == [(70, 5), (71, 5)]


@pytest.mark.contract("ENG-05")
def test_key_has_values_of_all_files_once(job: Job) -> None:
    for entries in ([(b"a", b"1"), (b"b", b"2")], [(b"a", b"3")]):
        writer = job.writer()
        for key, values in entries:
            writer.put(b"w", key, values)
        job.publish(writer.data(0, None))
    reader = job.reader()
    assert list(reader.values(7, b"w", b"a")) == [b"1", b"3"]
    assert not list(reader.values(7, b"w", b"c"))
    assert sorted(reader.keys(7, b"w")) == [b"a", b"b"]
    assert reader.has_keys(7, b"w")
    assert not reader.has_keys(7, b"v")


def test_newest_firings_of_two_side_inputs_are_separate(job: Job) -> None:
    """In windows of the same name, read alternately: the two are not confused."""
    for number, chunk in ((70, b"old"), (70, b"of 70"), (71, b"old"), (71, b"of 71")):
        writer = job.writer(number)
        writer.append(b"w", chunk)
        writer.append(b"v", b"in v " + chunk)
        job.publish(writer.data(0, None))
    parts = {7: (70,), 8: (71,)}
    reader = SideFileReader(job.blobs, job.folder, job.files, parts, job.copies, newest=(7, 8))
    for _ in range(2):
        for window, before in ((b"w", b""), (b"v", b"in v ")):
            for channel, chunk in ((7, b"of 70"), (8, b"of 71")):
                assert list(reader.chunks(channel, window)) == [before + chunk]


def test_side_input_without_output_has_no_file(job: Job) -> None:
    assert job.writer().data(0, None) is None
    assert not list(job.folder.iterdir())


def test_dropped_writer_leaves_nothing(job: Job) -> None:
    writer = job.writer()
    writer.append(b"w", b"one")
    del writer
    assert not list(job.folder.iterdir())


def test_copies_are_released_when_head_drops_them(job: Job) -> None:
    writer = job.writer()
    writer.append(b"w", b"one")
    job.publish(writer.data(0, None))
    del writer
    running = job.reader().chunks(7, b"w")
    assert next(running) == b"one"
    assert not [path for path in job.folder.iterdir() if path.name.startswith("copy")]
    (removed,) = job.files
    job.files.clear()
    assert not job.reader().has_chunks(7, b"w")
    job.blobs.delete(removed.name)
    with pytest.raises(MissingFileError):
        SideFileReader(job.blobs, job.folder, [removed], {7: (70,)}, job.copies).has_chunks(7, b"w")


def test_published_file_is_removed_and_unwritable_folder_named(job: Job) -> None:
    writer = job.writer()
    writer.append(b"w", b"one")
    job.publish(writer.data(0, None))
    assert not list(job.folder.iterdir())
    elsewhere = SideFileWriter(job.folder / "file" / "below", 70, PORT)
    (job.folder / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"cannot write '.*file/below'"):
        elsewhere.append(b"w", b"one")


@pytest.mark.contract("ENG-05")
@pytest.mark.parametrize("order", list(permutations([(1, 71, 0), (2, 70, 1), (3, 71, 0), (3, 70, 1)])))
def test_newest_value_of_two_producers_is_read_last(job: Job, order: tuple[tuple[int, int, int], ...]) -> None:
    """Whatever the order of files in a manifest: by micro-batch, then by producer. So a dict keeps the newest."""
    store = TaskStore(job.blobs, HostCache(job.folder), job.folder)
    for micro_batch, producer, shard in order:
        keyed, chunks = job.writer(producer), job.writer(producer)
        value = b"%d of %d;" % (micro_batch, producer)
        keyed.put(b"w", b"k", value)
        chunks.append(b"v", value)
        for writer, attempt in ((keyed, "keyed"), (chunks, "chunks")):
            data = writer.data(shard, None)
            assert data is not None
            job.files.append(store.side(Written(producer, shard, micro_batch, 1, attempt, "side"), data))
    due = [b"1 of 71;", b"2 of 70;", b"3 of 70;", b"3 of 71;"]
    files = [[file for file in job.files if f"{kind}." in file.name] for kind in ("keyed", "chunks")]
    readers = [SideFileReader(job.blobs, job.folder, of, {7: (70, 71)}, job.copies) for of in files]
    assert list(readers[0].values(7, b"w", b"k")) == due
    assert b"".join(readers[1].chunks(7, b"v")) == b"".join(due)


CHANNEL, PRODUCERS, SHARDS = 7, (70, 71, 72), 2
WINDOWS = (b"", b"w", b"window \0")
_UNTIL = Timestamp(100)

Contents = dict[tuple[int, int, bytes], list[bytes]]
"""The output of each producer to each window in each micro-batch."""


@pytest.mark.contract("ENG-05", "STORE-04")
@pytest.mark.parametrize("newest", [False, True], ids=["all", "newest"])
@pytest.mark.parametrize("seed", range(12))
def test_several_producers_are_read_as_written(tmp_path: Path, seed: int, newest: bool) -> None:
    chance = random.Random(seed)
    blobs, copies = MemoryBlobs(), SideCopies()
    store = TaskStore(blobs, HostCache(tmp_path / "host"), tmp_path / "scratch")
    files: list[SideFile] = []
    put: Contents = defaultdict(list)
    for micro_batch in range(1, 13):
        for producer in PRODUCERS:
            for shard in range(SHARDS):
                if chance.random() < 0.5:
                    continue
                writer = SideFileWriter(tmp_path / "scratch", producer, Port("p", "main"), last=newest)
                mine: dict[bytes, list[bytes]] = {}
                for n in range(chance.randint(1, 4)):
                    window = chance.choice(WINDOWS)
                    if newest and chance.random() < 0.3:
                        writer.firing(window)
                        mine.pop(window, None)
                    value = b"%d/%d/%d/%d;" % (micro_batch, producer, shard, n)
                    writer.append(window, value)
                    mine.setdefault(window, []).append(value)
                data = writer.data(shard, _UNTIL)
                assert data is not None
                files.append(store.side(Written(producer, shard, micro_batch, 1, "a", "side"), data))
                for window, values in mine.items():
                    put[producer, micro_batch, window] += values
        if chance.random() < 0.4:
            files = _merged(store, files, chance.choice(PRODUCERS), micro_batch, newest)
        _same(
            SideFileReader(blobs, tmp_path / "scratch", files, {CHANNEL: PRODUCERS}, copies, _newest(newest)),
            put,
            newest,
        )
        copies.keep({file.name for file in files})


def _newest(newest: bool) -> tuple[int, ...]:
    return (CHANNEL,) if newest else ()


def _merged(store: TaskStore, files: list[SideFile], producer: int, micro_batch: int, newest: bool) -> list[SideFile]:
    """Merge all files of a producer, as `worth_joining` may choose them."""
    many = [file for file in files if file.channel == producer]
    if len(many) < 2:
        return files
    whole = store.joined(Written(producer, many[0].shard, micro_batch, 1, "a.merged", "side"), many, newest)
    return [*(file for file in files if file.channel != producer), whole]


def _same(reader: SideFileReader, put: Contents, newest: bool) -> None:
    for window in WINDOWS:
        due: list[bytes] = []
        for producer in PRODUCERS:
            micro_batches = sorted(micro_batch for of, micro_batch, where in put if (of, where) == (producer, window))
            for micro_batch in micro_batches[-1:] if newest else micro_batches:
                due += put[producer, micro_batch, window]
        found = b"".join(reader.chunks(CHANNEL, window)).split(b";")[:-1]
        assert sorted(found) == sorted(value[:-1] for value in due)
        assert reader.has_chunks(CHANNEL, window) == bool(due)
        for producer in PRODUCERS:
            of_one = [int(value.split(b"/")[0]) for value in found if value.split(b"/")[1] == b"%d" % producer]
            assert of_one == sorted(of_one), "micro-batch after micro-batch"
