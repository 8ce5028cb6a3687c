"""Side inputs in files: read by window and key, in order; damage is detected and named."""

from __future__ import annotations

import gc
import itertools
import os
import struct
import threading
import tracemalloc
import zlib
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.model.files import SideFile
from arcbeam.model.rows import key_hash
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.jobtemp import chunkfile, keyfile, sidefiles
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.jobtemp.sidefiles import IterableWriter, MultimapWriter, SideReader


@pytest.fixture
def location(tmp_path: Path) -> JobLocation:
    return JobLocation(str(tmp_path / "job"))


def published(file: SideFile | None) -> SideFile:
    assert file is not None
    return file


def scratch(location: JobLocation) -> list[str]:
    return os.listdir(Path(location.url) / ".scratch")


def iterable(location: JobLocation, *appends: tuple[bytes, bytes], channel: int = 3) -> SideFile:
    writer = IterableWriter(location, channel, "0-1")
    for window, chunk in appends:
        writer.append(window, chunk)
    return published(writer.close())


def multimap(location: JobLocation, *puts: tuple[bytes, bytes, bytes], shard: int = 0, channel: int = 3) -> SideFile:
    writer = MultimapWriter(location, channel, shard, "0-1")
    for window, key, values in puts:
        writer.put(window, key, values)
    return published(writer.close())


def reader(location: JobLocation, *files: SideFile, shards: int = 1) -> SideReader:
    return SideReader(location, {3: files}, shards)


class TestIterable:
    def test_chunks_are_read_by_window(self, location: JobLocation) -> None:
        file = iterable(location, (b"w1", b"a"), (b"", b"b"), (b"w1", b"c"), (b"w1", b"d"))
        assert (file.channel, file.shard) == (3, -1)
        assert file.size == len(location.get_bytes(file.name))
        sides = reader(location, file)
        assert list(sides.chunks(3, b"w1")) == [b"a", b"cd"]
        assert list(sides.chunks(3, b"")) == [b"b"]
        assert list(sides.chunks(3, b"w")) == []
        assert list(sides.chunks(3, b"w2")) == []

    def test_writer_without_data_writes_no_file(self, location: JobLocation) -> None:
        assert IterableWriter(location, 3, "0-1").close() is None
        empty = IterableWriter(location, 3, "0-1")
        empty.append(b"w", b"")
        assert empty.close() is None
        assert location.list() == []
        assert scratch(location) == []
        assert list(reader(location).chunks(3, b"w")) == []

    def test_files_of_channel_are_read_in_fixed_order(self, location: JobLocation) -> None:
        files = [iterable(location, (b"", bytes([i]))) for i in range(5)]
        expected = list(reader(location, *files).chunks(3, b""))
        assert sorted(expected) == [bytes([i]) for i in range(5)]
        assert list(reader(location, *reversed(files)).chunks(3, b"")) == expected

    def test_writers_of_one_attempt_do_not_collide(self, location: JobLocation) -> None:
        assert iterable(location, (b"", b"a")).name != iterable(location, (b"", b"a")).name

    def test_large_chunks_are_not_joined(self, location: JobLocation) -> None:
        file = iterable(location, *[(b"", bytes(700_000))] * 3)
        assert [len(c) for c in reader(location, file).chunks(3, b"")] == [700_000] * 3

    def test_dropped_writer_leaves_no_file(self, location: JobLocation) -> None:
        writer = IterableWriter(location, 3, "0-1")
        writer.append(b"", b"a")
        assert scratch(location)
        del writer
        gc.collect()
        assert scratch(location) == []

    @settings(max_examples=30, deadline=None)
    @given(appends=st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=5)), max_size=30))
    def test_random_windows_are_read_back(
        self, tmp_path_factory: pytest.TempPathFactory, appends: list[tuple[bytes, bytes]]
    ) -> None:
        location = JobLocation(str(tmp_path_factory.mktemp("job")))
        writer = IterableWriter(location, 3, "0-1")
        for window, chunk in appends:
            writer.append(window, chunk)
        file = writer.close()
        sides = reader(location, *([file] if file else []))
        for window in {w for w, _ in appends} | {b"none"}:
            expected = b"".join(c for w, c in appends if w == window)
            assert b"".join(sides.chunks(3, window)) == expected

    def test_flipped_byte_is_detected_or_harmless(self, location: JobLocation) -> None:
        file = iterable(location, (b"w1", b"abc"), (b"w2", b"def"))
        data = location.get_bytes(file.name)
        for i in range(len(data)):
            damaged = bytearray(data)
            damaged[i] ^= 0x55
            location.put_bytes(f"flipped/{i}", bytes(damaged))
            sides = reader(location, SideFile(3, -1, f"flipped/{i}", len(data)))
            with pytest.raises(StoreError, match=f"flipped/{i}'"):
                list(itertools.chain(sides.chunks(3, b"w1"), sides.chunks(3, b"w2")))

    def test_every_truncation_is_detected(self, location: JobLocation) -> None:
        file = iterable(location, (b"w1", b"abc"))
        data = location.get_bytes(file.name)
        for size in range(len(data)):
            location.put_bytes(f"cut/{size}", data[:size])
            with pytest.raises(StoreError, match=f"cut/{size}'"):
                list(reader(location, SideFile(3, -1, f"cut/{size}", len(data))).chunks(3, b"w1"))
            with pytest.raises(StoreError, match=rf"cut/{size}'"):
                list(reader(location, SideFile(3, -1, f"cut/{size}", size)).chunks(3, b"w1"))

    def test_newer_file_is_refused(self, location: JobLocation, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(chunkfile, "VERSION", 2)
            file = iterable(location, (b"", b"a"))
        with pytest.raises(StoreError, match=rf"{file.name}' has format 2, .* up to 1"):
            list(reader(location, file).chunks(3, b""))


class TestMultimap:
    def test_values_are_read_by_window_and_key(self, location: JobLocation) -> None:
        file = multimap(
            location,
            (b"w1", b"k1", b"a"),
            (b"w1", b"k1", b"b"),
            (b"w1", b"k", b"c"),
            (b"w2", b"k1", b"d"),
            (b"", b"", b"e"),
        )
        assert file.size == len(location.get_bytes(file.name))
        sides = reader(location, file)
        assert list(sides.values(3, b"w1", b"k1")) == [b"ab"]
        assert list(sides.values(3, b"w1", b"k")) == [b"c"]
        assert list(sides.values(3, b"w2", b"k1")) == [b"d"]
        assert list(sides.values(3, b"w2", b"k")) == []
        assert list(sides.values(3, b"", b"")) == [b"e"]
        assert sorted(sides.keys(3, b"w1")) == [b"k", b"k1"]
        assert list(sides.keys(3, b"w")) == []
        assert scratch(location) == []

    def test_repeated_key_keeps_its_order(self, location: JobLocation) -> None:
        puts = [(b"", key, b"%d," % i) for i, key in enumerate([b"a", b"b", b"a", b"a", b"b", b"a"])]
        sides = reader(location, multimap(location, *puts))
        assert b"".join(sides.values(3, b"", b"a")) == b"0,2,3,5,"
        assert b"".join(sides.values(3, b"", b"b")) == b"1,4,"

    @pytest.mark.parametrize("length", [400, 505, 509, 510, 511, 512, 600, 5000])
    def test_long_keys_and_windows_are_read_back(self, location: JobLocation, length: int) -> None:
        keys = [b"k" * length, b"k" * (length - 1) + b"x", b"k"]
        windows = [b"w" * length, b"w" * length + b"2", b"w" * 64, b"w" * 65]
        puts = [(w, k, b"%d-%d" % (i, j)) for (i, w), (j, k) in itertools.product(enumerate(windows), enumerate(keys))]
        sides = reader(location, multimap(location, *puts, *puts))
        for window, key, values in puts:
            assert b"".join(sides.values(3, window, key)) == values * 2
        for window in windows:
            assert sorted(sides.keys(3, window)) == sorted(keys)

    def test_large_values_are_read_in_chunks(self, location: JobLocation) -> None:
        part = os.urandom(100_000)
        sides = reader(location, multimap(location, *[(b"", b"k", part)] * 20, (b"", b"l", bytes(1_000_000))))
        chunks = list(sides.values(3, b"", b"k"))
        assert b"".join(chunks) == part * 20
        assert max(map(len, chunks)) == 300_000
        assert list(sides.values(3, b"", b"l")) == [bytes(1_000_000)]

    def test_map_grows_with_data(self, location: JobLocation, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keyfile, "_FIRST_MAP_BYTES", 64 << 10)
        monkeypatch.setattr(keyfile, "_BATCH_CHUNKS", 7)
        monkeypatch.setattr(keyfile, "_CHUNK_BYTES", 3000)
        puts = [(b"", b"%d" % (i % 40), b"%d" % i * 200) for i in range(400)]
        sides = reader(location, multimap(location, *puts))
        for key in {k for _, k, _ in puts}:
            assert b"".join(sides.values(3, b"", key)) == b"".join(v for _, k, v in puts if k == key)

    def test_only_shard_of_key_is_read(self, location: JobLocation) -> None:
        keys = [b"key%d" % i for i in range(20)]
        files = []
        for shard in range(3):
            puts = [(b"", key, key + b"!") for key in keys if key_hash(key) % 3 == shard]
            files.append(multimap(location, *puts, shard=shard))
        sides = reader(location, *files, shards=3)
        assert sorted(sides.keys(3, b"")) == sorted(keys)
        assert [list(sides.values(3, b"", key)) for key in keys] == [[key + b"!"] for key in keys]
        del files[0]
        partial = reader(location, *files, shards=3)
        assert [bool(list(partial.values(3, b"", k))) for k in keys] == [key_hash(k) % 3 != 0 for k in keys]

    @pytest.mark.parametrize("shard", [0, 1, 2])
    def test_file_with_wrong_shard_is_refused(self, location: JobLocation, shard: int) -> None:
        file = multimap(location, (b"", b"key", b"a"), shard=shard)
        right = key_hash(b"key") % 3
        sides = reader(location, file, shards=3)
        if shard == right:
            assert list(sides.keys(3, b"")) == [b"key"]
            return
        with pytest.raises(StoreError, match=rf"shard {shard}, but has one of shard {right} of 3"):
            list(sides.keys(3, b""))
        other = next(b"%d" % i for i in range(100) if key_hash(b"%d" % i) % 3 == shard % 3)
        with pytest.raises(StoreError, match=f"shard {shard}"):
            sides.values(3, b"", other)

    def test_impossible_shard_is_refused(self, location: JobLocation) -> None:
        file = multimap(location, (b"", b"key", b"a"), shard=3)
        with pytest.raises(StoreError, match=rf"'{file.name}' is of shard 3; there are 3"):
            reader(location, file, shards=3)

    def test_several_files_of_shard_are_read(self, location: JobLocation) -> None:
        files = [multimap(location, (b"", b"k", b"a")) for _ in range(3)]
        assert list(reader(location, *files).values(3, b"", b"k")) == [b"a"] * 3

    def test_writer_without_data_writes_no_file(self, location: JobLocation) -> None:
        assert MultimapWriter(location, 3, 0, "0-1").close() is None
        assert list(reader(location).values(3, b"", b"k")) == []
        assert list(reader(location).keys(3, b"")) == []

    def test_key_without_values_exists(self, location: JobLocation) -> None:
        sides = reader(location, multimap(location, (b"", b"k", b"")))
        assert list(sides.keys(3, b"")) == [b"k"]
        assert list(sides.values(3, b"", b"k")) == []

    def test_dropped_writer_leaves_no_file(self, location: JobLocation) -> None:
        writer = MultimapWriter(location, 3, 0, "0-1")
        writer.put(b"", b"k", b"a")
        assert scratch(location)
        del writer
        gc.collect()
        assert scratch(location) == []

    @settings(max_examples=20, deadline=None)
    @given(
        puts=st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=3), st.binary(max_size=4)), max_size=30),
        long=st.booleans(),
    )
    def test_random_keys_are_read_back(
        self, tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[bytes, bytes, bytes]], long: bool
    ) -> None:
        location = JobLocation(str(tmp_path_factory.mktemp("job")))
        puts = [(w, k * (300 if long else 1), v) for w, k, v in puts]
        writer = MultimapWriter(location, 3, 0, "0-1")
        for window, key, values in puts:
            writer.put(window, key, values)
        file = writer.close()
        sides = reader(location, *([file] if file else []))
        for window in {w for w, _, _ in puts}:
            keys = {k for w, k, _ in puts if w == window}
            assert sorted(sides.keys(3, window)) == sorted(keys)
            for key in keys:
                expected = b"".join(v for w, k, v in puts if (w, k) == (window, key))
                assert b"".join(sides.values(3, window, key)) == expected

    def test_damage_is_named(self, location: JobLocation) -> None:
        file = multimap(location, (b"", b"k", b"some values"))
        data = location.get_bytes(file.name)
        for name, damaged in {
            "empty": b"",
            "cut": data[:-1],
            "half": data[: len(data) // 2],
        }.items():
            location.put_bytes(name, damaged)
            with pytest.raises(StoreError, match=f"'{name}'"):
                list(reader(location, SideFile(3, 0, name, len(data))).values(3, b"", b"k"))
        for name, damaged in {
            "text": b"x" * len(data),
            "none": b"",
            "value": data.replace(b"some values", b"same values"),
            "key": data.replace(b"arcmulti", b"arcmulto"),
        }.items():
            location.put_bytes(name, damaged)
            with pytest.raises(StoreError, match=f"'{name}'"):
                list(reader(location, SideFile(3, 0, name, len(damaged))).values(3, b"", b"k"))

    def test_newer_file_is_refused(self, location: JobLocation, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(keyfile, "VERSION", 2)
            file = multimap(location, (b"", b"k", b"a"))
        with pytest.raises(StoreError, match=rf"{file.name}' has format 2, .* up to 1"):
            list(reader(location, file).values(3, b"", b"k"))

    def test_foreign_lmdb_file_is_refused(self, location: JobLocation) -> None:
        path = location.scratch_file()
        env = lmdb.open(str(path), subdir=False, lock=False)
        env.close()
        size = path.stat().st_size
        location.put_file(path, "side/other")
        with pytest.raises(StoreError, match="'side/other'"):
            list(reader(location, SideFile(3, 0, "side/other", size)).values(3, b"", b"k"))


def test_layouts_are_unchanged(location: JobLocation) -> None:
    """Files move between hosts: a change of layout needs a new version."""
    data = location.get_bytes(iterable(location, (b"w", b"abc")).name)
    start = struct.pack("<8sI", b"arcside\0", 1)
    entry = struct.pack("<II", 1, 1) + b"w" + struct.pack("<QQI", 16, 3, zlib.crc32(b"abc"))
    footer = entry + struct.pack("<Q", 19)
    trailer = struct.pack("<QQQI", 19, 19 + len(entry), 1, zlib.crc32(footer))
    assert data == b"".join(
        [start, struct.pack("<I", zlib.crc32(start)), b"abc", footer, trailer, struct.pack("<I", zlib.crc32(trailer))]
    )


def test_unknown_channel_is_refused(location: JobLocation) -> None:
    sides = reader(location)
    for read in (
        lambda: sides.chunks(4, b""),
        lambda: sides.values(4, b"", b"k"),
        lambda: sides.keys(4, b""),
    ):
        with pytest.raises(StoreError, match="channel 4"):
            list(read())


def test_missing_side_file_is_named(location: JobLocation) -> None:
    with pytest.raises(StoreError, match="'side/3/gone'"):
        list(reader(location, SideFile(3, -1, "side/3/gone", 100)).chunks(3, b""))


def test_few_files_stay_open(location: JobLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in (sidefiles._chunk_files, sidefiles._key_files):
        monkeypatch.setattr(kept, "_limit", 2)
    chunked = [iterable(location, (b"", b"%d" % i)) for i in range(6)]
    keyed = [multimap(location, (b"", b"k", b"%d" % i)) for i in range(6)]
    for files in (chunked, keyed):
        sides = reader(location, *files)
        for _ in range(2):
            found = sides.chunks(3, b"") if files is chunked else sides.values(3, b"", b"k")
            assert sorted(found) == [b"%d" % i for i in range(6)]
    assert len(sidefiles._chunk_files._recent) <= 2
    gc.collect()
    assert len(sidefiles._key_files._alive) <= 2


def test_files_of_another_location_are_closed(tmp_path: Path) -> None:
    for job in ("a", "b"):
        location = JobLocation(str(tmp_path / job))
        assert list(reader(location, multimap(location, (b"", b"k", b"a"))).values(3, b"", b"k")) == [b"a"]
    assert {url for url, _ in sidefiles._key_files._recent} == {location.url}


def test_file_in_use_survives_eviction(location: JobLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidefiles._key_files, "_limit", 1)
    first = multimap(location, *[(b"", b"k", bytes(200_000))] * 4)
    second = multimap(location, (b"", b"k", b"a"))
    reading = reader(location, first).values(3, b"", b"k")
    next(reading)
    assert list(reader(location, second).values(3, b"", b"k")) == [b"a"]
    again = reader(location, first).values(3, b"", b"k")  # LMDB would refuse a second open
    assert sum(map(len, again)) == 800_000
    assert sum(map(len, reading)) == 400_000


def test_threads_share_open_file(location: JobLocation) -> None:
    sides = reader(location, multimap(location, *[(b"", b"%d" % i, b"v%d" % i) for i in range(200)]))
    found: list[bool] = []

    def look() -> None:
        found.append(all(list(sides.values(3, b"", b"%d" % i)) == [b"v%d" % i] for i in range(200)))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork beside threads: the child only reads files
def test_forked_child_opens_files_again(location: JobLocation) -> None:
    sides = reader(location, multimap(location, (b"", b"k", b"a")))
    chunked = reader(location, iterable(location, (b"", b"c")))
    assert list(sides.values(3, b"", b"k")) == [b"a"]
    assert list(chunked.chunks(3, b"")) == [b"c"]
    child = os.fork()
    if not child:
        status = 1
        try:
            same = list(sides.values(3, b"", b"k")) == [b"a"] and list(chunked.chunks(3, b"")) == [b"c"]
            status = 0 if same else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert list(sides.values(3, b"", b"k")) == [b"a"]


@pytest.mark.long
def test_hundred_megabytes_need_little_memory(location: JobLocation) -> None:
    part = os.urandom(250_000)
    tracemalloc.start()
    try:
        writer, keyed = IterableWriter(location, 3, "0-1"), MultimapWriter(location, 3, 0, "0-1")
        for i in range(480):
            writer.append(b"w%d" % (i % 3), part)
            keyed.put(b"", b"k%d" % (i // 160), part)
        sides = reader(location, published(writer.close()))
        assert sum(map(len, sides.chunks(3, b"w1"))) == 160 * len(part)
        sides = reader(location, published(keyed.close()))
        for chunk in sides.values(3, b"", b"k2"):
            assert chunk == part * (len(chunk) // len(part))
        assert sum(map(len, sides.values(3, b"", b"k1"))) == 160 * len(part)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
