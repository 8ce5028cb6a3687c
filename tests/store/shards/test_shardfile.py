"""Shard files: entries are read back, between any two keys; damage is detected."""

from __future__ import annotations

import os
import struct
import tempfile
import tracemalloc
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.model.files import FileKind, Owned
from arcbeam.store.blobs.errors import DamagedFileError, NewerFormatError
from arcbeam.store.shards.shardfile import (
    VERSION,
    Block,
    Entry,
    ShardFileReader,
    in_blocks,
    local_reader,
    write_shard_file,
)

GOLDEN = Path(__file__).parent / "golden" / "shard-1.delta"
"""Written from `ENTRIES` when the format had version 1. It must never be written again."""

ENTRIES: list[Entry] = [
    (b"", b"the empty key"),
    (b"a", None),
    (b"b", b""),
    (b"b\x00", b"\xff" * 10),
    (b"c" * 600, b"long key"),
    (b"\xff", b"x" * 100_000),
    (b"\xff\xff", None),
]


def reader_of(data: bytes, crc: int | None = None) -> ShardFileReader:
    return ShardFileReader(lambda start, length: data[start : start + length], len(data), crc, "f", "here")


def written(tmp_path: Path, entries: list[Entry], kind: FileKind = FileKind.DELTA) -> bytes:
    path = tmp_path / os.urandom(8).hex()
    write_shard_file(path, kind, in_blocks(entries))
    return path.read_bytes()


def test_entries_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "f"
    summary = write_shard_file(path, FileKind.DELTA, in_blocks(ENTRIES))
    assert (summary.entries, summary.tombstones) == (5, 2)
    assert (summary.first_key, summary.last_key) == (b"", b"\xff\xff")
    assert summary.size == path.stat().st_size
    reader = ShardFileReader(local_reader(path), summary.size, summary.crc, "f", "here")
    assert reader.summary == summary
    assert list(reader.scan()) == ENTRIES


def test_blocks_of_any_size_give_same_file(tmp_path: Path) -> None:
    entries: list[Entry] = [(b"%06d" % i, None if i % 7 == 0 else bytes(i % 90)) for i in range(9_000)]
    as_they_are = written(tmp_path, entries)
    for cut in (1, 500, 9_000):
        parts = [entries[i : i + cut] for i in range(0, len(entries), cut)]
        path = tmp_path / f"by-{cut}"
        blocks = (([key for key, _ in part], [value for _, value in part]) for part in parts)
        write_shard_file(path, FileKind.DELTA, blocks)
        assert path.read_bytes() == as_they_are


@pytest.mark.contract("OPS-02")
@given(
    st.dictionaries(st.binary(max_size=5), st.none() | st.binary(max_size=9), max_size=60),
    st.integers(1, 60),
)
def test_rows_of_each_owner_are_counted(entries: dict[bytes, bytes | None], cut: int) -> None:
    rows = sorted(entries.items())
    parts = [rows[i : i + cut] for i in range(0, len(rows), cut)]
    blocks = (([key for key, _ in part], [value for _, value in part]) for part in parts)
    with tempfile.TemporaryDirectory() as folder:
        found = write_shard_file(Path(folder) / "f", FileKind.DELTA, blocks).owned
    expected = []
    for owner in sorted({key[1:3] for key in entries}):
        mine = [(key, value) for key, value in rows if key[1:3] == owner]
        size = sum(len(key) + len(value or b"") for key, value in mine)
        expected.append(Owned(owner, sum(value is not None for _, value in mine), size))
    assert list(found) == expected


def test_owners_are_counted_across_full_blocks(tmp_path: Path) -> None:
    entries: list[Entry] = [(b"\x10%c%c%05d" % (0, stage, i), b"v" * 90) for stage in (1, 2) for i in range(1_500)]
    found = write_shard_file(tmp_path / "f", FileKind.SNAPSHOT, in_blocks(entries)).owned
    assert found == (Owned(b"\0\x01", 1_500, 1_500 * 98), Owned(b"\0\x02", 1_500, 1_500 * 98))


@pytest.mark.parametrize("blocks", [[([b"b", b"a"], [b"", b""])], [([b"a"], [b""]), ([b"a"], [b""])]])
def test_keys_that_do_not_ascend_are_refused(tmp_path: Path, blocks: list[Block]) -> None:
    with pytest.raises(ValueError, match=r"b'a' after"):
        write_shard_file(tmp_path / "f", FileKind.DELTA, blocks)


def test_empty_file_is_valid(tmp_path: Path) -> None:
    reader = reader_of(written(tmp_path, [], FileKind.SNAPSHOT))
    assert list(reader.scan()) == []
    assert reader.summary.kind == FileKind.SNAPSHOT


@pytest.mark.contract("STORE-05")
def test_version_1_is_read() -> None:
    assert list(reader_of(GOLDEN.read_bytes()).scan()) == ENTRIES


KEYS = st.sampled_from([b"", b"a", b"a\0", b"aa", b"ab", b"b", b"ba", b"c", b"\xff"])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, st.one_of(st.none(), st.sampled_from([b"", b"v", b"v" * 30_000]))), KEYS, st.none() | KEYS)
def test_any_range_is_read(
    tmp_path_factory: pytest.TempPathFactory, model: dict[bytes, bytes | None], start: bytes, end: bytes | None
) -> None:
    entries = sorted(model.items())
    data = written(tmp_path_factory.getbasetemp(), entries)
    expected = [(k, v) for k, v in entries if start <= k and (end is None or k < end)]
    assert list(reader_of(data).scan(start, end)) == expected


def test_unordered_keys_and_deletes_in_snapshot_are_refused(tmp_path: Path) -> None:
    for entries in ([(b"b", b""), (b"a", b"")], [(b"a", b""), (b"a", b"")]):
        with pytest.raises(ValueError, match=r"b'a'|b'b'"):
            written(tmp_path, entries)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="snapshot"):
        written(tmp_path, [(b"a", None)], FileKind.SNAPSHOT)


SMALL: list[Entry] = [(b"abc", b"defg"), (b"b", None), (b"c", b"")]


def test_truncated_file_is_detected(tmp_path: Path) -> None:
    whole = written(tmp_path, SMALL)
    size = len(whole)
    for cut in range(size):
        part = whole[:cut]
        for reported in (size, cut):
            with pytest.raises(DamagedFileError, match="'f' in 'here'"):
                list(ShardFileReader(lambda a, n, part=part: part[a : a + n], reported, None, "f", "here").scan())


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    whole = written(tmp_path, SMALL)
    for at in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << (at % 8)
        with pytest.raises(DamagedFileError, match="'f' in 'here'"):
            list(reader_of(bytes(damaged)).scan())


def test_other_file_of_that_name_is_damage(tmp_path: Path) -> None:
    summary = write_shard_file(tmp_path / "f", FileKind.DELTA, in_blocks([(b"a", b"1")]))
    other = written(tmp_path, [(b"a", b"2")])
    with pytest.raises(DamagedFileError, match="'f' in 'here'"):
        reader_of(other, summary.crc)


def test_newer_format_is_refused() -> None:
    start = struct.pack("<8sI", b"arcshard", VERSION + 1)
    with pytest.raises(NewerFormatError, match=r"'f' in 'here' .* 2; .* 1\n"):
        reader_of(start + struct.pack("<I", crc32(start)) + bytes(100))


def test_large_file_needs_little_memory(tmp_path: Path) -> None:
    value = bytes(10_000)
    tracemalloc.start()
    try:
        write_shard_file(tmp_path / "f", FileKind.SNAPSHOT, in_blocks((b"%08d" % i, value) for i in range(4_000)))
        size = (tmp_path / "f").stat().st_size
        reader = ShardFileReader(local_reader(tmp_path / "f"), size, None, "f", "here")
        assert sum(1 for _ in reader.scan()) == 4_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 40_000_000
    assert peak < 12_000_000
