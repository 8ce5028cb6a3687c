"""Part files of records with a schema: Avro and Parquet.

Owns how records are written to such files with fastavro and pyarrow, the libraries of Beam's own sinks.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import fastavro
import pyarrow as pa
from fastavro.write import Writer
from typing_extensions import override

from arcbeam.io.parts.formats import Format, Open, Write
from arcbeam.sizes import threshold

_BLOCK: Final = threshold(1 << 16)
"""Bytes of a block of an Avro file before compression."""


class Avro(Format):
    """Records of an Avro schema, in the form that fastavro takes.

    Records are encoded where they are produced, and are written unchanged: waiting in the state costs no second
    encoding. The marker between blocks is derived from the schema, so the same records give the same bytes.

    Args:
        schema: as fastavro takes it.
        codec: codec of the blocks: "null" or "deflate".
        suffix: suffix of the files' names.

    Raises:
        ValueError: the codec is unknown.
        Exception: fastavro rejects the schema.
    """

    def __init__(self, schema: Any, *, codec: Literal["null", "deflate"] = "deflate", suffix: str = ".avro") -> None:
        if codec not in ("null", "deflate"):
            raise ValueError(f'Avro(codec={codec!r}): expected "deflate" or "null"')
        self._schema, self._codec, self.suffix = schema, codec, suffix
        _ = self._parsed

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_parsed"}

    @cached_property
    def _parsed(self) -> Any:
        return fastavro.parse_schema(self._schema)

    @override
    def encode(self, records: Sequence[Any]) -> list[bytes]:
        return self.one_by_one(records, self._encoded)

    @override
    def encoding(self) -> Any:
        return self._schema

    def _encoded(self, record: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._parsed, record)
        return out.getvalue()

    @override
    def open(self, write: Write) -> Open:
        sync = hashlib.md5(json.dumps(self._schema).encode(), usedforsecurity=False).digest()
        out: Any = _Sink(write)
        return _OpenAvro(self, Writer(out, self._parsed, self._codec, sync_marker=sync))


@dataclass(frozen=True, slots=True)
class _Block:
    """Encoded records in the form in which fastavro accepts a block of another file."""

    bytes_: io.BytesIO
    num_records: int


class _OpenAvro(Open):
    def __init__(self, of: Avro, out: Writer) -> None:
        self._of, self._out = of, out
        self._block: list[bytes] = []
        self._size = 0

    def add(self, encoded: Sequence[bytes]) -> None:
        for each in encoded:
            self._block.append(each)
            self._size += len(each)
            self.taken += len(each)
            if self._size >= _BLOCK:
                self._flush()

    def add_records(self, records: Sequence[Any]) -> None:
        self.add(self._of.encode(records))

    def _flush(self) -> None:
        if self._block:
            self._out.write_block(_Block(io.BytesIO(b"".join(self._block)), len(self._block)))
        self._block, self._size = [], 0

    def close(self) -> None:
        self._flush()


class Parquet(Format):
    """Dicts, with an Arrow schema. A field that is missing from a record is null.

    An error is raised for a field that is missing from the schema, and for a null in a field that is not nullable.
    `Roll.bytes` counts the size of Arrow tables; for records that wait in the state, the size of their pickles.

    Args:
        schema: the schema of the files.
        compression: compression of the columns, as pyarrow names it.
        rows: rows of a row group.
        suffix: suffix of the files' names.

    Raises:
        TypeError: `schema` is not a pyarrow.Schema.
        ValueError: `rows` is below 1.
    """

    def __init__(
        self, schema: pa.Schema, *, compression: str = "snappy", rows: int = 100_000, suffix: str = ".parquet"
    ) -> None:
        if not isinstance(schema, pa.Schema):
            raise TypeError(f"Parquet({schema!r}): expected a pyarrow.Schema")
        if rows < 1:
            raise ValueError(f"Parquet(rows={rows}): expected at least one row per row group")
        self.schema, self.compression, self.rows, self.suffix = schema, compression, rows, suffix
        self._names = tuple(schema.names)
        self._known = frozenset(schema.names)
        self._required = tuple(field.name for field in schema if not field.nullable)

    @override
    def encode(self, records: Sequence[Any]) -> list[bytes]:
        self._table(self._rows(records))  # raises errors where the records are produced, not when they are written
        return [pickle.dumps(row, protocol=5) for row in self._rows(records)]

    @override
    def encoding(self) -> Any:
        return [[field.name, str(field.type), field.nullable] for field in self.schema]

    @override
    def open(self, write: Write) -> Open:
        return _OpenParquet(self, write)

    def _rows(self, records: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the records' values in the order of the schema."""
        known, names, required = self._known, self._names, self._required
        rows = []
        for record in records:
            if not isinstance(record, Mapping):
                self.refuse(record, f"expected a dict, got {type(record).__name__}")
            if not record.keys() <= known:
                self.refuse(record, f"unknown fields {sorted(record.keys() - known)}")
            for name in required:
                if record.get(name) is None:
                    self.refuse(record, f"field {name!r} is null or missing, and not nullable in the schema")
            rows.append(tuple(map(record.get, names)))
        return rows

    def _table(self, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        try:
            return self._arrow(rows)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            for row in rows:
                try:
                    self._arrow([row])
                except Exception as of_one:
                    self.refuse(dict(zip(self._names, row, strict=True)), of_one)
            raise error

    def _arrow(self, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        columns = zip(*rows, strict=True) if rows else [()] * len(self._names)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)


class _OpenParquet(Open):
    def __init__(self, of: Parquet, write: Write) -> None:
        import pyarrow.parquet

        self._of = of
        self._out = pyarrow.parquet.ParquetWriter(_Sink(write), of.schema, compression=of.compression)
        self._tables: list[pa.Table] = []
        self._waiting = 0

    def add(self, encoded: Sequence[bytes]) -> None:
        self._add(list(map(pickle.loads, encoded)))

    def add_records(self, records: Sequence[Any]) -> None:
        self._add(self._of._rows(records))

    def _add(self, rows: list[tuple[Any, ...]]) -> None:
        table = self._of._table(rows)
        self._tables.append(table)
        self.taken += table.nbytes
        self.held += table.nbytes
        self._waiting += len(rows)
        if self._waiting >= self._of.rows:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._out.write_table(pa.concat_tables(self._tables), row_group_size=self._of.rows)
        self._tables, self._waiting, self.held = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._out.close()


class _Sink:
    """A file object for pyarrow that passes bytes to a function."""

    closed = False

    def __init__(self, write: Write) -> None:
        self._out, self._place = write, 0

    def write(self, data: Any) -> int:
        taken = bytes(data)
        self._out(taken)
        self._place += len(taken)
        return len(taken)

    def tell(self) -> int:
        return self._place

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        return

    def close(self) -> None:
        self.closed = True
