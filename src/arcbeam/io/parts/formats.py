"""What a part file looks like inside: lines, JSON lines, CSV, bytes.

Owns how records become bytes, and what is said of one that cannot. Avro and Parquet are `arcbeam.io.parts.tables`.
Knows nothing of names, places and times.
"""

from __future__ import annotations

import csv
import hashlib
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NoReturn

from arcbeam.io.parts.packs import Pack

Write = Callable[[bytes], Any]

_SHOWN: Final = 80
"""Characters of a record that an error shows."""
_GZIP: Final = 31
"""zlib's word for a gzip header, which then has no time in it: the same records are the same bytes."""


class RecordError(ValueError):
    """A record that a format cannot write."""


class Open(ABC):
    """A file that is being written.

    Attributes:
        taken: bytes of the records so far, before they are compressed.
        held: those of them that are in memory, about.
    """

    taken: int = 0
    held: int = 0

    @abstractmethod
    def add(self, encoded: Sequence[bytes]) -> None:
        """Adds records as `Format.encode` gave them."""

    def add_pack(self, pack: Pack) -> None:
        """Adds records as `Format.encode` gave them, packed."""
        self.add(list(pack))

    @abstractmethod
    def add_records(self, records: Sequence[Any]) -> None:
        """Adds records.

        Raises:
            RecordError: one cannot be written. Some of those before it may have been.
        """

    def close(self) -> None:
        """Writes what is left."""
        return


class Format(ABC):
    """How records are written into part files.

    Attributes:
        suffix: what names of files end with.
    """

    suffix: str = ""

    @abstractmethod
    def encode(self, records: Sequence[Any]) -> list[bytes]:
        """Records as they travel, and wait in state, until they are written.

        Raises:
            RecordError: one cannot be written.
        """

    @abstractmethod
    def open(self, write: Write) -> Open:
        """Begins a file that goes where `write` puts it."""

    def encoding(self) -> Any:
        """What `encode` depends on, as values that json writes, the same in all processes; None: on nothing.

        Records wait in state as they are encoded. A job is not resumed with a format of another name, or one for which
        this is something else: those that wait would be written as what they are not.
        """
        return None

    def waits_as(self) -> str:
        """Name of the format and of what `encode` depends on: what one has encoded another of that name may write."""
        of = self.encoding()
        mark = "" if of is None else " " + hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:12]
        return f"{type(self).__name__}{mark}"

    def refuse(self, record: Any, why: object) -> NoReturn:
        """Says which record cannot be written, and why.

        Raises:
            RecordError: always.
        """
        shown = repr(record)
        beginning = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
        raise RecordError(f"{type(self).__name__} cannot write the record {beginning}: {why}")

    def one_by_one(self, records: Sequence[Any], encode: Callable[[Any], bytes]) -> list[bytes]:
        """All of them encoded; of the first that cannot be, which it is."""
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
    """A format of records that are lines, or end with them.

    Args:
        compression: of the whole file; "gzip", or None.
        suffix: before that of the compression.

    Raises:
        ValueError: the compression is not known.
    """

    def __init__(self, compression: Literal["gzip"] | None, suffix: str) -> None:
        if compression not in (None, "gzip"):
            raise ValueError(f'{type(self).__name__}(compression={compression!r}): there is "gzip", and None')
        self._compression = compression
        self.suffix = suffix + (".gz" if compression else "")

    @abstractmethod
    def joined(self, records: Sequence[Any]) -> bytes:
        """All records, as they stand in the file; any exception if one cannot be written."""

    @abstractmethod
    def encoded(self, record: Any) -> bytes:
        """One record, as it stands in the file; any exception if it cannot be written."""

    def head(self) -> bytes:
        """What stands before the first record."""
        return b""

    def encode(self, records: Sequence[Any]) -> list[bytes]:
        """See `Format`."""
        return self.one_by_one(records, self.encoded)

    def open(self, write: Write) -> Open:
        """See `Format`."""
        return _OpenLines(self, write, self._compression is not None)


class _OpenStream(Open):
    """A file that has one record behind the other."""

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
            # Which of them it is, and why, is found out by taking them one by one.
            data = b"".join(self._of.encode(records))
        self._add(data)

    def close(self) -> None:
        if self._deflate is not None:
            self._out(self._deflate.flush())


class Text(Lines):
    """Strings, each a line in UTF-8. What a string has of line ends of its own stands in the file as it is.

    Args:
        compression: "gzip", or None.
        suffix: of the files.
    """

    def __init__(self, *, compression: Literal["gzip"] | None = None, suffix: str = ".txt") -> None:
        super().__init__(compression, suffix)

    def joined(self, records: Sequence[Any]) -> bytes:
        """See `Lines`."""
        return ("\n".join(records) + "\n").encode()

    def encode(self, records: Sequence[Any]) -> list[bytes]:
        """See `Format`."""
        try:
            return [(record + "\n").encode() for record in records]
        except Exception:
            return super().encode(records)

    def encoded(self, record: Any) -> bytes:
        """See `Lines`."""
        if not isinstance(record, str):
            self.refuse(record, f"it is a {type(record).__name__}, not a str; make it one by beam.Map(str)")
        return record.encode() + b"\n"


class JsonLines(Lines):
    """Whatever the json module writes, each record a line of JSON in UTF-8. No NaN, no infinity: they are not JSON.

    Args:
        compression: "gzip", or None.
        suffix: of the files.
        default: makes something that is JSON out of what is not, as json.dumps has it; to be pickled.
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

    def joined(self, records: Sequence[Any]) -> bytes:
        """See `Lines`."""
        return ("\n".join(map(self._text, records)) + "\n").encode()

    def encoded(self, record: Any) -> bytes:
        """See `Lines`."""
        return self._text(record).encode() + b"\n"


class Csv(Lines):
    r"""Rows, quoted as the csv module does it, in UTF-8, ended by "\n". Each file begins with the header.

    A record is a dict that has just the fields, or a sequence (a named tuple, say) of as many values. None is an empty
    field.

    Args:
        fields: names of the columns, in their order.
        header: whether files begin with the names.
        delimiter: between fields.
        compression: "gzip", or None.
        suffix: of the files.

    Raises:
        ValueError: there are no fields, or one is there twice.
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
            raise ValueError(f"Csv(fields={fields!r}): give it the names of the columns, each once")
        self._fields, self._header, self._delimiter = tuple(fields), header, delimiter
        self._names = frozenset(fields)
        self._rows([self._fields])  # what the csv module has against the delimiter, it says now

    def encoding(self) -> Any:
        """See `Format`."""
        return [self._fields, self._delimiter]

    def head(self) -> bytes:
        """See `Lines`."""
        return self._rows([self._fields]) if self._header else b""

    def joined(self, records: Sequence[Any]) -> bytes:
        """See `Lines`."""
        return self._rows(map(self._row, records))

    def encoded(self, record: Any) -> bytes:
        """See `Lines`."""
        return self._rows([self._row(record)])

    def _rows(self, rows: Any) -> bytes:
        lines = _Written()
        csv.writer(lines, delimiter=self._delimiter, lineterminator="\n").writerows(rows)
        return "".join(lines).encode()

    def _row(self, record: Any) -> Sequence[Any]:
        if isinstance(record, dict):
            if record.keys() != self._names:
                missing, more = self._names - record.keys(), record.keys() - self._names
                said = [f"it has no {sorted(missing)}"] * bool(missing) + [f"{sorted(more)} is no field"] * bool(more)
                self.refuse(record, "; ".join(said))
            return [record[name] for name in self._fields]
        if not isinstance(record, list | tuple):
            self.refuse(record, f"it is a {type(record).__name__}, not a dict, list or tuple")
        if len(record) != len(self._fields):
            self.refuse(record, f"it has {len(record)} values for {len(self._fields)} fields")
        return record


class _Written(list[str]):
    """What the csv module writes, a row at a time."""

    write = list.append


class Bytes(Format):
    """Bytes, one record after the other, with nothing between them: what tells them apart is in the records.

    Args:
        suffix: of the files.
    """

    def __init__(self, *, suffix: str = ".bin") -> None:
        self.suffix = suffix

    def encode(self, records: Sequence[Any]) -> list[bytes]:
        """See `Format`."""
        return self.one_by_one(records, self._checked)

    def open(self, write: Write) -> Open:
        """See `Format`."""
        return _OpenBytes(self, write)

    def _checked(self, record: Any) -> bytes:
        if not isinstance(record, bytes):
            self.refuse(record, f"it is a {type(record).__name__}, not bytes")
        return record


class _OpenBytes(_OpenStream):
    def __init__(self, of: Bytes, write: Write) -> None:
        super().__init__(write)
        self._of = of

    def add_records(self, records: Sequence[Any]) -> None:
        self.add(self._of.encode(records))
