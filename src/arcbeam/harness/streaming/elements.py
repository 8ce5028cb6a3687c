"""The input of a stage in a micro-batch: rows of an exchange as elements of the engine.

Owns the form in which values pass through the engine. A value that may have to wait in the shard's state is bytes. Any
other value is the SDK's object, which the engine does not inspect.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final

from apache_beam.coders import coder_impl

from arcbeam.engine.grouping.contents import EncodedPaneValues
from arcbeam.engine.grouping.groupings import Combined, KeyElements, UniformElements, WindowedElement
from arcbeam.engine.grouping.windowbuffer import BufferedPane
from arcbeam.harness.bundle.windows import Windows, column, our_pane, their_pane
from arcbeam.harness.encoding.blocks import Block, BlockCoder, Each
from arcbeam.harness.encoding.frames import TALLY, Tally, in_file, key_groups
from arcbeam.harness.encoding.stamps import Stamp, Stamps
from arcbeam.model.rows import Row
from arcbeam.model.windows import Window
from arcbeam.sizes import threshold

NO_KEY: Final = b""
_JOINED_BYTES: Final = threshold(64 * 1024)
"""Elements of a key up to this encoded size may be joined to one block."""
_EAGER_BYTES: Final = threshold(1 << 20)
"""Values of a pane up to this encoded size are passed to user code as a list, more of them as an iterable."""


class Codec:
    """Converts elements of one PCollection for the engine, and back.

    Args:
        coder: coder of the values.
        windows: windows of the PCollection.
        waits: whether elements may have to wait in the shard's state.

    Attributes:
        encode: encodes a value.
        decode: decodes a value.
    """

    def __init__(self, coder: Any, windows: Windows, waits: bool) -> None:
        impl = coder.get_impl()
        self.encode, self.decode = impl.encode, impl.decode
        self._windows = windows
        self.waits = waits

    def elements(self, block: Block) -> Iterator[WindowedElement]:
        """Return the elements of a block for the engine."""
        all_ours, micros, windows, panes = self._windows.all_ours, block.micros, block.windows, block.panes
        return zip(
            map(self.encode, block.values) if self.waits else block.values,
            micros if type(micros) is Each else repeat(micros),
            map(all_ours, windows) if type(windows) is Each else repeat(all_ours(windows)),
            map(our_pane, panes) if type(panes) is Each else repeat(our_pane(panes)),
            strict=False,
        )

    def block(self, elements: KeyElements) -> Block:
        """Return a block of the engine's elements, at least one."""
        if isinstance(elements, BlockElements | EncodedElements):
            return elements.block
        values, times, windows, panes = zip(*elements, strict=True)
        return Block(
            list(map(self.decode, values)) if self.waits else list(values),
            column(times, int),
            column(windows, self._windows.all_theirs),
            column(panes, their_pane),
        )

    def combined(self, tally: Tally) -> Combined:
        """Return what accumulators stand for, for the engine."""
        return Combined(tally.elements, {self._windows.encoded(each): more for each, more in tally.windows.items()})

    def windows(self, block: Block) -> tuple[Window, ...] | None:
        """Return the windows of all elements; None if they differ."""
        return None if type(block.windows) is Each else self._windows.all_ours(block.windows)


class BlockElements(UniformElements):
    """A block that is split into elements only if needed. See `arcbeam.engine.grouping.groupings.UniformElements`.

    Attributes:
        block: the block as it arrived.
    """

    __slots__ = ("_codec", "block", "packed", "windows")

    def __init__(self, block: Block, codec: Codec, packed: bytes | None = None) -> None:
        self.block, self.packed = block, packed
        self._codec = codec
        self.windows = codec.windows(block)

    def __len__(self) -> int:
        return len(self.block)

    def __iter__(self) -> Iterator[WindowedElement]:
        return self._codec.elements(self.block)


class EncodedElements(UniformElements):
    """The same for an encoded block whose common properties are known. It is decoded at each access."""

    __slots__ = ("_codec", "_stamp", "packed", "windows")

    packed: bytes

    def __init__(self, packed: bytes, stamp: Stamp, windows: tuple[Window, ...] | None, codec: Codec) -> None:
        self._stamp, self._codec = stamp, codec
        self.packed, self.windows = packed, windows

    @property
    def block(self) -> Block:
        """The block."""
        return self._stamp.block(self.packed)

    def __len__(self) -> int:
        return self.packed[1]

    def __iter__(self) -> Iterator[WindowedElement]:
        return self._codec.elements(self.block)


def plain_elements(rows: Iterable[Row], coder: BlockCoder, codec: Codec) -> Iterator[tuple[bytes, KeyElements]]:
    """Yield the input of a stage without keys."""
    for row in rows:
        for block in coder.read(row.blob):
            yield NO_KEY, BlockElements(block, codec)


def keyed_elements(
    rows: Iterable[Row], coder: BlockCoder, codec: Codec, memory: int, *, join: bool = False
) -> Iterator[tuple[bytes, KeyElements | Combined]]:
    """Yield the input of a stage with keys: each encoded key with its values, in the blocks in which they were written.

    Also yields what accumulators stand for.

    Args:
        rows: in ascending order of bucket.
        coder: coder of blocks of values.
        codec: codec of the values.
        memory: bytes of a bucket to hold in memory; more are moved to a local file.
        join: whether to join the few elements of a key that come from several tasks.
    """
    stamps: Stamps[tuple[Window, ...] | None] = Stamps(coder)

    def elements_of(payload: bytes) -> Iterator[BlockElements | EncodedElements]:
        known = stamps.of(payload)
        if known is not None:
            yield EncodedElements(payload, *known, codec)
            return
        blocks = list(coder.read(payload))
        for block in blocks:
            elements = BlockElements(block, codec, payload if len(blocks) == 1 else None)
            if elements.packed is not None:
                stamps.add(payload, block, elements.windows)
            yield elements

    for key, windows in key_groups(rows, memory):
        if TALLY in windows:
            yield key, codec.combined(Tally.of(windows[TALLY]))
            if b"" not in windows:
                continue
        chunks = windows[b""]
        if join and chunks.size <= _JOINED_BYTES:
            parts = [each for payload in chunks for each in elements_of(payload)]
            yield key, parts[0] if len(parts) == 1 else BlockElements(Block.join([each.block for each in parts]), codec)
            continue
        for payload in chunks:
            for elements in elements_of(payload):
                yield key, elements


class Packed:
    """The values of elements that were stored in packed form (`UniformElements.packed`).

    Args:
        coder: coder of blocks of them.
        codec: codec of the values.
    """

    def __init__(self, coder: BlockCoder, codec: Codec) -> None:
        self._coder, self._codec = coder, codec
        self._stamps: Stamps[None] = Stamps(coder)

    def values(self, packed: bytes) -> list[Any]:
        """Return the values for the SDK."""
        known = self._stamps.of(packed)
        return self._read(packed) if known is None else known[0].values(packed)

    def listed(self, packed: bytes) -> bytes:
        """Return the values as the list coder writes them: their number, and each in the nested encoding."""
        known = self._stamps.of(packed)
        return self.listed_values(self._read(packed)) if known is None else known[0].listed(packed)

    def listed_values(self, values: list[Any]) -> bytes:
        """Return the SDK's values in the same encoding."""
        listed: bytes = self._coder.values.encode(values)
        return listed

    def _read(self, packed: bytes) -> list[Any]:
        block = next(self._coder.read(packed))
        self._stamps.add(packed, block, None)
        return block.values

    def encoded(self, packed: bytes) -> Iterator[bytes]:
        """Return the values for the engine; see `arcbeam.engine.grouping.windowbuffer.Unpack`."""
        return map(self._codec.encode, self.values(packed))


class PaneValues:
    """The values of a pane that is too large to be decoded at once; may be iterated any number of times.

    User code may keep this object. Those of a very large pane are read from the state; if user code still has the
    object after its call, they are moved to a local file.
    """

    __slots__ = ("__weakref__", "_codec", "_contents", "_packed")

    def __init__(self, contents: EncodedPaneValues | BufferedPane, codec: Codec, packed: Packed) -> None:
        self._contents = contents
        self._codec, self._packed = codec, packed
        if contents.lent is not None:
            kept = weakref.ref(self)
            contents.lent.keep_if(lambda: kept() is not None, in_file)

    @staticmethod
    def of(contents: EncodedPaneValues | BufferedPane, codec: Codec, packed: Packed) -> Any:
        """Return the values of a pane for the SDK: a list if they are few."""
        if not PaneValues.are_few(contents):
            return PaneValues(contents, codec, packed)
        if isinstance(contents, EncodedPaneValues):
            return list(map(codec.decode, contents))
        if len(contents.parts) == 1 and type(contents.parts[0]) is bytes:
            return packed.values(contents.parts[0])
        return list(PaneValues(contents, codec, packed))

    @staticmethod
    def are_few(contents: EncodedPaneValues | BufferedPane) -> bool:
        """Return whether the values of a pane are decoded at once."""
        return contents.size <= _EAGER_BYTES and contents.lent is None

    def __iter__(self) -> Iterator[Any]:
        contents, decode = self._contents, self._codec.decode
        if isinstance(contents, EncodedPaneValues):
            yield from map(decode, contents)
            return
        for part in contents.parts:
            yield from map(decode, part) if isinstance(part, EncodedPaneValues) else self._packed.values(part)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


coder_impl.FastPrimitivesCoderImpl.register_iterable_like_type(PaneValues)
