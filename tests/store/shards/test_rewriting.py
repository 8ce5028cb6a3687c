"""New shards have the rows that were put into them, whatever the order and the memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.store.shards import rewriting
from arcbeam.store.shards.compaction import scan
from arcbeam.store.shards.rewriting import LevelWriter, ShardRows
from arcbeam.testing.blobs import MemoryBlobs

SHARDS = 3
ROWS = st.dictionaries(
    st.tuples(st.integers(0, SHARDS - 1), st.binary(max_size=3)), st.sampled_from([b"", b"v", b"v" * 300]), max_size=30
)


@settings(max_examples=50, deadline=None)
@given(ROWS, st.randoms(), st.sampled_from([1, 1000, 1 << 20]))
def test_each_shard_has_its_rows(rows: dict[tuple[int, bytes], bytes], chance: object, memory: int) -> None:
    blobs = MemoryBlobs()
    order = list(rows.items())
    chance.shuffle(order)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder, patch.object(rewriting, "_MEMORY", memory):
        scratch = Path(folder)
        with LevelWriter(scratch, 2, SHARDS) as writer:
            for (shard, key), value in order:
                writer.put(shard, key, value)
            written = list(writer.written(blobs, 7, 3))
        assert not list(scratch.iterdir()), "local files are removed"
    found = {}
    for shard in written:
        (file,) = shard.files
        assert (shard.level, file.first_micro_batch, file.last_micro_batch) == (2, 0, 7)
        assert file.name.endswith("-00000003-rescaled.snapshot")
        assert list(scan(blobs, shard.files)) == list(ShardRows(blobs, shard.files).scan(b""))
        found |= {(shard.shard, key): value for key, value in scan(blobs, shard.files)}
    assert found == rows


def test_local_files_are_removed_after_an_error(tmp_path: Path) -> None:
    def failing() -> None:
        with LevelWriter(tmp_path, 0, 2) as writer:
            writer.put(0, b"k", b"v")
            assert list(tmp_path.iterdir())
            raise RuntimeError("user code")

    with patch.object(rewriting, "_MEMORY", 1), pytest.raises(RuntimeError, match="user code"):
        failing()
    assert not list(tmp_path.iterdir())


def test_shard_has_rows_of_memory_and_of_local_files(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    rows = [(b"%d" % number, b"v" * 100) for number in range(10)]
    with patch.object(rewriting, "_MEMORY", 1000), LevelWriter(tmp_path, 0, 1) as writer:
        for row in rows:
            writer.put(0, *row)
        (shard,) = writer.written(blobs, 7, 3)
    assert list(scan(blobs, shard.files)) == rows
