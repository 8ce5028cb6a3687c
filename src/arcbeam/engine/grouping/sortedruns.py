"""The elements of a window from several micro-batches: sorted runs of records, written once, and merged when read.

Owns their rows, and when small runs are merged. Must not know what a record's bytes mean, nor when a window ends.

    place                 the directory: a version, then the number and size of each run (four and eight bytes)
    place, number, row    a part of a run (four bytes each): records in order of their keys

A *record* is a key and its bytes. A micro-batch adds one run to a window, whatever the number of keys. So a key needs
no row of its own, and nothing is read before the window ends. Runs of similar size are merged, so that few are read
together. A byte is rewritten once for each time that its run has grown eightfold, and not at all when the run is large.
Only adjacent runs are merged, so the bytes of a key stay in order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Final

from arcbeam.engine.rows.keyspace import after
from arcbeam.engine.rows.storedpane import STORED_PANE_BYTES_MIN, StoredPane
from arcbeam.errors import StateFormatError
from arcbeam.model.interfaces import StateView
from arcbeam.sizes import threshold

VERSION: Final = b"\1"
"""The version of the format."""
ROW_BYTES: Final = threshold(16 << 10)
"""The approximate length of a row. One row of each run is in memory while runs are read."""
MERGED_RUNS: Final = threshold(8, 2)
"""The number of runs of similar size that are merged, together with smaller ones between them."""
LARGE_RUN_BYTES_MIN: Final = threshold(256 << 10, 256)
"""A run with at least this number of bytes is not merged again."""
RUNS_AFTER_LARGE_MAX: Final = threshold(64, 3)
"""The number of runs after the last large one that are merged, whatever their sizes: alternating sizes never match."""

_HEAD: Final = struct.Struct("<II")
"""The header of a record: the lengths of its key and of its bytes."""
_RUN: Final = struct.Struct(">IQ")
_NUMBER: Final = struct.Struct(">I")

Group = tuple[bytes, Iterable[bytes]]
"""A key, and its payloads in order; as they were given, if no run contains any of them."""


class Many:
    """The number of keys in runs, each once for each run that contains it.

    Attributes:
        more: its change.
    """

    __slots__ = ("more",)

    def __init__(self) -> None:
        self.more = 0


class SortedRuns:
    """The runs of one window.

    Args:
        view: the shard's state.
        place: the exclusive prefix of the keys of its rows.
        many: counts their keys.
    """

    __slots__ = ("_many", "_place", "_view")

    def __init__(self, view: StateView, place: bytes, many: Many | None = None) -> None:
        self._view, self._place = view, place
        self._many = many or Many()

    def add(self, groups: Mapping[bytes, Iterable[bytes]]) -> None:
        """Add a micro-batch's payloads: by key, in order; there is at least one."""
        runs = self._directory()
        number = max(runs, default=0) + 1
        runs[number] = self._write(number, ((key, groups[key]) for key in sorted(groups)))
        if joined := _joined(list(runs.values())):
            newest = list(runs)[-joined:]
            merged = Merged(self._view, [self._rows_of(each) for each in newest], many=self._many)
            runs[number + 1] = self._write(number + 1, merged)
            for each in newest:
                del runs[each]
        self._view.put(self._place, directory(runs))

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return not self._directory()

    def merged(self, more: Mapping[bytes, Iterable[bytes]]) -> Merged:
        """Return all payloads, by key in ascending order; they are removed while they are read.

        Args:
            more: newer payloads; they follow the stored ones.
        """
        runs = [self._rows_of(number) for number in self._directory()]
        return Merged(self._view, runs, more, self._many, lends=True)

    def clear(self) -> None:
        """Remove the rest of a window that was read completely."""
        self._view.delete(self._place)

    def _directory(self) -> dict[int, int]:
        """Return the size of each run by its number, in order of arrival."""
        stored = self._view.get(self._place)
        if stored is None:
            return {}
        if stored[:1] != VERSION:
            known, found = VERSION.hex(), stored[:1].hex() or "nothing"
            raise StateFormatError(
                "the list of a window's runs", f"has version {found}; this code reads version {known}"
            )
        try:
            return dict(_RUN.iter_unpack(stored[1:]))
        except struct.error as e:
            raise StateFormatError("the list of a window's runs", "is cut off") from e

    def _rows_of(self, number: int) -> bytes:
        return self._place + _NUMBER.pack(number)

    def _write(self, number: int, groups: Iterable[Group]) -> int:
        """Write a run; return its size."""
        start, pack = self._rows_of(number), _HEAD.pack
        parts: list[bytes] = []
        row = size = total = keys = 0
        for key, payloads in groups:
            keys += 1
            for payload in payloads:
                parts += (pack(len(key), len(payload)), key, payload)
                size += _HEAD.size + len(key) + len(payload)
                if size >= ROW_BYTES:
                    self._view.put(start + _NUMBER.pack(row), b"".join(parts))
                    parts = []
                    row, total, size = row + 1, total + size, 0
        if parts:
            self._view.put(start + _NUMBER.pack(row), b"".join(parts))
        self._many.more += keys
        return total + size


def directory(runs: Mapping[int, int]) -> bytes:
    """Return the value of a directory's row: the size of each run by its number, in order of arrival."""
    return VERSION + b"".join(_RUN.pack(number, size) for number, size in runs.items())


class RunWriter:
    """Writes a run of records that come one after another, in the order of their keys.

    Args:
        put: puts a row.
        place: as in `SortedRuns`.
        number: the number of the run.

    Attributes:
        size: its size so far.
    """

    __slots__ = ("_parts", "_put", "_row", "_size", "_start", "size")

    def __init__(self, put: Callable[[bytes, bytes], None], place: bytes, number: int) -> None:
        self._put, self._start = put, place + _NUMBER.pack(number)
        self._parts: list[bytes] = []
        self._row = self._size = self.size = 0

    def add(self, record: bytes) -> None:
        """Add a record."""
        self._parts.append(record)
        self._size += len(record)
        if self._size >= ROW_BYTES:
            self.end()

    def end(self) -> None:
        """Write the rest."""
        if self._parts:
            self._put(self._start + _NUMBER.pack(self._row), b"".join(self._parts))
            self._parts = []
            self._row, self.size, self._size = self._row + 1, self.size + self._size, 0


def records(row: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records in the value of a run's row, each with its key."""
    position = 0
    while position < len(row):
        try:
            of_key, of_payload = _HEAD.unpack_from(row, position)
        except struct.error as e:
            raise _cut_off() from e
        key = position + _HEAD.size
        end = key + of_key + of_payload
        if end > len(row):
            raise _cut_off()
        yield row[key : key + of_key], row[position:end]
        position = end


def _joined(sizes: list[int]) -> int:
    """Return how many of the newest runs to merge; mostly 0."""
    joined = tier = alike = size = 0
    for count, each in enumerate(reversed(sizes), 1):
        if each >= LARGE_RUN_BYTES_MIN:
            break
        size += each
        if (of_each := _tier(each)) > tier:
            tier, alike = of_each, 0
        alike += of_each == tier
        if alike == MERGED_RUNS or count == RUNS_AFTER_LARGE_MAX:
            # The result may complete another group of similar runs: it is written only once.
            joined, tier, alike = count, _tier(size), 1
            if size >= LARGE_RUN_BYTES_MIN:
                break
    return joined


def _tier(size: int) -> int:
    """Return the size class: from 4, 32, 256, … bytes, so that `MERGED_RUNS` runs of a class make one of the next."""
    return size.bit_length() // 3


class Merged:
    """The payloads of runs, by key in ascending order. Iterated once; what was read is removed from the view.

    Args:
        view: the shard's state.
        runs: the prefixes of each run's rows, in order of arrival.
        more: newer payloads, by key.
        many: counts the keys of the runs.
        lends: whether a key's large payloads are lent (`engine.rows.storedpane`), until the next key is read.
    """

    __slots__ = ("_heap", "_keys", "_lends", "_lent", "_many", "_more", "_readers")

    def __init__(
        self,
        view: StateView,
        runs: Iterable[bytes],
        more: Mapping[bytes, Iterable[bytes]] | None = None,
        many: Many | None = None,
        *,
        lends: bool = False,
    ) -> None:
        self._lends = lends
        self._lent: StoredPane | None = None
        self._more = more or {}
        self._many = many or Many()
        readers = [_Reader(view, start) for start in runs]
        self._readers = [reader for reader in readers if reader.key is not None]
        self._heap: list[tuple[bytes, int]] = [(r.key, n) for n, r in enumerate(self._readers) if r.key is not None]
        # If there is nothing to merge them with, their order does not matter.
        keys = sorted(self._more) if self._heap else list(self._more)
        keys.reverse()
        self._keys = keys

    def __iter__(self) -> Iterator[Group]:
        heap, readers, keys, more, many = self._heap, self._readers, self._keys, self._more, self._many
        heapify(heap)
        while heap:
            key = heap[0][0]
            while keys and keys[-1] < key:
                own = keys.pop()
                yield own, more[own]
            payloads: list[bytes] = []
            size = 0
            stretches: list[_Stretch] = []
            while heap and heap[0][0] == key:
                reader = readers[heap[0][1]]
                if size > STORED_PANE_BYTES_MIN and self._lends:
                    stretches.append(reader.pass_over())
                else:
                    payloads.append(reader.take())
                    size += len(payloads[-1])
                if reader.key is None:
                    heappop(heap)
                    many.more -= 1
                elif reader.key != key:
                    heapreplace(heap, (reader.key, heap[0][1]))
                    many.more -= 1
            newer = list(more[keys.pop()]) if keys and keys[-1] == key else []
            if stretches:
                lent = self._lent = _lent(payloads, stretches, newer)
                yield key, lent
                lent.release()
                self._lent = None
                continue
            payloads += newer
            yield key, payloads
        while keys:
            own = keys.pop()
            yield own, more[own]

    @property
    def empty(self) -> bool:
        """Whether everything was read."""
        return not self._heap and not self._keys

    def stop_reading(self) -> dict[bytes, Iterable[bytes]]:
        """Stop reading: the rest stays. Return the rest of `more`, which is stored nowhere else."""
        if self._lent is not None:
            # SUBTLE: its reader has no next key, which would remove its rows. They would be read again.
            self._lent.release()
        for reader in self._readers:
            reader.stop_reading()
        return {key: self._more[key] for key in self._keys}


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The records of one key in a run.

    Attributes:
        first, start: the row with the first record, and its position there.
        last, end: the row with the last record, and its end there.
        rows: the rows that contain nothing after these records.
        size: the bytes of the payloads.
        newest: the last payload.
    """

    view: StateView
    first: bytes
    start: int
    last: bytes
    end: int
    rows: range
    size: int
    newest: bytes

    def __iter__(self) -> Iterator[bytes]:
        for row, data in self.view.scan(self.first, after(self.last)):
            position = self.start if row == self.first else 0
            end = self.end if row == self.last else len(data)
            while position < end:
                of_key, of_payload = _HEAD.unpack_from(data, position)
                position += _HEAD.size + of_key + of_payload
                yield data[position - of_payload : position]

    def remove(self) -> None:
        prefix = self.first[: -_NUMBER.size]
        for number in self.rows:
            self.view.delete(prefix + _NUMBER.pack(number))


def _lent(payloads: list[bytes], stretches: list[_Stretch], newer: list[bytes]) -> StoredPane:
    size = sum(map(len, payloads)) + sum(each.size for each in stretches) + sum(map(len, newer))

    def remove() -> None:
        for each in stretches:
            each.remove()

    last = newer[-1] if newer else stretches[-1].newest
    return StoredPane(_Joined((payloads, *stretches, newer)), size, last, remove)


@dataclass(frozen=True, slots=True)
class _Joined:
    parts: tuple[Iterable[bytes], ...]

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self.parts)


class _Reader:
    """Reads a run, record by record, and removes the rows that it has read.

    Attributes:
        key: the key of the next record; None if there is none.
    """

    __slots__ = ("_end", "_left", "_position", "_row", "_rows", "_start", "_view", "key")

    def __init__(self, view: StateView, start: bytes) -> None:
        self._view = view
        self._rows = view.scan(start, after(start))
        self._row, self._left = b"", b""
        self._position = self._start = self._end = 0
        self.key: bytes | None = None
        self._advance()

    def take(self) -> bytes:
        """Return the next record's bytes, and move on."""
        payload = self._left[self._start : self._end]
        self._position = self._end
        self._advance()
        return payload

    def pass_over(self) -> _Stretch:
        """Move on to the next key. The records stay in their rows; return where they are."""
        key, first, start = self.key, self._row, self._position
        size = 0
        while self.key == key:
            last, newest, end = self._row, self._left[self._start : self._end], self._end
            size += len(newest)
            self._position = end
            self._advance(remove=False)
        # The row with the next key is removed after that.
        stop = _number_of(last) if self._row == last else _number_of(last) + 1
        return _Stretch(self._view, first, start, last, end, range(_number_of(first), stop), size, newest)

    def stop_reading(self) -> None:
        """Store the unread rest of the current row."""
        if self.key is not None and self._position:
            self._view.put(self._row, self._left[self._position :])

    def _advance(self, *, remove: bool = True) -> None:
        if self._position == len(self._left):
            if self._row and remove:
                self._view.delete(self._row)
            self._row, self._left = next(self._rows, (b"", b""))
            self._position = 0
            if not self._row:
                self.key = None
                return
        key = self._position + _HEAD.size
        try:
            of_key, of_payload = _HEAD.unpack_from(self._left, self._position)
        except struct.error as e:
            raise _cut_off() from e
        self._start = key + of_key
        self._end = self._start + of_payload
        if self._end > len(self._left):
            raise _cut_off()
        self.key = self._left[key : self._start]


def _number_of(row: bytes) -> int:
    return int(_NUMBER.unpack(row[-_NUMBER.size :])[0])


def _cut_off() -> StateFormatError:
    return StateFormatError("a run of a window", "is cut off")
