"""What has come to a window in several micro-batches: sorted runs of records, written once, and merged when they are
read.

Owns their rows, and when small runs become one. Must not know what a record's bytes mean, nor when a window ends.

    place                 the directory: a version, then of each run its number and its size (four and eight bytes)
    place, number, row    a part of a run (four bytes each): records in order of their keys

A *record* is a key and bytes that came with it. A micro-batch adds one run to a window, whatever the number of keys; so
a key costs no row of its own, and nothing is read before the window ends. So that few are read at once, runs of about a
size become one: a byte is moved again once for each time that its run has grown eightfold, and no more when it is
large. Only runs that came one behind the other become one, so what comes with a key stays in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Final

from arcbeam.engine.rows.keyspace import after
from arcbeam.errors import StateFormatError
from arcbeam.model.interfaces import StateView
from arcbeam.sizes import threshold

VERSION: Final = b"\1"
"""Of all of it."""
ROW_BYTES: Final = threshold(16 << 10)
"""A row of a run is about so long. Of each run that is read, one row is in memory."""
FAN: Final = threshold(8, 2)
"""So many runs of about a size become one, with those of less that have come between them."""
LARGE: Final = threshold(256 << 10, 256)
"""A run of so many bytes stays as it is."""
MANY: Final = threshold(64, 3)
"""So many behind the last large one become one, whatever their sizes: where these take turns, few are alike."""

_HEAD: Final = struct.Struct("<II")
"""In front of a record: the lengths of its key and of its bytes."""
_RUN: Final = struct.Struct(">IQ")
_NUMBER: Final = struct.Struct(">I")

Group = tuple[bytes, Iterable[bytes]]
"""A key, and what has come with it, in order: as it was given, if none of it was in runs."""


class Many:
    """How many keys there are in runs, each once for each run that it is in.

    Attributes:
        more: by how many more than at first.
    """

    __slots__ = ("more",)

    def __init__(self) -> None:
        self.more = 0


class SortedRuns:
    """The runs of one window.

    Args:
        view: of the shard's state.
        place: what the keys of its rows begin with; no other's do.
        many: counts their keys.
    """

    __slots__ = ("_many", "_place", "_view")

    def __init__(self, view: StateView, place: bytes, many: Many | None = None) -> None:
        self._view, self._place = view, place
        self._many = many or Many()

    def add(self, groups: Mapping[bytes, Iterable[bytes]]) -> None:
        """Adds what has come in a micro-batch: by key, in order; there is something."""
        runs = self._directory()
        number = max(runs, default=0) + 1
        runs[number] = self._write(number, ((key, groups[key]) for key in sorted(groups)))
        if joined := _joined(list(runs.values())):
            newest = list(runs)[-joined:]
            merged = Merged(self._view, [self._rows_of(each) for each in newest], many=self._many)
            runs[number + 1] = self._write(number + 1, merged)
            for each in newest:
                del runs[each]
        self._view.put(self._place, VERSION + b"".join(_RUN.pack(number, size) for number, size in runs.items()))

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return not self._directory()

    def merged(self, more: Mapping[bytes, Iterable[bytes]]) -> Merged:
        """All there is, by key in ascending order; it is taken away as it is read.

        Args:
            more: what has come meanwhile; behind what is stored.
        """
        return Merged(self._view, [self._rows_of(number) for number in self._directory()], more, self._many)

    def clear(self) -> None:
        """Removes what is left of a window that is read to its end."""
        self._view.delete(self._place)

    def _directory(self) -> dict[int, int]:
        """The size of each run by its number, in the order in which they came."""
        stored = self._view.get(self._place)
        if stored is None:
            return {}
        if stored[:1] != VERSION:
            known, found = VERSION.hex(), stored[:1].hex() or "nothing"
            raise StateFormatError(
                "the list of what has come to a window", f"is of version {found}, and {known} is known"
            )
        try:
            return dict(_RUN.iter_unpack(stored[1:]))
        except struct.error as e:
            raise StateFormatError("the list of what has come to a window", "is cut off") from e

    def _rows_of(self, number: int) -> bytes:
        return self._place + _NUMBER.pack(number)

    def _write(self, number: int, groups: Iterable[Group]) -> int:
        """Writes a run; its size."""
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


def _joined(sizes: list[int]) -> int:
    """How many of the newest runs become one; none, mostly."""
    joined = tier = alike = size = 0
    for count, each in enumerate(reversed(sizes), 1):
        if each >= LARGE:
            break
        size += each
        if (of_each := _tier(each)) > tier:
            tier, alike = of_each, 0
        alike += of_each == tier
        if alike == FAN or count == MANY:
            # What they become may be the last of as many in turn: it is written once.
            joined, tier, alike = count, _tier(size), 1
            if size >= LARGE:
                break
    return joined


def _tier(size: int) -> int:
    """What about a size is: from 4, 32, 256, … bytes on, so that as many as `FAN` make one of the next."""
    return size.bit_length() // 3


class Merged:
    """What runs have, by key in ascending order. Iterated once; what has been read is in the view no more.

    Args:
        view: of the shard's state.
        runs: what the keys of each run's rows begin with, in the order in which they came.
        more: what has come behind all of them, by key.
        many: counts the keys of the runs.
    """

    __slots__ = ("_heap", "_keys", "_many", "_more", "_readers")

    def __init__(
        self,
        view: StateView,
        runs: Iterable[bytes],
        more: Mapping[bytes, Iterable[bytes]] | None = None,
        many: Many | None = None,
    ) -> None:
        self._more = more or {}
        self._many = many or Many()
        readers = [_Reader(view, start) for start in runs]
        self._readers = [reader for reader in readers if reader.key is not None]
        self._heap: list[tuple[bytes, int]] = [(r.key, n) for n, r in enumerate(self._readers) if r.key is not None]
        # Without anything to merge them with their order is nobody's.
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
            while heap and heap[0][0] == key:
                reader = readers[heap[0][1]]
                payloads.append(reader.take())
                if reader.key is None:
                    heappop(heap)
                    many.more -= 1
                elif reader.key != key:
                    heapreplace(heap, (reader.key, heap[0][1]))
                    many.more -= 1
            if keys and keys[-1] == key:
                payloads += more[keys.pop()]
            yield key, payloads
        while keys:
            own = keys.pop()
            yield own, more[own]

    @property
    def empty(self) -> bool:
        """Whether all has been read."""
        return not self._heap and not self._keys

    def leave(self) -> dict[bytes, Iterable[bytes]]:
        """Nothing more is read for now: the rest stays. What of `more` has not been read, for it is nowhere else."""
        for reader in self._readers:
            reader.leave()
        return {key: self._more[key] for key in self._keys}


class _Reader:
    """Reads a run, record after record, and removes its rows behind itself.

    Attributes:
        key: of the next record; None if there is none.
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
        """The next record's bytes; it is read."""
        payload = self._left[self._start : self._end]
        self._position = self._end
        self._advance()
        return payload

    def leave(self) -> None:
        """Keeps what has not been read of the row that is being read."""
        if self.key is not None and self._position:
            self._view.put(self._row, self._left[self._position :])

    def _advance(self) -> None:
        if self._position == len(self._left):
            if self._row:
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


def _cut_off() -> StateFormatError:
    return StateFormatError("what has come to a window", "is cut off")
