"""Blocks: several windowed values, with their timestamps, windows and panes in columns.

Owns the block and its encoding. Most consecutive elements share timestamp, windows and pane, which a block stores once.
Times are exact in encoded blocks; the SDK's coder of windowed values truncates to milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, repeat
from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.utils.windowed_value import create
from typing_extensions import override

from arcbeam.harness.encoding.batchbytes import WholeForm, whole_form
from arcbeam.harness.encoding.bulk import VALUES_MIN, Bulk
from arcbeam.harness.encoding.windowcoder import WindowTuples

TIMES, _WINDOWS, _PANES = 1, 2, 4
"""Columns that an encoded block has per element, not once; bits of the first byte."""
_BULK = 8
"""Bit of the first byte: the values are written in bulk."""
_WHOLE = 16
"""Bit of the first byte: the values are a batch (`harness.encoding.batchbytes`)."""
_TIME = 8
"""Bytes of a time."""
ONE_BYTE = 128
"""A count below this is one byte as a varint."""


class Each(list[Any]):
    """A column with one entry per element. A column of another type applies to all elements."""


class Block:
    """Windowed values in columns. Blocks are immutable, and may share columns.

    Attributes:
        values: the elements' values.
        micros: event time in microseconds, or an `Each` of them.
        windows: a tuple of windows, or an `Each` of tuples.
        panes: a `PaneInfo`, or an `Each` of them.
        uniform: whether no column is an `Each`.
        plain: whether the values are known to be plain (no `TimestampedValue`, for example); may be set.
    """

    __slots__ = ("_elements", "micros", "panes", "plain", "uniform", "values", "windows")

    def __init__(
        self, values: list[Any], micros: Any, windows: Any, panes: Any, elements: Sequence[Any] | None = None
    ) -> None:
        self.values, self.micros, self.windows, self.panes = values, micros, windows, panes
        self._elements = elements
        self.plain = False
        self.uniform = type(micros) is not Each and type(windows) is not Each and type(panes) is not Each

    @staticmethod
    def of(elements: Sequence[Any]) -> Block:
        """Return a block of windowed values, at least one."""
        first, count = elements[0], len(elements)
        micros: Any = first.timestamp_micros
        windows: Any = first.windows
        panes: Any = first.pane_info
        if count > 1:
            times = [e.timestamp_micros for e in elements]
            if times.count(micros) != count:
                micros = Each(times)
            all_windows = [e.windows for e in elements]
            if len(set(map(id, all_windows))) > 1 and any(w != windows for w in all_windows):
                windows = Each(map(tuple, all_windows))
            all_panes = [e.pane_info for e in elements]
            if len(set(map(id, all_panes))) > 1 and any(p != panes for p in all_panes):
                panes = Each(all_panes)
        if type(windows) is not Each:
            windows = tuple(windows)
        return Block([e.value for e in elements], micros, windows, panes, elements)

    @staticmethod
    def join(blocks: Sequence[Block]) -> Block:
        """Return one block with the elements of all, in order."""
        first = blocks[0]
        if len(blocks) == 1:
            return first
        if all(block.is_like(first) for block in blocks):
            return first.with_values([value for block in blocks for value in block.values])
        counts = [len(block.values) for block in blocks]
        values = [value for block in blocks for value in block.values]
        return Block(
            values,
            _joined([block.micros for block in blocks], counts),
            _joined([block.windows for block in blocks], counts),
            _joined([block.panes for block in blocks], counts),
        )

    def __len__(self) -> int:
        return len(self.values)

    def is_like(self, other: Block) -> bool:
        """Return whether all elements of both blocks are known to share time, windows and pane."""
        return (
            self.uniform
            and other.uniform
            and self.micros == other.micros
            and self.windows is other.windows
            and self.panes is other.panes
        )

    def elements(self) -> Iterator[Any]:
        """Return the windowed values."""
        if self._elements is not None:
            return iter(self._elements)
        if self.uniform:
            return map(create(None, self.micros, self.windows, self.panes).with_value, self.values)
        return map(create, self.values, self.times(), self.windows_of_each(), _every(self.panes))

    def element(self, index: int) -> Any:
        """Return one windowed value."""
        micros, windows, panes = self.micros, self.windows, self.panes
        return create(
            self.values[index],
            micros[index] if type(micros) is Each else micros,
            windows[index] if type(windows) is Each else windows,
            panes[index] if type(panes) is Each else panes,
        )

    def times(self) -> Iterable[int]:
        """Return the event time of each element, in microseconds; endless if all are equal."""
        return _every(self.micros)

    def windows_of_each(self) -> Iterable[tuple[Any, ...]]:
        """Return the windows of each element; endless if all are equal."""
        return _every(self.windows)

    def panes_of_each(self) -> Iterable[Any]:
        """Return the pane of each element; endless if all are equal."""
        return _every(self.panes)

    def in_one_window(self) -> bool:
        """Return whether each element is in exactly one window."""
        windows = self.windows
        return all(len(w) == 1 for w in windows) if type(windows) is Each else len(windows) == 1

    def with_values(self, values: list[Any]) -> Block:
        """Return a block with the same columns and other values, of the same number."""
        return Block(values, self.micros, self.windows, self.panes)

    def compress(self, values: list[Any], flags: list[Any]) -> Block:
        """Return the elements whose flag is true; `values` are their values."""
        if self.uniform:
            return Block(values, self.micros, self.windows, self.panes)
        return Block(values, *(Each(compress(c, flags)) if type(c) is Each else c for c in self._columns()))

    def pick(self, values: list[Any], places: list[int]) -> Block:
        """Return a block of values derived from elements of this one; `places` has the element's index for each."""
        if self.uniform:
            return Block(values, self.micros, self.windows, self.panes)
        return Block(values, *(Each(c[i] for i in places) if type(c) is Each else c for c in self._columns()))

    def slice(self, start: int, stop: int | None, step: int = 1) -> Block:
        """Return a part, as a list's slice does."""
        part = slice(start, stop, step)
        return Block(self.values[part], *(Each(c[part]) if type(c) is Each else c for c in self._columns()))

    def parts(self, longest: int) -> Iterator[Block]:
        """Yield the block in parts of limited length."""
        if len(self) <= longest:
            yield self
            return
        for start in range(0, len(self), longest):
            yield self.slice(start, start + longest)

    def _columns(self) -> tuple[Any, Any, Any]:
        return self.micros, self.windows, self.panes


class WholeBlock(Block):
    """A block whose values are a batch. It is converted to elements at the first access to `values`.

    Attributes:
        form: form of the batch.
        packed: the packed batch.
    """

    __slots__ = ("form", "packed")

    def __init__(self, form: WholeForm, packed: Any, micros: int, windows: tuple[Any, ...], pane: Any) -> None:
        # SUBTLE: `values` is not set, so the first access to it calls `__getattr__`.
        self.form, self.packed = form, packed
        self.micros, self.windows, self.panes = micros, windows, pane
        self._elements, self.plain, self.uniform = None, False, True

    def __getattr__(self, name: str) -> Any:
        if name != "values":
            raise AttributeError(name)
        self.values = self.form.values(self.packed)
        return self.values

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def size(self) -> int:
        """Bytes of the batch."""
        size: int = self.packed.nbytes
        return size

    def with_batch(self, packed: Any) -> WholeBlock:
        """Return a block with another batch, and the same columns."""
        return WholeBlock(self.form, packed, self.micros, self.windows, self.panes)

    @override
    def element(self, index: int) -> Any:
        place = range(len(self))[index]
        (value,) = self.form.values(self.form.part(self.packed, place, place + 1))
        return create(value, self.micros, self.windows, self.panes)

    def slice(self, start: int, stop: int | None, step: int = 1) -> Block:
        """See `Block`; a contiguous part stays whole."""
        if step != 1:
            return super().slice(start, stop, step)
        places = range(len(self))[start:stop]
        return self.with_batch(self.form.part(self.packed, places.start, places.stop))

    def in_each_window(self) -> Iterator[WholeBlock]:
        """Yield the block once for each of its windows."""
        for window in self.windows:
            yield WholeBlock(self.form, self.packed, self.micros, (window,), self.panes)


class SameKeyBlock(Block):
    """A block of pairs with the same key. The pairs are created at the first access to `values`.

    Attributes:
        key: the key of all.
        unkeyed: the values of the pairs.
    """

    __slots__ = ("key", "unkeyed")

    def __init__(self, key: Any, unkeyed: list[Any], micros: Any, windows: Any, panes: Any) -> None:
        # SUBTLE: `values` is not set, so the first access to it calls `__getattr__`.
        self.key, self.unkeyed = key, unkeyed
        self.micros, self.windows, self.panes = micros, windows, panes
        self._elements, self.plain = None, True
        self.uniform = type(micros) is not Each and type(windows) is not Each and type(panes) is not Each

    @staticmethod
    def of_values(key: Any, block: Block) -> SameKeyBlock:
        """Return the elements of a block, each with a key."""
        return SameKeyBlock(key, block.values, *block._columns())

    def __getattr__(self, name: str) -> Any:
        if name != "values":
            raise AttributeError(name)
        key = self.key
        self.values = [(key, value) for value in self.unkeyed]
        return self.values

    def __len__(self) -> int:
        return len(self.unkeyed)

    @override
    def element(self, index: int) -> Any:
        windowed = Block(self.unkeyed, *self._columns()).element(index)
        return windowed.with_value((self.key, windowed.value))

    @override
    def slice(self, start: int, stop: int | None, step: int = 1) -> Block:
        return SameKeyBlock.of_values(self.key, Block(self.unkeyed, *self._columns()).slice(start, stop, step))


def gathered(blocks: Sequence[Block], least: int = 0) -> Iterator[Block]:
    """Join blocks: batches with equal time, windows and pane to one batch, and all other elements to one block.

    Args:
        blocks: blocks of one PCollection.
        least: minimum bytes of a batch; a smaller one becomes elements.
    """
    alike: dict[Any, list[WholeBlock]] = {}
    rest: list[Block] = []
    for block in blocks:
        if isinstance(block, WholeBlock):
            alike.setdefault((block.micros, block.windows, block.panes), []).append(block)
        else:
            rest.append(block)
    for same in alike.values():
        if sum(block.size for block in same) < least:
            rest += same
        elif len(same) == 1:
            yield same[0]
        else:
            yield same[0].with_batch(same[0].form.join([block.packed for block in same]))
    if rest:
        yield Block.join(rest)


def _every(column: Any) -> Iterable[Any]:
    return column if type(column) is Each else repeat(column)


def _joined(columns: list[Any], counts: list[int]) -> Any:
    first = columns[0]
    if type(first) is not Each and all(c is first or (type(c) is not Each and c == first) for c in columns):
        return first
    joined = Each()
    for column, count in zip(columns, counts, strict=True):
        joined.extend(column if type(column) is Each else repeat(column, count))
    return joined


class BlockCoder:
    """Encodes blocks; one object per PCollection.

    Layout: a byte of flags (which columns differ from element to element), the count of elements as a varint, event
    times (big-endian signed 64-bit microseconds, one or one each), windows and panes, and the values as the SDK's list
    coder writes them. Windows and panes that differ are a table of the distinct ones, and each element's place in it
    (unsigned 32-bit, big-endian). Values may also be written in bulk (`harness.encoding.bulk`), or be a whole batch
    (`harness.encoding.batchbytes`).

    Args:
        windowed_coder: the SDK's coder of the PCollection's windowed values.
        bulk: whether to write values in bulk, where that is faster. Both forms can be read.

    Attributes:
        whole: the form of batches that may be written whole; None if none may.
        values: coder impl of lists of values that are not written in bulk.
    """

    def __init__(self, windowed_coder: Any, *, bulk: bool = False) -> None:
        self._windows = WindowTuples(windowed_coder.window_coder.get_impl())
        self._panes = coder_impl.PaneInfoCoderImpl()
        self.values = coders.ListCoder(windowed_coder.wrapped_value_coder).get_impl()
        self._in_bulk = Bulk(windowed_coder.wrapped_value_coder)
        self._writes_bulk = bulk
        self.whole = whole_form(windowed_coder.wrapped_value_coder)
        self._known: tuple[bytes, Any, Any, Any] = b"", None, None, None

    def write(self, block: Block, stream: Any) -> None:
        """Append a block to the SDK's output stream."""
        micros, windows, panes = block.micros, block.windows, block.panes
        times_differ, windows_differ, panes_differ = (type(column) is Each for column in (micros, windows, panes))
        batch = self._encoded_batch(block)
        bulk = self._in_bulk.encode(block.values) if self._writes_bulk and batch is None else None
        differ = TIMES * times_differ | _WINDOWS * windows_differ | _PANES * panes_differ
        stream.write_byte(differ | _BULK * (bulk is not None) | _WHOLE * (batch is not None))
        count = len(block)
        stream.write_var_int64(count)
        if times_differ:
            stream.write(struct.pack(f">{count}q", *micros))
        else:
            stream.write_bigendian_int64(micros)
        for varies, column, impl in ((windows_differ, windows, self._windows), (panes_differ, panes, self._panes)):
            if varies:
                _write_table(column, impl, stream)
            else:
                impl.encode_to_stream(column, stream, True)
        encoded = bulk if batch is None else batch
        if encoded is None:
            self.values.encode_to_stream(block.values, stream, True)
        else:
            stream.write(encoded)

    def _encoded_batch(self, block: Block) -> bytes | None:
        """Return a block's encoded batch; None if it has none, or if its elements must be written."""
        # A batch of another PCollection may differ from what this coder would make of its elements.
        if not isinstance(block, WholeBlock) or block.form != self.whole:
            return None
        try:
            return block.form.encode(block.packed)
        except Exception:
            # Writing the elements reports the element at fault, if any.
            return None

    def encode(self, elements: Sequence[Any]) -> bytes:
        """Encode windowed values, at least one, as one block."""
        stream = coder_impl.create_OutputStream()
        self.write(Block.of(elements), stream)
        encoded: bytes = stream.get()
        return encoded

    def encoder_of_alike(self, micros: int, windows: Any, panes: Any) -> Callable[[list[Any]], bytes]:
        """Return a function that encodes values, at least one, that share time, windows and pane, as one block."""
        shared = self.shared(micros, windows, panes)
        in_bulk, encode_values = self._in_bulk.encode if self._writes_bulk else None, self.values.encode
        # Most lists are short.
        heads = [bytes((0, count)) + shared for count in range(VALUES_MIN)]

        def encode(values: list[Any]) -> bytes:
            if len(values) < VALUES_MIN:
                return heads[len(values)] + encode_values(values)  # type: ignore[no-any-return]
            bulk = None if in_bulk is None else in_bulk(values)
            first = head(_BULK if bulk is not None else 0, len(values))
            return first + shared + (encode_values(values) if bulk is None else bulk)

        return encode

    def encoder_of_timed(self, windows: Any, panes: Any) -> Callable[[list[tuple[Any, int]]], bytes]:
        """Return a function that encodes (value, time) pairs, at least one, that share windows and pane, as a block."""
        shared = self.shared(0, windows, panes)[_TIME:]
        in_bulk, encode_values = self._in_bulk.encode if self._writes_bulk else None, self.values.encode

        def encode(timed: list[tuple[Any, int]]) -> bytes:
            count = len(timed)
            values = [value for value, _ in timed]
            bulk = None if in_bulk is None or count < VALUES_MIN else in_bulk(values)
            first = head(TIMES if bulk is None else TIMES | _BULK, count)
            times = struct.pack(f">{count}q", *(time for _, time in timed))
            return b"".join((first, times, shared, encode_values(values) if bulk is None else bulk))

        return encode

    def shared(self, micros: int, windows: Any, panes: Any) -> bytes:
        """Return the encoded time, windows and pane of a block whose elements differ only in their values."""
        stream = coder_impl.create_OutputStream()
        stream.write_bigendian_int64(micros)
        self._windows.encode_to_stream(windows, stream, True)
        self._panes.encode_to_stream(panes, stream, True)
        shared: bytes = stream.get()
        return shared

    def read_one(self, encoded: bytes) -> Block:
        """Decode a single block."""
        values = self.values_alike(encoded, 0, len(encoded))
        if values is not None:
            return Block(values, *self._known[1:])
        block = next(self.read(encoded))
        if block.uniform:
            # The next block usually has the same time, windows and pane.
            stamp = [block.micros, block.windows, block.panes]
            self._known = self.shared(*stamp), *stamp
        return block

    def values_alike(self, blob: bytes, start: int, end: int) -> list[Any] | None:
        """Return the values of one block in a part of a blob.

        None if the block is large, or is not known to have the time, windows and pane of the last one from `read_one`.
        """
        shared = self._known[0]
        if shared and blob[start] == 0 and blob[start + 1] < ONE_BYTE and blob.startswith(shared, start + 2):
            values: list[Any] = self.values.decode(blob[start + 2 + len(shared) : end])
            return values
        return None

    def read(self, encoded: bytes) -> Iterator[Block]:
        """Yield the blocks that were written one after the other."""
        stream = coder_impl.create_InputStream(encoded)
        while stream.size() > 0:
            flags, count = stream.read_byte(), stream.read_var_int64()
            micros: Any
            if flags & TIMES:
                micros = Each(struct.unpack(f">{count}q", stream.read(8 * count)))
            else:
                micros = stream.read_bigendian_int64()
            columns = [
                _read_table(impl, stream, count) if flags & flag else impl.decode_from_stream(stream, True)
                for flag, impl in ((_WINDOWS, self._windows), (_PANES, self._panes))
            ]
            if flags & _WHOLE:
                yield WholeBlock(self.whole, self.whole.read(stream, count), micros, *columns)  # type: ignore[union-attr, arg-type]
                continue
            if flags & _BULK:
                values = self._in_bulk.read(stream, count)
            else:
                values = self.values.decode_from_stream(stream, True)
            yield Block(values, micros, *columns)

    def decode(self, encoded: bytes) -> list[Any]:
        """Decode the windowed values of `encode`."""
        return [element for block in self.read(encoded) for element in block.elements()]


def head(flags: int, count: int) -> bytes:
    """Return the beginning of an encoded block: its flags and its count."""
    if count < ONE_BYTE:
        return bytes((flags, count))
    stream = coder_impl.create_OutputStream()
    stream.write_byte(flags)
    stream.write_var_int64(count)
    encoded: bytes = stream.get()
    return encoded


def _write_table(column: Each, impl: Any, stream: Any) -> None:
    # Equal entries are usually the same object, and identity is faster than hashing a window.
    distinct = dict(zip(map(id, column), column, strict=True))
    places: dict[Any, int] = {}
    place_of = {identity: places.setdefault(what, len(places)) for identity, what in distinct.items()}
    stream.write_var_int64(len(places))
    for what in places:
        impl.encode_to_stream(what, stream, True)
    stream.write(struct.pack(f">{len(column)}I", *map(place_of.__getitem__, map(id, column))))


def _read_table(impl: Any, stream: Any, count: int) -> Each:
    table = [impl.decode_from_stream(stream, True) for _ in range(stream.read_var_int64())]
    return Each(map(table.__getitem__, struct.unpack(f">{count}I", stream.read(4 * count))))
