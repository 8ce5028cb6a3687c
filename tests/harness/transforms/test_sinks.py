"""Files written block by block: the same files and errors as with the SDK's DoFns."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import pyarrow
import pyarrow.parquet
import pytest
from apache_beam.io import avroio, filebasedsink, iobase, parquetio, textio
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from arcbeam.harness.transforms.sinks import SinkOperation, TableOperation, operation_for
from tests.harness.drive import Collect, Driven

WAYS: list[dict[str, Any]] = [{}, {"bundle_elements": 7}, {"value_chains": False}]
"""Our operation, ours in small bundles, the SDK's."""
AVRO = {"type": "record", "name": "R", "fields": [{"name": "k", "type": "long"}, {"name": "s", "type": "string"}]}
SCHEMA = pyarrow.schema(
    [pyarrow.field("k", pyarrow.int64(), nullable=False), pyarrow.field("s", pyarrow.string(), nullable=True)]
)


def written(folder: Path, elements: list[Any], transform: Any, **ways: Any) -> list[Path]:
    """Write elements to files of a folder; return these."""
    folder.mkdir()
    p = Driven(**ways)
    made = p | beam.Create(elements, reshuffle=False) | beam.Map(made_here).with_output_types(Any)
    made | transform(str(folder / "out"))
    p.run()
    return sorted(folder.iterdir())


def made_here(element: Any) -> Any:
    """Create an object that cannot cross an exchange, after it."""
    return "a\ud800" if element == "surrogate" else element


def of_every_way(tmp_path: Path, elements: list[Any], transform: Any) -> list[list[Path]]:
    return [written(tmp_path / str(n), elements, transform, **way) for n, way in enumerate(WAYS)]


def test_sdk_dofns_are_recognized() -> None:
    text = textio._TextSink("x")
    assert operation_for(iobase._WriteBundleDoFn(text)) is SinkOperation
    avro = avroio._create_avro_sink("x", AVRO, "null", "", 0, None, "", None)
    assert operation_for(iobase._WriteBundleDoFn(avro)) is SinkOperation
    assert operation_for(parquetio._RowDictionariesToArrowTable(SCHEMA)) is TableOperation

    class Own(textio._TextSink):
        pass

    for sink in (
        Own("x"),
        textio._TextSink("x", max_records_per_shard=3),
        textio._TextSink("x", max_bytes_per_shard=3),
    ):
        assert operation_for(iobase._WriteBundleDoFn(sink)) is None
    assert operation_for(parquetio._RowDictionariesToArrowTable(pyarrow.schema([]))) is None
    assert operation_for(beam.Map(str).fn) is None
    assert {"temp_handle", "num_records_written"} <= vars_of_writer()


def vars_of_writer() -> set[str]:
    return set(filebasedsink.FileBasedSinkWriter.__init__.__code__.co_names)


LINES: dict[str, list[Any]] = {
    "many": [f"line {n} ä" for n in range(10_000)],
    "of all types": ["text", b"bytes \xff", 7, None, 1.5, ("a", 1), "", "two\nlines"] * 40,
    "one": ["only"],
}


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"append_trailing_newlines": False},
        {"header": "head", "footer": "foot"},
        {"max_records_per_shard": 100},
        {"compression_type": CompressionTypes.GZIP},
    ],
    ids=str,
)
def test_text_sink(tmp_path: Path, options: dict[str, Any], lines: str) -> None:
    def content(path: Path) -> bytes:
        data = path.read_bytes()
        return gzip.decompress(data) if "compression_type" in options else data

    ours, cut, sdk = of_every_way(tmp_path, LINES[lines], lambda path: beam.io.WriteToText(path, **options))
    assert sorted(map(content, ours)) == sorted(map(content, sdk))
    if not {"header", "max_records_per_shard"} & options.keys():
        assert sorted(b"".join(map(content, cut))) == sorted(b"".join(map(content, sdk)))


class Weird:
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("wrong", ["surrogate", Weird()], ids=["surrogate", "no text"])
def test_unencodable_line_fails_like_sdk(tmp_path: Path, wrong: Any) -> None:
    errors = []
    for n, way in enumerate(WAYS):
        random.seed(1)  # the SDK samples sizes randomly, and would otherwise reach this element earlier
        with pytest.raises(Exception, match=r"while running 'WriteToText/Write/WriteImpl/WriteBundles'") as caught:
            written(tmp_path / str(n), ["fine"] * 300 + [wrong], beam.io.WriteToText, **way)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1] == errors[2]


ROWS = [{"k": n, "s": f"s{n}"} for n in range(5000)]


def test_avro_sink(tmp_path: Path) -> None:
    def records(paths: list[Path]) -> list[Any]:
        return sorted((r["k"], r["s"]) for path in paths for r in fastavro.reader(path.open("rb")))

    ours, cut, sdk = of_every_way(tmp_path, ROWS, lambda path: beam.io.WriteToAvro(path, AVRO))
    assert records(ours) == records(cut) == records(sdk) == [(n, f"s{n}") for n in range(5000)]


def test_invalid_record_fails_like_sdk(tmp_path: Path) -> None:
    errors = []
    for n, way in enumerate(WAYS):
        with pytest.raises(Exception, match="WriteBundles") as caught:
            written(tmp_path / str(n), [*ROWS[:300], {"k": "x", "s": 1}], lambda p: beam.io.WriteToAvro(p, AVRO), **way)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1] == errors[2]


@pytest.mark.parametrize(
    "sizes", [{}, {"record_batch_size": 3}, {"row_group_buffer_size": 2000, "record_batch_size": 10}]
)
def test_parquet_sink(tmp_path: Path, sizes: dict[str, int]) -> None:
    rows = [*ROWS[:3000], *({"k": n} for n in range(40)), *({"k": n, "s": None, "more": 1} for n in range(40))]

    def groups(paths: list[Path]) -> list[Any]:
        return [
            pyarrow.parquet.ParquetFile(path).read_row_group(group).to_pylist()
            for path in paths
            for group in range(pyarrow.parquet.ParquetFile(path).num_row_groups)
        ]

    ours, cut, sdk = of_every_way(tmp_path, rows, lambda path: beam.io.WriteToParquet(path, SCHEMA, **sizes))
    assert groups(ours) == groups(sdk)
    flat = [[row["k"] for group in groups(paths) for row in group] for paths in (cut, sdk)]
    assert sorted(flat[0]) == sorted(flat[1])
    assert len(flat[0]) == len(rows)


@pytest.mark.parametrize("wrong", [{"s": "no k"}, {"k": "text", "s": ""}], ids=["missing", "of another type"])
def test_invalid_row_fails_like_sdk(tmp_path: Path, wrong: Any) -> None:
    errors = []
    for n, way in enumerate(WAYS):
        with pytest.raises(Exception, match="WriteToParquet") as caught:
            written(tmp_path / str(n), [*ROWS[:300], wrong], lambda p: beam.io.WriteToParquet(p, SCHEMA), **way)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[2]


class Row(dict):  # type: ignore[type-arg]
    def __missing__(self, name: str) -> Any:
        return 7


def test_rows_other_than_dicts(tmp_path: Path) -> None:
    rows = [*ROWS[:300], *(Row(s=f"{n}") for n in range(300))]
    files = of_every_way(tmp_path, rows, lambda path: beam.io.WriteToParquet(path, SCHEMA))
    ours, cut, sdk = [
        sorted(str(row) for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()) for paths in files
    ]
    assert ours == cut == sdk


def test_tables_of_rows_in_windows() -> None:
    def ends(**ways: Any) -> list[Any]:
        with Driven(**ways) as p:
            rows = p | beam.Create(list(range(60)), reshuffle=False)
            timed = rows | beam.Map(lambda n: TimestampedValue({"k": n, "s": ""}, n)).with_output_types(dict)
            tables = timed | beam.WindowInto(FixedWindows(20))
            tables | beam.ParDo(parquetio._RowDictionariesToArrowTable(SCHEMA)).with_output_types(Any) | Collect()
        return [(table.num_rows, time, repr(window)) for table, time, window in p.windowed()]

    assert ends() == ends(value_chains=False) != []
