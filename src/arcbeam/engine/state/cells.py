"""State cells of one stage in one shard, over the view: value, bag, combining, set, map, multimap, ordered list.

Owns the rows of cells. Keys, windows, values and map keys are encoded; coders are the caller's. Must not know timers,
holds, or what the state is for.

A cell is known by its user key, its window and its family; it is empty until something is written. What was written is
read at once. Nothing is rewritten whole, but for values and accumulators. All cells of a user key and window are one
range of rows, so that they go with one scan when the window has expired.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence

from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.keyspace import (
    END,
    NAME_LIMIT,
    Kind,
    Section,
    after,
    moment,
    name,
    part,
    prefix,
    time_of,
    whole,
)
from arcbeam.model.seams import StateView
from arcbeam.model.timestamps import Timestamp


class CellKind(enum.IntEnum):
    """The byte in front of a cell's family: two kinds of cells never share rows."""

    VALUE = 0x56
    BAG = 0x42
    COMBINING = 0x43
    SET = 0x53
    MAP = 0x4D
    MULTIMAP = 0x58
    ORDERED_LIST = 0x4F


class Cells:
    """Where the cells of one stage are.

    Args:
        view: of the shard.
        stage: the stage's number.
    """

    __slots__ = ("_ending", "_key", "_prefix", "_start", "_window", "view")

    def __init__(self, view: StateView, stage: int) -> None:
        self.view = view
        self._prefix = prefix(Kind.KEYED, stage)
        self._key: bytes | None = None
        self._window: bytes | None = None
        self._ending = self._start = b""

    def start(self, key: bytes, window: bytes) -> bytes:
        """The beginning of the rows of all cells of a user key and window."""
        # Most calls are about the same key and window as the one before.
        if window != self._window:
            self._window, self._key = window, None
            self._ending = part(window, NAME_LIMIT) + _CELL
        if key != self._key:
            self._key = key
            self._start = self._prefix + part(key) + self._ending
        return self._start

    def exist(self, key: bytes, window: bytes) -> bool:
        """Whether any cell of a user key and window has anything."""
        return _any(self.view, self.start(key, window))

    def drop(self, key: bytes, window: bytes) -> int:
        """Empties all cells of a user key and window; how many rows that were."""
        return _clear(self.view, self.start(key, window))


_CELL = bytes((Section.CELL,))


class _Cell:
    """What all kinds share: where the family's rows are."""

    __slots__ = ("_cells", "_family", "_view")
    kind: CellKind

    def __init__(self, cells: Cells, family: str) -> None:
        self._cells = cells
        self._view = cells.view
        self._family = bytes((self.kind,)) + name(family)

    def _at(self, key: bytes, window: bytes) -> bytes:
        return self._cells.start(key, window) + self._family


class ValueCell(_Cell):
    """A family of cells that hold one value each."""

    __slots__ = ()
    kind = CellKind.VALUE

    def read(self, key: bytes, window: bytes) -> bytes | None:
        """The value; None if nothing was written."""
        return self._view.get(self._cells.start(key, window) + self._family)

    def write(self, key: bytes, window: bytes, value: bytes) -> None:
        """Sets the value."""
        self._view.put(self._cells.start(key, window) + self._family, value)

    def clear(self, key: bytes, window: bytes) -> None:
        """Forgets the value."""
        self._view.delete(self._at(key, window))

    def exists(self, key: bytes, window: bytes) -> bool:
        """Whether there is a value."""
        return self._view.get(self._at(key, window)) is not None


class BagCell(_Cell):
    """A family of cells that hold values in order of arrival. Appended to, never rewritten."""

    __slots__ = ()
    kind = CellKind.BAG

    def add(self, key: bytes, window: bytes, value: bytes) -> None:
        """Appends a value."""
        sequences.append(self._view, self._cells.start(key, window) + self._family, value)

    def extend(self, key: bytes, window: bytes, values: Iterable[bytes]) -> None:
        """Appends values, as they come."""
        sequences.extend(self._view, self._at(key, window), values)

    def read(self, key: bytes, window: bytes) -> Iterator[bytes]:
        """The values as they are now, read as they are iterated; what is appended later is not seen."""
        return sequences.read(self._view, self._at(key, window))

    def clear(self, key: bytes, window: bytes) -> None:
        """Forgets all values."""
        sequences.clear(self._view, self._at(key, window))

    def exists(self, key: bytes, window: bytes) -> bool:
        """Whether there is a value."""
        return sequences.exists(self._view, self._at(key, window))


class CombiningCell(_Cell):
    """A family of cells that hold an accumulator each.

    Adding is blind: accumulators are put behind one another in one row, and merged when the cell is read, or when they
    have outgrown what they were merged to.

    Args:
        cells: of the stage.
        family: its name.
        merge: makes one accumulator of several, the oldest first.
    """

    __slots__ = ("_merge",)
    kind = CellKind.COMBINING
    _SLACK = 512

    def __init__(self, cells: Cells, family: str, merge: Callable[[Sequence[bytes]], bytes]) -> None:
        super().__init__(cells, family)
        self._merge = merge

    # A row: the length of what was merged last (four bytes), then accumulators, each behind its length.

    def add(self, key: bytes, window: bytes, accumulator: bytes) -> None:
        """Adds an accumulator."""
        row = self._cells.start(key, window) + self._family
        old = self._view.get(row)
        if old is None:
            self._view.put(row, _merged(accumulator))
            return
        new = old + sequences.framed(accumulator)
        if len(new) > 2 * int.from_bytes(old[:4], "big") + self._SLACK:
            new = _merged(self._merge(list(sequences.unframed(new, 4))))
        self._view.put(row, new)

    def read(self, key: bytes, window: bytes) -> bytes | None:
        """All that was added, merged; None if there is nothing. The cell keeps what was merged."""
        row = self._at(key, window)
        old = self._view.get(row)
        if old is None:
            return None
        accumulators = list(sequences.unframed(old, 4))
        if len(accumulators) == 1:
            return accumulators[0]
        merged = self._merge(accumulators)
        self._view.put(row, _merged(merged))
        return merged

    def write(self, key: bytes, window: bytes, accumulator: bytes) -> None:
        """Puts an accumulator in place of all that was added."""
        self._view.put(self._at(key, window), _merged(accumulator))

    def clear(self, key: bytes, window: bytes) -> None:
        """Forgets all that was added."""
        self._view.delete(self._at(key, window))

    def exists(self, key: bytes, window: bytes) -> bool:
        """Whether anything was added."""
        return self._view.get(self._at(key, window)) is not None


class _Ranged(_Cell):
    """A family of cells that are many rows each."""

    __slots__ = ()

    def clear(self, key: bytes, window: bytes) -> None:
        """Empties the cell."""
        _clear(self._view, self._at(key, window))

    def exists(self, key: bytes, window: bytes) -> bool:
        """Whether the cell has anything."""
        return _any(self._view, self._at(key, window))


class SetCell(_Ranged):
    """A family of cells that hold different elements each. Whether an iteration sees later writes is not said."""

    __slots__ = ()
    kind = CellKind.SET

    def add(self, key: bytes, window: bytes, element: bytes) -> None:
        """Puts an element in, if it is not."""
        encoded = part(element)
        self._view.put(self._at(key, window) + encoded, b"" if _is_whole(encoded) else element)

    def discard(self, key: bytes, window: bytes, element: bytes) -> None:
        """Takes an element out, if it is in."""
        self._view.delete(self._at(key, window) + part(element))

    def contains(self, key: bytes, window: bytes, element: bytes) -> bool:
        """Whether an element is in."""
        return self._view.get(self._at(key, window) + part(element)) is not None

    def read(self, key: bytes, window: bytes) -> Iterator[bytes]:
        """The elements, in an order that depends on them alone: that of their first `KEY_LIMIT` bytes, at least."""
        start = self._at(key, window)
        for row, value in self._view.scan(start, after(start)):
            element = whole(row[len(start) : -2])
            yield value if element is None else element


class MapCell(_Ranged):
    """A family of cells that hold a value per map key each. Whether an iteration sees later writes is not said."""

    __slots__ = ()
    kind = CellKind.MAP

    def put(self, key: bytes, window: bytes, map_key: bytes, value: bytes) -> None:
        """Sets the value of a map key."""
        encoded = part(map_key)
        if not _is_whole(encoded):
            value = len(map_key).to_bytes(4, "big") + map_key + value
        self._view.put(self._at(key, window) + encoded, value)

    def get(self, key: bytes, window: bytes, map_key: bytes) -> bytes | None:
        """The value of a map key; None if it has none."""
        encoded = part(map_key)
        value = self._view.get(self._at(key, window) + encoded)
        return value if value is None or _is_whole(encoded) else value[4 + len(map_key) :]

    def remove(self, key: bytes, window: bytes, map_key: bytes) -> None:
        """Forgets a map key and its value, if it has one."""
        self._view.delete(self._at(key, window) + part(map_key))

    def items(self, key: bytes, window: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Map keys and their values, in an order that depends on the map keys alone."""
        start = self._at(key, window)
        for row, value in self._view.scan(start, after(start)):
            map_key = whole(row[len(start) : -2])
            if map_key is None:
                size = 4 + int.from_bytes(value[:4], "big")
                map_key, value = value[4:size], value[size:]
            yield map_key, value

    def keys(self, key: bytes, window: bytes) -> Iterator[bytes]:
        """The map keys, in the order of `items`."""
        return (map_key for map_key, _ in self.items(key, window))


class MultimapCell(_Ranged):
    """A family of cells that hold values per map key, in order of arrival.

    Whether an iteration over map keys sees later writes is not said; one over the values of a map key does not.
    """

    __slots__ = ()
    kind = CellKind.MULTIMAP
    _ORIGINAL = b"\xfe"
    """Behind the beginning of a map key's sequence: the row that has the map key, if it does not stand there whole."""

    def add(self, key: bytes, window: bytes, map_key: bytes, value: bytes) -> None:
        """Appends a value to those of a map key."""
        self.extend(key, window, map_key, (value,))

    def extend(self, key: bytes, window: bytes, map_key: bytes, values: Iterable[bytes]) -> None:
        """Appends values, as they come, to those of a map key."""
        encoded = part(map_key)
        start = self._at(key, window) + encoded
        sequences.extend(self._view, start, values)
        if not _is_whole(encoded) and sequences.exists(self._view, start):
            self._view.put(start + self._ORIGINAL, map_key)

    def get(self, key: bytes, window: bytes, map_key: bytes) -> Iterator[bytes]:
        """The values of a map key, as they are now."""
        return sequences.read(self._view, self._at(key, window) + part(map_key))

    def remove(self, key: bytes, window: bytes, map_key: bytes) -> None:
        """Forgets a map key and its values."""
        encoded = part(map_key)
        start = self._at(key, window) + encoded
        sequences.clear(self._view, start)
        if not _is_whole(encoded):
            self._view.delete(start + self._ORIGINAL)

    def keys(self, key: bytes, window: bytes) -> Iterator[bytes]:
        """The map keys that have values, in an order that depends on them alone."""
        start = self._at(key, window)
        for row, value in self._view.scan(start, after(start)):
            piece, _, rest = row[len(start) :].partition(END)
            if rest == self._ORIGINAL:
                yield value
            elif rest == sequences.TAIL:
                map_key = whole(piece)
                if map_key is not None:
                    yield map_key

    def items(self, key: bytes, window: bytes) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        """Map keys and the values of each, in the order of `keys`."""
        return ((map_key, self.get(key, window, map_key)) for map_key in self.keys(key, window))


class OrderedListCell(_Ranged):
    """A family of cells that hold values by sort key; those of one sort key are in order of arrival.

    Whether an iteration sees later writes is not said.
    """

    __slots__ = ()
    kind = CellKind.ORDERED_LIST

    def add(self, key: bytes, window: bytes, sort_key: Timestamp, value: bytes) -> None:
        """Puts a value in its place."""
        sequences.append(self._view, self._cells.start(key, window) + self._family + moment(sort_key), value)

    def read(
        self, key: bytes, window: bytes, start: Timestamp | None = None, end: Timestamp | None = None
    ) -> Iterator[tuple[Timestamp, bytes]]:
        """Sort keys and values with start <= sort key < end, ascending; from the first and to the last if None."""
        at = self._at(key, window)
        size = len(at) + 8
        for row, value in self._view.scan(*_between(at, start, end)):
            sort_key = time_of(row[size - 8 : size])
            for each in sequences.of_row(row[size:], value):
                yield sort_key, each

    def clear_range(self, key: bytes, window: bytes, start: Timestamp | None, end: Timestamp | None) -> None:
        """Removes the values that `read` gives for the range."""
        for row, _ in self._view.scan(*_between(self._at(key, window), start, end)):
            self._view.delete(row)


def _between(at: bytes, start: Timestamp | None, end: Timestamp | None) -> tuple[bytes, bytes | None]:
    return at if start is None else at + moment(start), after(at) if end is None else at + moment(end)


def _is_whole(encoded: bytes) -> bool:
    """Whether a part holds all of what it is the encoding of."""
    return whole(encoded[:-2]) is not None


def _merged(accumulator: bytes) -> bytes:
    data = sequences.framed(accumulator)
    return len(data).to_bytes(4, "big") + data


def _any(view: StateView, start: bytes) -> bool:
    return next(iter(view.scan(start, after(start))), None) is not None


def _clear(view: StateView, start: bytes) -> int:
    rows = 0
    for row, _ in view.scan(start, after(start)):
        view.delete(row)
        rows += 1
    return rows
