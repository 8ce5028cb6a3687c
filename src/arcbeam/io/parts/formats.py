"""File formats of part files: lines, JSON lines, CSV, bytes.

Owns how records are encoded, and the errors for records that cannot be. Avro and Parquet are in
`arcbeam.io.parts.tables`. Must not know names, places and times.
"""

from __future__ import annotations

import csv
import hashlib
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NoReturn

from typing_extensions import override

from arcbeam.io.parts.packs import Pack

Write = Callable[[bytes], Any]

_SHOWN: Final = 80
"""Characters of a record that an error message shows."""
_GZIP: Final = 31
"""zlib's code for a gzip header. The header then contains no time, so the same records give the same bytes."""


class RecordError(ValueError):
    """A record that a format cannot write."""


class Open(ABC):
    """A file that is being written.

    Attributes:
        taken: bytes of the records so far, before compression.
        held: bytes that are in memory, approximately.
    """

    taken: int = 0
    held: int = 0

    @abstractmethod
    def add(self, encoded: Sequence[bytes]) -> None:
        """Append records that `Format.encode` has encoded."""

    def add_pack(self, pack: Pack) -> None:
        """Append packed records that `Format.encode` has encoded."""
        self.add(list(pack))

    @abstractmethod
    def add_records(self, records: Sequence[Any]) -> None:
        """Append records.

        Raises:
            RecordError: a record cannot be written. Some of those before it may have been.
        """

    def close(self) -> None:
        """Write the remaining data."""
        return


class Format(ABC):
    """How records are written into part files.

    Attributes:
        suffix: the end of the files' names.
    """

    suffix: str = ""

    @abstractmethod
    def encode(self, records: Sequence[Any]) -> list[bytes]:
        """Encode records. They travel and wait in the state in this form until they are written.

        Raises:
            RecordError: a record cannot be written.
        """

    @abstractmethod
    def open(self, write: Write) -> Open:
        """Start a file whose bytes are passed to `write`."""

    def encoding(self) -> Any:
        """Return what `encode` depends on, as JSON values that are equal in all processes; None: on nothing.

        Encoded records wait in the state. A job is not resumed with a format of another name, or with another value of
        this: the waiting records would be misinterpreted.
        """
        return None

    def waits_as(self) -> str:
        """Return the name of the format and a digest of `encoding`. Formats with equal results are compatible."""
        of = self.encoding()
        mark = "" if of is None else " " + hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:12]
        return f"{type(self).__name__}{mark}"

    def refuse(self, record: Any, why: object) -> NoReturn:
        """Raise an error that names the record and the cause.

        Raises:
            RecordError: always.
        """
        shown = repr(record)
        beginning = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
        raise RecordError(f"{type(self).__name__} cannot write the record {beginning}: {why}")

    def one_by_one(self, records: Sequence[Any], encode: Callable[[Any], bytes]) -> list[bytes]:
        """Encode records one by one; the error names the first that fails."""
        encoded = []
        for record in records:
            try:
                encoded.append(encode(record))
            except RecordError:
                raise
            except Exception as error:
                self.refuse(record, error)
        return encoded


class Lines(Format):
    """A format whose records are lines, or end with a line end.

    Args:
        compression: compression of the whole file: "gzip", or None.
        suffix: suffix before that of the compression.

    Raises:
        ValueError: the compression is unknown.
    """

    def __init__(self, compression: Literal["gzip"] | None, suffix: str) -> None:
        if compression not in (None, "gzip"):
            raise ValueError(f'{type(self).__name__}(compression={compression!r}): expected "gzip" or None')
        self._compression = compression
        self.suffix = suffix + (".gz" if compression else "")

    @abstractmethod
    def joined(self, records: Sequence[Any]) -> bytes:
        """Return all records as they are in the file; raise any exception if one cannot be written."""

    @abstractmethod
    def encoded(self, record: Any) -> bytes:
        """Return one record as it is in the file; raise any exception if it cannot be written."""

    def head(self) -> bytes:
        """Return the bytes before the first record."""
        return b""

    @override
    def encode(self, records: Sequence[Any]) -> list[bytes]:
        return self.one_by_one(records, self.encoded)

    @override
    def open(self, write: Write) -> Open:
        return _OpenLines(self, write, self._compression is not None)


class _OpenStream(Open):
    """A file of concatenated records."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def add(self, encoded: Sequence[bytes]) -> None:
        self._add(b"".join(encoded))

    def add_pack(self, pack: Pack) -> None:
        self._add(pack.data)

    def _add(self, data: bytes) -> None:
        self.taken += len(data)
        self._write(data)


class _OpenLines(_OpenStream):
    def __init__(self, of: Lines, write: Write, compressed: bool) -> None:
        self._of, self._out = of, write
        self._deflate = deflate = zlib.compressobj(wbits=_GZIP) if compressed else None
        super().__init__(write if deflate is None else lambda data: write(deflate.compress(data)))
        head = of.head()
        if head:
            self._write(head)

    def add_records(self, records: Sequence[Any]) -> None:
        try:
            data = self._of.joined(records)
        except Exception:
            # Encode them one by one to find which record fails, and why.
            data = b"".join(self._of.encode(records))
        self._add(data)

    def close(self) -> None:
        if self._deflate is not None:
            self._out(self._deflate.flush())


class Text(Lines):
    """Strings, each a line in UTF-8. Line ends inside of a string are written unchanged.

    Args:
        compression: "gzip", or None.
        suffix: suffix of the files' names.
    """

    def __init__(self, *, compression: Literal["gzip"] | None = None, suffix: str = ".txt") -> None:
        super().__init__(compression, suffix)

    @override
    def joined(self, records: Sequence[Any]) -> bytes:
        return ("\n".join(records) + "\n").encode()

    @override
    def encode(self, records: Sequence[Any]) -> list[bytes]:
        try:
            return [(record + "\n").encode() for record in records]
        except Exception:
            return super().encode(records)

    @override
    def encoded(self, record: Any) -> bytes:
        if not isinstance(record, str):
            self.refuse(record, f"expected a str, got {type(record).__name__}; convert records with beam.Map(str)")
        return record.encode() + b"\n"


class JsonLines(Lines):
    """Values that the json module writes, each a line of JSON in UTF-8. NaN and infinity are not JSON, and are errors.

    Args:
        compression: "gzip", or None.
        suffix: suffix of the files' names.
        default: converts other values, like the argument of json.dumps; must be picklable.
    """

    def __init__(
        self,
        *,
        compression: Literal["gzip"] | None = None,
        suffix: str = ".jsonl",
        default: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(compression, suffix)
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default)
        self._text = encoder.encode

    @override
    def joined(self, records: Sequence[Any]) -> bytes:
        return ("\n".join(map(self._text, records)) + "\n").encode()

    @override
    def encoded(self, record: Any) -> bytes:
        return self._text(record).encode() + b"\n"


class Csv(Lines):
    r"""Rows in UTF-8, quoted as the csv module does, ended by "\n". Each file begins with the header.

    A record is a dict with exactly these fields, or a sequence (a named tuple, for example) with as many values. None
    is written as an empty field.

    Args:
        fields: names of the columns, in order.
        header: whether files begin with the names.
        delimiter: separates fields.
        compression: "gzip", or None.
        suffix: suffix of the files' names.

    Raises:
        ValueError: `fields` is empty, or contains a name twice.
    """

    def __init__(
        self,
        fields: Sequence[str],
        *,
        header: bool = True,
        delimiter: str = ",",
        compression: Literal["gzip"] | None = None,
        suffix: str = ".csv",
    ) -> None:
        super().__init__(compression, suffix)
        if isinstance(fields, str) or not fields or len(set(fields)) != len(fields):
            raise ValueError(f"Csv(fields={fields!r}): expected the names of the columns, each once")
        self._fields, self._header, self._delimiter = tuple(fields), header, delimiter
        self._names = frozenset(fields)
        self._rows([self._fields])  # raises an error now if the csv module rejects the delimiter

    @override
    def encoding(self) -> Any:
        return [self._fields, self._delimiter]

    @override
    def head(self) -> bytes:
        return self._rows([self._fields]) if self._header else b""

    @override
    def joined(self, records: Sequence[Any]) -> bytes:
        return self._rows(map(self._row, records))

    @override
    def encoded(self, record: Any) -> bytes:
        return self._rows([self._row(record)])

    def _rows(self, rows: Any) -> bytes:
        lines = _Written()
        csv.writer(lines, delimiter=self._delimiter, lineterminator="\n").writerows(rows)
        return "".join(lines).encode()

    def _row(self, record: Any) -> Sequence[Any]:
        if isinstance(record, dict):
            if record.keys() != self._names:
                missing, more = self._names - record.keys(), record.keys() - self._names
                faults = [f"missing fields {sorted(missing)}"] * bool(missing) + [
                    f"unknown fields {sorted(more)}"
                ] * bool(more)
                self.refuse(record, "; ".join(faults))
            return [record[name] for name in self._fields]
        if not isinstance(record, list | tuple):
            self.refuse(record, f"expected a dict, list or tuple, got {type(record).__name__}")
        if len(record) != len(self._fields):
            self.refuse(record, f"expected {len(self._fields)} values, got {len(record)}")
        return record


class _Written(list[str]):
    """Receives the rows that the csv module writes."""

    write = list.append


class Bytes(Format):
    """Bytes: records are concatenated without a separator. If one is needed, it must be in the records.

    Args:
        suffix: suffix of the files' names.
    """

    def __init__(self, *, suffix: str = ".bin") -> None:
        self.suffix = suffix

    @override
    def encode(self, records: Sequence[Any]) -> list[bytes]:
        return self.one_by_one(records, self._checked)

    @override
    def open(self, write: Write) -> Open:
        return _OpenBytes(self, write)

    def _checked(self, record: Any) -> bytes:
        if not isinstance(record, bytes):
            self.refuse(record, f"expected bytes, got {type(record).__name__}")
        return record


class _OpenBytes(_OpenStream):
    def __init__(self, of: Bytes, write: Write) -> None:
        super().__init__(write)
        self._of = of

    def add_records(self, records: Sequence[Any]) -> None:
        self.add(self._of.encode(records))
