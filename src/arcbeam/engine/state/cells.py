"""State cells of one stage in one shard, in the view: bags, ordered lists, multimaps. SDKs keep all states in them.

Owns the rows of cells, and the row of a key that is too long for them. Keys, windows and values are encoded; the caller
has their coders. Must not know timers, holds, or the purpose of a state.

A cell is identified by its user key, its window and its family; it is empty until the first write. A write is visible
at once. All cells of a user key and window are one range of rows, so that one scan removes them when the window has
expired.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.keyspace import (
    END,
    KEY_LIMIT,
    NAME_LIMIT,
    RowKind,
    Section,
    after,
    moment,
    name,
    part,
    prefix,
    time_of,
)
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW


class CellKind(enum.IntEnum):
    """The byte before a cell's family: two kinds of cells never share rows.

    Do not reuse 0x43, 0x4D, 0x53, 0x56 and 0x58: format 1 reserves them for kinds that no stage had.
    """

    BAG = 0x42
    MULTIMAP = 0x55
    ORDERED_LIST = 0x4F


class Cells:
    """The location of the cells of one stage.

    Args:
        view: the view of the shard.
        stage: the stage's number.

    Attributes:
        more: in the global window, which never ends: the change of the number of bags that are not empty, by family.
        cut: whether the rows of the last call's key lack its end.
    """

    __slots__ = ("_counts", "_ending", "_key", "_prefix", "_start", "_window", "cut", "more", "view")

    def __init__(self, view: StateView, stage: int) -> None:
        self.view = view
        self._prefix = prefix(RowKind.KEYED, stage)
        self._key: bytes | None = None
        self._window: bytes | None = None
        self._ending = self._start = b""
        self._counts = self.cut = False
        self.more: dict[str, int] = {}

    def start(self, key: bytes, window: bytes) -> bytes:
        """Return the common prefix of the rows of all cells of a user key and window."""
        # Most calls have the same key and window as the one before.
        if window != self._window:
            self._window, self._key = window, None
            self._counts = window == _ENDLESS
            self._ending = part(window, NAME_LIMIT) + _CELL
        if key != self._key:
            self._key = key
            piece = part(key)
            self.cut = len(piece) > _WHOLE_BYTES_MAX
            self._start = self._prefix + piece + self._ending
        return self._start

    def keep_key(self) -> None:
        """Store the whole key of the last call, which is cut: a cell of it is no longer empty."""
        row = self._start[:-1] + _KEY
        if self.view.get(row) is None:
            assert self._key is not None
            self.view.put(row, self._key)

    def forget_key(self) -> None:
        """Remove the whole key of the last call, unless it has a cell that is not empty."""
        if next(iter(self.view.scan(self._start, after(self._start))), None) is None:
            self.view.delete(self._start[:-1] + _KEY)

    def count(self, family: str, change: int) -> None:
        """Count a bag that is no longer empty (1) or empty again (-1), of the last call's key and window."""
        if self._counts:
            self.more[family] = self.more.get(family, 0) + change


_CELL = bytes((Section.CELL,))
_KEY = bytes((Section.KEY,)) + END
_WHOLE_BYTES_MAX = KEY_LIMIT + len(END)
_ENDLESS = GLOBAL_WINDOW.ordered()


class _Cell:
    """The common part of all kinds: the location of the family's rows."""

    __slots__ = ("_cells", "_family", "_name", "_view")
    kind: CellKind

    def __init__(self, cells: Cells, family: str) -> None:
        self._cells = cells
        self._view = cells.view
        self._name = family
        self._family = bytes((self.kind,)) + name(family)

    def _at(self, key: bytes, window: bytes) -> bytes:
        return self._cells.start(key, window) + self._family


class BagCell(_Cell):
    """A family of cells that hold values in order of arrival. Values are appended, never rewritten."""

    __slots__ = ()
    kind = CellKind.BAG

    def add(self, key: bytes, window: bytes, value: bytes) -> None:
        """Append a value."""
        if sequences.append(self._view, self._cells.start(key, window) + self._family, value):
            self._filled()

    def extend(self, key: bytes, window: bytes, values: Iterable[bytes]) -> None:
        """Append values, as they arrive."""
        if sequences.extend(self._view, self._at(key, window), values):
            self._filled()

    def replace(self, key: bytes, window: bytes, values: Sequence[bytes]) -> None:
        """Replace all values by these, at least one."""
        if sequences.replace(self._view, self._at(key, window), values):
            self._filled()

    def read(self, key: bytes, window: bytes) -> Iterator[bytes]:
        """Return the current values, read while they are iterated; values appended later are not seen."""
        return sequences.read(self._view, self._at(key, window))

    def clear(self, key: bytes, window: bytes) -> None:
        """Remove all values."""
        if sequences.clear(self._view, self._at(key, window)):
            self._cells.count(self._name, -1)
            if self._cells.cut:
                self._cells.forget_key()

    def _filled(self) -> None:
        self._cells.count(self._name, 1)
        if self._cells.cut:
            self._cells.keep_key()


class OrderedListCell(_Cell):
    """A family of cells that hold values by sort key; values with the same sort key are in order of arrival.

    It is unspecified whether an iteration sees later writes.
    """

    __slots__ = ()
    kind = CellKind.ORDERED_LIST

    def add(self, key: bytes, window: bytes, sort_key: Timestamp, value: bytes) -> None:
        """Add a value at its sort key."""
        start = self._cells.start(key, window) + self._family + moment(sort_key)
        if sequences.append(self._view, start, value) and self._cells.cut:
            self._cells.keep_key()

    def read(
        self, key: bytes, window: bytes, start: Timestamp | None = None, end: Timestamp | None = None
    ) -> Iterator[tuple[Timestamp, bytes]]:
        """Yield sort keys and values with start <= sort key < end, ascending; None: no bound."""
        at = self._at(key, window)
        size = len(at) + 8
        for row, value in self._view.scan(*_between(at, start, end)):
            sort_key = time_of(row[size - 8 : size])
            for each in sequences.of_row(row[size:], value):
                yield sort_key, each

    def clear_range(self, key: bytes, window: bytes, start: Timestamp | None, end: Timestamp | None) -> None:
        """Remove the values that `read` yields for the range."""
        for row, _ in self._view.scan(*_between(self._at(key, window), start, end)):
            self._view.delete(row)
        if self._cells.cut:
            self._cells.forget_key()


class MultimapCell(_Cell):
    """A family of cells that hold values by key of a map; values of one such key are in order of arrival.

    A key is in the map from its first `extend` on, also without values. The order of the map's keys is fixed, but has
    no meaning. It is unspecified whether an iteration sees later writes.
    """

    __slots__ = ()
    kind = CellKind.MULTIMAP

    def extend(self, key: bytes, window: bytes, map_key: bytes, values: Iterable[bytes]) -> None:
        """Append values of a key of the map."""
        start = self._at(key, window) + _digest(map_key)
        if next(sequences.read(self._view, start), None) is None:
            sequences.append(self._view, start, map_key)
            if self._cells.cut:
                self._cells.keep_key()
        sequences.extend(self._view, start, values)

    def read(self, key: bytes, window: bytes, map_key: bytes) -> Iterator[bytes]:
        """Return the values of a key of the map."""
        # The first value of a sequence is the key of the map itself.
        return islice(sequences.read(self._view, self._at(key, window) + _digest(map_key)), 1, None)

    def keys(self, key: bytes, window: bytes) -> Iterator[bytes]:
        """Yield the keys of the map."""
        at = self._at(key, window)
        end = after(at)
        position: bytes | None = at
        while position is not None and (found := next(self._view.scan(position, end), None)) is not None:
            start = found[0][: len(at) + _DIGEST_BYTES]
            yield next(sequences.of_row(found[0][len(start) :], found[1]))
            position = after(start)

    def remove(self, key: bytes, window: bytes, map_key: bytes) -> None:
        """Remove a key of the map, with its values."""
        if sequences.clear(self._view, self._at(key, window) + _digest(map_key)) and self._cells.cut:
            self._cells.forget_key()

    def clear(self, key: bytes, window: bytes) -> None:
        """Remove all keys of the map."""
        at = self._at(key, window)
        for row, _ in self._view.scan(at, after(at)):
            self._view.delete(row)
        if self._cells.cut:
            self._cells.forget_key()


_DIGEST_BYTES = 16
"""Bytes of a digest of a map's key: such keys may be too long for the key of a row."""


def _digest(map_key: bytes) -> bytes:
    return hashlib.blake2b(map_key, digest_size=_DIGEST_BYTES).digest()


def _between(at: bytes, start: Timestamp | None, end: Timestamp | None) -> tuple[bytes, bytes | None]:
    return at if start is None else at + moment(start), after(at) if end is None else at + moment(end)
