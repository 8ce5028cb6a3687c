"""The contents of a window: elements, which are appended and only read for a pane; or an accumulator.

Owns the bytes of both for windows in the state, and elements in memory. Must not know triggers or panes.

Elements are stored in *blocks*. The last few hundred bytes stay in the window's record (its *tail*). Earlier blocks are
in separate entries, which are written once. So the cost of adding an element does not depend on their number, and a
window of few elements is one entry of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct, pack
from typing import Any, Protocol, Self

from typing_extensions import override

from arcbeam.engine.rows.storedpane import STORED_PANE_BYTES_MIN, StoredPane
from arcbeam.errors import StateFormatError
from arcbeam.model.interfaces import StateView
from arcbeam.sizes import threshold

TAIL_BYTES = threshold(512)
"""A longer tail is moved into a separate entry."""
_SMALL, _LARGE = 0, 1
_SMALL_HEADS = tuple(bytes((_SMALL, count)) for count in range(256))
_LARGE_HEAD = Struct("<BI")
_ABSENT: Any = object()


class Contents(Protocol):
    """The contents of a window."""

    # Implementations may be one for each window.
    __slots__ = ()

    def add(self, values: Sequence[Any]) -> None:
        """Add elements."""
        ...

    def take(self, keep: bool, *, lend: bool = True) -> Any:
        """Return the contents of a pane.

        Args:
            keep: whether the elements also count for the next pane.
            lend: whether many elements may stay in the view; see `engine.rows.storedpane`.
        """
        ...

    def clear(self) -> None:
        """Remove all elements."""
        ...

    def absorb(self, other: Any) -> None:
        """Add the elements of another of the same kind, which is not used again."""
        ...


class Combiner(Protocol):
    """Combines elements into accumulators: a CombineFn, and the encoding of its accumulators.

    All methods except `extract` may change the accumulators that they get in place.
    """

    def create(self) -> Any:
        """Return an accumulator without elements."""
        ...

    def add(self, accumulator: Any, values: Sequence[Any]) -> Any:
        """Return the accumulator with these elements added."""
        ...

    def merge(self, accumulators: Sequence[Any]) -> Any:
        """Return the accumulator of the elements of all these accumulators."""
        ...

    def compact(self, accumulator: Any) -> Any:
        """Return an equal accumulator in a compact form, for storing."""
        ...

    def extract(self, accumulator: Any) -> Any:
        """Return the result of an accumulator."""
        ...

    def encode(self, accumulator: Any) -> bytes:
        """Return the bytes of an accumulator."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return the accumulator from its bytes."""
        ...


class EncodedPaneValues:
    """The encoded elements of a pane; may be iterated repeatedly.

    Args:
        chunks: blocks of elements.
        rest: the elements after these blocks.

    Attributes:
        lent: the blocks, if they are in the view; else None.
    """

    __slots__ = ("_chunks", "_rest", "lent")

    def __init__(self, chunks: tuple[bytes, ...] | StoredPane, rest: Sequence[bytes] = ()) -> None:
        self._chunks = chunks
        self._rest = rest
        self.lent = chunks if isinstance(chunks, StoredPane) else None

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            for values in _blocks(chunk):
                yield from values
        yield from self._rest

    @property
    def size(self) -> int:
        """Return their approximate size in bytes."""
        rest = sum(map(len, self._rest))
        return rest + (sum(map(len, self._chunks)) if self.lent is None else self.lent.size)

    def __repr__(self) -> str:
        return f"Values({self.size} bytes)"


class InMemory(Contents):
    """Elements of a window in memory, as they arrived. See `Contents`.

    Attributes:
        values: the elements, in order.
    """

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: list[Any] = []

    @override
    def add(self, values: Sequence[Any]) -> None:
        self.values += values

    @override
    def take(self, keep: bool, *, lend: bool = True) -> Any:
        taken = self.values
        # SUBTLE: the pane keeps the list; later elements must not be added to it.
        self.values = taken.copy() if keep else []
        return taken

    @override
    def clear(self) -> None:
        self.values = []

    @override
    def absorb(self, other: Self) -> None:
        self.values += other.values


class WindowBag:
    """The elements of a window, as bytes.

    Args:
        view: the shard's state.
        entry: returns the key of an entry, from the bag's address and the entry's number.
        fresh: the prefix of a new address, which is chosen when the first entry is written.
        address: the address, which identifies the entries of this bag.
        entries: the number of entries.
        tail: the blocks after the entries.
    """

    __slots__ = ("_adopted", "_entry", "_fresh", "_lent", "_pending", "_tail", "_view", "address", "entries")

    def __init__(
        self,
        view: StateView,
        entry: Callable[[bytes, int], bytes],
        fresh: bytes,
        address: bytes = b"",
        entries: int = 0,
        tail: bytes = b"",
    ) -> None:
        self._view = view
        self._entry = entry
        self._fresh = fresh
        self._tail = tail
        self._pending: list[bytes] = []
        # A pane that was taken and kept, whose reader may still read the entries.
        self._lent: StoredPane | None = None
        self._adopted: Iterable[bytes] | None = None
        self.address = address
        self.entries = entries

    def add(self, values: Iterable[bytes]) -> None:
        """Add elements."""
        self._pending += values

    def adopt(self, contents: Iterable[bytes]) -> None:
        """Add elements to a bag without any, as the contents of a pane. If nothing else is added and they are not kept,
        the next pane is these contents.
        """
        self._adopted = contents

    def take(self, keep: bool, *, lend: bool = True) -> Iterable[bytes]:
        """Return the elements as the contents of a pane.

        Args:
            keep: whether the bag also keeps them.
            lend: see `Contents`.
        """
        if self._adopted is not None:
            if not keep and not self._pending:
                adopted, self._adopted = self._adopted, None
                return adopted
            self._settle()
        chunks: list[bytes] = []
        size = 0
        for n in range(self.entries):
            if data := self._view.get(self._entry(self.address, n)):
                chunks.append(data)
                size += len(data)
                if lend and size > STORED_PANE_BYTES_MIN:
                    return self._lend(size // (n + 1) * self.entries, keep)
        if keep:
            self._settle()
        chunks += [self._tail] if self._tail else []
        values = EncodedPaneValues(tuple(chunks), tuple(self._pending))
        if not keep:
            self.clear()
        return values

    def _lend(self, size: int, keep: bool) -> EncodedPaneValues:
        """Return the elements as the contents of a pane; the entries stay until its reader has returned."""
        if keep:
            self._settle()
        entries = _Entries(self._view, self._entry, self.address, self.entries)
        tail = tuple(value for values in _blocks(self._tail) for value in values)
        lent = StoredPane(entries, size, b"", _nothing if keep else entries.remove)
        values = EncodedPaneValues(lent, (*tail, *self._pending))
        if keep:
            self._lent = lent
        else:
            self.entries = 0
            self.clear()
        return values

    def clear(self) -> None:
        """Remove all elements."""
        if self.entries:
            entries = _Entries(self._view, self._entry, self.address, self.entries)
            if self._lent is None or self._lent.is_released:
                entries.remove()
            else:
                self._lent.also(entries.remove)
        self.entries, self.address, self._tail, self._pending = 0, b"", b"", []
        self._lent = self._adopted = None

    def absorb(self, other: Self) -> None:
        """Add the elements of another bag, which is not used again. Moves the entries of the bag with fewer entries."""
        for each in (self, other):
            if each._lent is not None and not each._lent.is_released:
                each._lent.held()
        if other.entries > self.entries:
            self.entries, other.entries = other.entries, self.entries
            self.address, other.address = other.address, self.address
        for n in range(other.entries):
            data = self._view.get(other._entry(other.address, n))
            self._view.delete(other._entry(other.address, n))
            if data is not None:
                self._view.put(self._entry(self.address, self.entries), data)
                self.entries += 1
        self._tail += other._tail
        self._pending += other._pending

    def store(self) -> bytes:
        """Write new elements, and return the tail for the window's record."""
        self._settle()
        if len(self._tail) > TAIL_BYTES:
            if not self.entries:
                self.address = self._unused()
            self._view.put(self._entry(self.address, self.entries), self._tail)
            self.entries += 1
            self._tail = b""
        return self._tail

    def _settle(self) -> None:
        if self._adopted is not None:
            self._pending = [*self._adopted, *self._pending]
            self._adopted = None
        if self._pending:
            self._tail += block(self._pending)
            self._pending = []

    def _unused(self) -> bytes:
        # SUBTLE: the address of a merged window may be in use: the window that absorbed it took over its entries.
        address = self._fresh
        while self._view.get(self._entry(address, 0)) is not None:
            address += b"+"
        return address


def _nothing() -> None:
    """Remove nothing."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries of a bag in the view, as they are now."""

    view: StateView
    entry: Callable[[bytes, int], bytes]
    address: bytes
    count: int

    def __iter__(self) -> Iterator[bytes]:
        for n in range(self.count):
            if data := self.view.get(self.entry(self.address, n)):
                yield data

    def remove(self) -> None:
        for n in range(self.count):
            self.view.delete(self.entry(self.address, n))


class Accumulated:
    """The accumulator of a window.

    Args:
        combiner: the combiner of the accumulator.
        stored: the result of `store`; empty for an accumulator without elements.
    """

    __slots__ = ("_combiner", "_stored", "_value")

    address = b""
    entries = 0

    def __init__(self, combiner: Combiner, stored: bytes = b"") -> None:
        self._combiner = combiner
        self._stored = stored
        self._value: Any = _ABSENT

    def add(self, values: Sequence[Any]) -> None:
        """Add elements."""
        self._value = self._combiner.add(self._loaded(), values)

    def take(self, keep: bool, *, lend: bool = True) -> Any:
        """Return the result as the contents of a pane.

        Args:
            keep: whether the elements also count for the next pane.
            lend: has no effect.
        """
        # SUBTLE: the result may share objects with the accumulator, so the accumulator is not used after `extract`.
        # Storing may change the accumulator, so it comes before.
        stored = self.store() if keep else b""
        value = self._loaded()
        self._value, self._stored = _ABSENT, stored
        return self._combiner.extract(value)

    def clear(self) -> None:
        """Remove all elements."""
        self._value, self._stored = _ABSENT, b""

    def absorb(self, other: Self) -> None:
        """Add the elements of another accumulator, which is not used again."""
        if other._value is not _ABSENT or other._stored:
            self._value = self._combiner.merge([self._loaded(), other._loaded()])

    def store(self) -> bytes:
        """Return its bytes, for the window's record."""
        if self._value is not _ABSENT:
            self._value = self._combiner.compact(self._value)
            self._stored = b"+" + self._combiner.encode(self._value)
        return self._stored

    def _loaded(self) -> Any:
        if self._value is _ABSENT:
            combiner = self._combiner
            self._value = combiner.decode(self._stored[1:]) if self._stored else combiner.create()
        return self._value


def block(values: Sequence[bytes]) -> bytes:
    """Encode elements: their number, their lengths, their bytes. Blocks may be concatenated."""
    count = len(values)
    if count < 256:
        try:
            return b"".join((_SMALL_HEADS[count], bytes(map(len, values)), *values))
        except ValueError:
            pass  # a length does not fit into a byte
    return b"".join((pack(f"<BI{count}I", _LARGE, count, *map(len, values)), *values))


def _blocks(data: bytes) -> Iterator[list[bytes]]:
    at, size = 0, len(data)
    while at < size:
        kind = data[at]
        lengths: Sequence[int]
        if kind == _SMALL:
            start = at + 2
            lengths = data[start : start + data[at + 1]]
            at = start + len(lengths)
        elif kind == _LARGE:
            count = _LARGE_HEAD.unpack_from(data, at)[1]
            at += _LARGE_HEAD.size
            lengths = Struct(f"<{count}I").unpack_from(data, at)
            at += 4 * count
        else:
            raise StateFormatError("a window's elements", f"are in blocks of a kind that is not known: {kind}")
        values = []
        for length in lengths:
            end = at + length
            values.append(data[at:end])
            at = end
        yield values
