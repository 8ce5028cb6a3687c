"""Contents of part files, and errors for records that do not fit."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet
import pytest

from arcbeam.io import Avro, Bytes, Csv, Format, JsonLines, Parquet, RecordError, Text
from arcbeam.io.parts.packs import Pack, packed

AVRO = {"type": "record", "name": "R", "fields": [{"name": "k", "type": "long"}, {"name": "v", "type": "string"}]}
ARROW = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])
ROWS = [{"k": k, "v": f"é{k}" * (k % 7)} for k in range(20_000)]
FEW = ROWS[:2000]
LINES = [f"line {n} é" for n in range(3000)]


def file_of(format: Format, records: list[Any], encoded: bool, pieces: int = 3) -> bytes:
    out = io.BytesIO()
    opened = format.open(out.write)
    size = max(1, -(-len(records) // pieces))
    for start in range(0, len(records), size):
        some = records[start : start + size]
        if encoded:
            opened.add(format.encode(some))
        else:
            opened.add_records(some)
    opened.close()
    return out.getvalue()


def avro(data: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(data)))


def parquet(data: bytes) -> Any:
    return pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()


def json_lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.decode().splitlines()]


def lines(data: bytes) -> list[Any]:
    return data.decode().splitlines()


def table(data: bytes) -> list[Any]:
    """Return the rows below a header."""
    head, *rows = csv.reader(io.StringIO(data.decode(), newline=""), delimiter=";" if b";" in data else ",")
    assert head == ["k", "v"]
    return [{"k": int(k), "v": v} for k, v in rows]


def bare_table(data: bytes) -> list[Any]:
    return [{"k": int(k), "v": v} for k, v in csv.reader(io.StringIO(data.decode(), newline=""), delimiter="\t")]


def unzipped(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a reader that refuses what is not compressed as a whole, as one stream."""

    def read_zipped(data: bytes) -> Any:
        stream = zlib.decompressobj(wbits=31)
        content = stream.decompress(data)
        assert stream.eof
        assert not stream.unused_data
        assert gzip.decompress(data) == content
        return read(content)

    return read_zipped


CASES: list[tuple[Format, list[Any], Callable[[bytes], Any]]] = [
    (Text(), LINES, lines),
    (Text(compression="gzip"), LINES, unzipped(lines)),
    (JsonLines(), ROWS, json_lines),
    (JsonLines(compression="gzip"), FEW, unzipped(json_lines)),
    (Csv(["k", "v"]), ROWS, table),
    (Csv(["k", "v"], compression="gzip"), FEW, unzipped(table)),
    (Csv(["k", "v"], delimiter=";"), FEW, table),
    (Csv(["k", "v"], header=False, delimiter="\t"), FEW, bare_table),
    (Csv(["k", "v"], header=False, delimiter="\t", compression="gzip"), FEW, unzipped(bare_table)),
    (Bytes(), [b"a\n", b"", b"\0"] * 100, lambda data: [b"a\n", b"", b"\0"] * data.count(b"\0")),
    (Avro(AVRO), ROWS, avro),
    (Avro(AVRO, codec="null"), ROWS, avro),
    *((Parquet(ARROW, rows=700, compression=codec), FEW, parquet) for codec in ("snappy", "gzip", "zstd", "none")),
]


@pytest.mark.parametrize(("format", "records", "read"), CASES, ids=lambda case: type(case).__name__)
def test_file_without_records_is_read_back(format: Format, records: list[Any], read: Any) -> None:
    assert records
    assert read(file_of(format, [], encoded=False)) == []


def test_packed_records_are_written_as_encoded_ones() -> None:
    for format, records, _ in CASES:
        out = io.BytesIO()
        opened = format.open(out.write)
        opened.add_pack(Pack.of(packed(format.encode(records))))
        opened.close()
        assert out.getvalue() == file_of(format, records, encoded=True, pieces=1)
        assert opened.taken > 0


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(("format", "records", "read"), CASES, ids=lambda case: type(case).__name__)
def test_written_records_are_read_back(format: Format, records: list[Any], read: Any, encoded: bool) -> None:
    data = file_of(format, records, encoded)
    assert read(data) == records
    # Again, divided differently: the same bytes.
    if not isinstance(format, Parquet):
        assert file_of(format, records, not encoded, pieces=7) == data
    assert file_of(format, records, encoded) == data


def test_csv_quotes_fields() -> None:
    records: list[Any] = [{"b": 'say "x"', "a": 1}, (2, "two\nlines, and a comma"), [None, 1.5]]
    data = file_of(Csv(["a", "b"]), records, encoded=False)
    assert data.decode() == 'a,b\n1,"say ""x"""\n2,"two\nlines, and a comma"\n,1.5\n'
    assert file_of(Csv(["a", "b"]), records, encoded=True) == data
    bare = Csv(["a", "b"], header=False, delimiter="\t", compression="gzip")
    assert gzip.decompress(file_of(bare, [(1, 2)], encoded=True)) == b"1\t2\n"
    assert bare.suffix == ".csv.gz"


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(
    ("format", "good", "bad", "why"),
    [
        (Text(), "a", 7, r"Text .* the record 7: .*\bstr\b.*\bint\b.*beam.Map\(str\)"),
        (Text(), "a", "\ud800", r"Text .* the record '\\ud800': .*surrogates"),
        (
            JsonLines(),
            1,
            {"a": {1}},
            r"JsonLines .* the record {'a': \{1\}\}: Object of type set is not JSON",
        ),
        (JsonLines(), 1, float("nan"), r"JsonLines .* the record nan: .*not JSON compliant"),
        (Csv(["a", "b"]), (1, 2), {"a": 1, "c": 2}, r"\['b'\]; .*\['c'\]"),
        (Csv(["a"]), (1,), (1, 2), r"Csv .*\(1, 2\): .*\b1 values.*\b2$"),
        (Csv(["a"]), (1,), "x", r"Csv .*'x': .*\bdict, list or tuple\b.*\bstr\b"),
        (Bytes(), b"a", "a", r"Bytes .* the record 'a': .*\bbytes\b.*\bstr\b"),
        (Avro(AVRO), ROWS[0], {"k": "x", "v": ""}, r"Avro .* the record {'k': 'x', 'v': ''}: "),
        (Parquet(ARROW), ROWS[0], {"k": "x"}, r"Parquet .* the record {'k': 'x', 'v': None}: .*'x'"),
        (Parquet(ARROW), ROWS[0], {"v": "x"}, r"Parquet .*'k' is .*not nullable"),
        (Parquet(ARROW), ROWS[0], {"k": 1, "w": 1}, r"Parquet .*: .*\['w'\]"),
        (Parquet(ARROW), ROWS[0], 5, r"Parquet .*5: .*\bdict\b.*\bint\b"),
    ],
)
def test_error_names_record(format: Format, good: Any, bad: Any, why: str, encoded: bool) -> None:
    with pytest.raises(RecordError, match=why):
        file_of(format, [good, bad, good], encoded, pieces=1)


def test_error_shows_beginning_of_long_record() -> None:
    with pytest.raises(RecordError, match=r"record b'xxx.{70,80}…: .*\bbytes\b"):
        Text().encode([b"x" * 1000])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Text(compression="zip"), "compression='zip'"),  # type: ignore[arg-type]
        (lambda: Csv([]), "names of the columns"),
        (lambda: Csv("ab"), "names of the columns"),
        (lambda: Csv(["a", "a"]), "each once"),
        (lambda: Avro(AVRO, codec="lz"), "codec='lz'"),  # type: ignore[arg-type]
        (lambda: Parquet({"a": 1}), "pyarrow.Schema"),
        (lambda: Parquet(ARROW, rows=0), "rows=0"),
    ],
)
def test_format_refuses_invalid_arguments(make: Any, why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        make()
