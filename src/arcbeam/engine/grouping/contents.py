"""What has come into a window: its elements, appended and never read again before they go out; or an accumulator.

Owns the bytes of both, for windows in the state; and elements in memory. Must not know triggers or panes.

Elements are gathered in *blocks*. The last few hundred bytes of them stay in the window's own record (its *tail*); what
is more goes into entries of their own, which are written once. So adding an element costs the same however many there
are, and a window of few elements is one entry of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct, pack
from typing import Any, Protocol, Self

from typing_extensions import override

from arcbeam.errors import StateFormatError
from arcbeam.model.interfaces import StateView
from arcbeam.sizes import threshold

TAIL_BYTES = threshold(512)
"""A tail longer than that becomes an entry of its own."""
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

    def take(self, keep: bool) -> Any:
        """Return the contents of a pane.

        Args:
            keep: whether the elements also count for the next pane.
        """
        ...

    def clear(self) -> None:
        """Remove all elements."""
        ...

    def absorb(self, other: Any) -> None:
        """Add the elements of another of the same kind, which is not used again."""
        ...


class Combiner(Protocol):
    """What makes accumulators of elements: a CombineFn, and how its accumulators are stored.

    Accumulators may be changed in place by what takes them, but for `extract`.
    """

    def create(self) -> Any:
        """The accumulator of nothing."""
        ...

    def add(self, accumulator: Any, values: Sequence[Any]) -> Any:
        """The accumulator with these elements."""
        ...

    def merge(self, accumulators: Sequence[Any]) -> Any:
        """The accumulator of all elements of several."""
        ...

    def compact(self, accumulator: Any) -> Any:
        """The same in a form that is better stored."""
        ...

    def extract(self, accumulator: Any) -> Any:
        """The result."""
        ...

    def encode(self, accumulator: Any) -> bytes:
        """Its bytes."""
        ...

    def decode(self, data: bytes) -> Any:
        """The accumulator of such bytes."""
        ...


class Values:
    """The encoded elements of a pane; may be iterated again and again.

    Args:
        chunks: blocks of them.
        rest: elements behind those.
    """

    __slots__ = ("_chunks", "_rest")

    def __init__(self, chunks: tuple[bytes, ...], rest: Sequence[bytes] = ()) -> None:
        self._chunks = chunks
        self._rest = rest

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            for values in _blocks(chunk):
                yield from values
        yield from self._rest

    @property
    def size(self) -> int:
        """How many bytes they take, about."""
        return sum(map(len, self._chunks)) + sum(map(len, self._rest))

    def __repr__(self) -> str:
        return f"Values({sum(map(len, self._chunks))} bytes and {len(self._rest)} more elements)"


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
    def take(self, keep: bool) -> Any:
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


class Bag:
    """Elements of a window, as bytes.

    Args:
        view: of the state.
        entry: the key of an entry, by the bag's address and the entry's number.
        fresh: what an address may be made of when the first entry is written.
        address: what tells its entries from those of other bags.
        entries: how many there are.
        tail: blocks behind those.
    """

    __slots__ = ("_entry", "_fresh", "_pending", "_tail", "_view", "address", "entries")

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
        self.address = address
        self.entries = entries

    def add(self, values: Iterable[bytes]) -> None:
        """Elements come."""
        self._pending += values

    def take(self, keep: bool) -> Values:
        """The elements, as the contents of a pane.

        Args:
            keep: they also stay.
        """
        chunks = [data for n in range(self.entries) if (data := self._view.get(self._entry(self.address, n)))]
        if keep:
            self._settle()
        chunks += [self._tail] if self._tail else []
        values = Values(tuple(chunks), tuple(self._pending))
        if not keep:
            self.clear()
        return values

    def clear(self) -> None:
        """There are no elements any more."""
        for n in range(self.entries):
            self._view.delete(self._entry(self.address, n))
        self.entries, self.address, self._tail, self._pending = 0, b"", b"", []

    def absorb(self, other: Self) -> None:
        """Those of another, which is used up. The entries of the one that has fewer are moved."""
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
        """Writes what has come; returns the tail, for the window's record."""
        self._settle()
        if len(self._tail) > TAIL_BYTES:
            if not self.entries:
                self.address = self._unused()
            self._view.put(self._entry(self.address, self.entries), self._tail)
            self.entries += 1
            self._tail = b""
        return self._tail

    def _settle(self) -> None:
        if self._pending:
            self._tail += block(self._pending)
            self._pending = []

    def _unused(self) -> bytes:
        # SUBTLE: a window that was merged away may have left its entries, and so its address, to what it became.
        address = self._fresh
        while self._view.get(self._entry(address, 0)) is not None:
            address += b"+"
        return address


class Accumulated:
    """The accumulator of a window.

    Args:
        combiner: whose it is.
        stored: what `store` gave; empty for that of nothing.
    """

    __slots__ = ("_combiner", "_stored", "_value")

    address = b""
    entries = 0

    def __init__(self, combiner: Combiner, stored: bytes = b"") -> None:
        self._combiner = combiner
        self._stored = stored
        self._value: Any = _ABSENT

    def add(self, values: Sequence[Any]) -> None:
        """Elements come."""
        self._value = self._combiner.add(self._loaded(), values)

    def take(self, keep: bool) -> Any:
        """The result, as the contents of a pane.

        Args:
            keep: its elements count for the next one, too.
        """
        # SUBTLE: the result may be a part of the accumulator, which is not changed any more, therefore. And storing it
        # may change it: the result is of what that left.
        stored = self.store() if keep else b""
        value = self._loaded()
        self._value, self._stored = _ABSENT, stored
        return self._combiner.extract(value)

    def clear(self) -> None:
        """No elements count any more."""
        self._value, self._stored = _ABSENT, b""

    def absorb(self, other: Self) -> None:
        """The elements of another, which is used up."""
        if other._value is not _ABSENT or other._stored:
            self._value = self._combiner.merge([self._loaded(), other._loaded()])

    def store(self) -> bytes:
        """Its bytes, for the window's record."""
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
    """Elements as bytes: their number, their lengths, themselves. Blocks may follow each other."""
    count = len(values)
    if count < 256:
        try:
            return b"".join((_SMALL_HEADS[count], bytes(map(len, values)), *values))
        except ValueError:
            pass  # a length that is no byte
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
