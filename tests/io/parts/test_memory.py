"""Memory for a task's part files: bounded, however many windows, destinations and shards it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.transforms.window import GlobalWindow

from arcbeam.io import Parquet, Roll
from arcbeam.io.parts import direct, keyed
from arcbeam.io.parts.direct import WriteHere
from arcbeam.io.parts.formats import Format, Text
from arcbeam.io.parts.keyed import EncodedChunks
from arcbeam.io.parts.naming import Template
from arcbeam.io.parts.packs import Pack
from arcbeam.io.parts.work import PartFile, Work
from tests.io.parts.jobs import attempt

pytestmark = pytest.mark.contract("END-06")


def work(folder: Path, format: Format, **roll: Any) -> Work:
    template = Template("{destination}/{shard}-{part}", destinations=True, shards=None)
    return Work(str(folder), format, template, Roll(**roll))


def written(writes: WriteHere) -> list[PartFile]:
    return [PartFile.of(each.value[1]) for each in writes.finish_bundle()]


@pytest.mark.parametrize("roll", [{}, {"elements": 3}])
def test_files_are_closed_beyond_limit(tmp_path: Path, roll: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_HELD_BYTES_MAX", 4 << 20)
    writes = WriteHere(work(tmp_path, Text(), **roll), lambda line: f"d{int(line) % 10}", GlobalWindowCoder())
    writes.setup()
    with attempt():
        for _ in range(2):
            writes.start_bundle()
            for n in range(100):
                writes.take([str(n)], GlobalWindow())
                assert len(writes._open) <= 4
            files = written(writes)
            assert writes._held == 0
            assert sum(file.records for file in files) == 100
            assert {file.destination for file in files} == {f"d{n}" for n in range(10)}


def test_file_with_most_memory_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_HELD_BYTES_MAX", (2 << 20) + 100_000)
    parquet = Parquet(pa.schema([("n", pa.int64()), ("to", pa.string())]), rows=50_000)
    writes = WriteHere(work(tmp_path, parquet), lambda row: row["to"], GlobalWindowCoder())
    writes.setup()
    writes.start_bundle()
    with attempt():
        for count, to, still in (
            (40_000, "much", ["much"]),
            (10, "few", ["few"]),
            (20_000, "much", ["few"]),
            (9_999, "few", ["few"]),
        ):
            writes.take([{"n": n, "to": to} for n in range(count)], GlobalWindow())
            assert [of[1] for of in writes._open] == still
        files = written(writes)
    assert sorted((file.destination, file.records) for file in files) == [
        ("few", 10_009),
        ("much", 20_000),
        ("much", 40_000),
    ]


def test_all_chunks_are_emitted_beyond_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "_HELD_BYTES_MAX", 1000)
    chunks = EncodedChunks(work(tmp_path, Text()), lambda line: f"d{line}", 2)
    chunks.start_bundle()
    arrived: list[Any] = []
    for n in range(100):
        arrived += chunks.take([str(n)], GlobalWindow())
        assert sum(len(chunk.records) for chunk in chunks._chunks.values()) <= 20
    assert len(arrived) >= 80
    arrived += chunks.finish_bundle()
    assert chunks._held == 0
    assert sorted(int(line) for each in arrived for line in Pack.of(each.value[1])) == list(range(100))
