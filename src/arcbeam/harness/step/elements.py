"""What comes to a stage of a step: rows of an exchange as the engine's elements.

Owns in which form a value goes through the engine. One that may have to wait in the shard's state is bytes; any other
is the SDK's object, which the engine does not look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from apache_beam.coders import coder_impl

from arcbeam.engine.grouping.contents import Values
from arcbeam.engine.grouping.groupings import Elements, Together, WindowedElement
from arcbeam.engine.grouping.passing import PassingValues
from arcbeam.harness.encoding.blocks import Block, BlockCoder, Each
from arcbeam.harness.encoding.frames import key_groups
from arcbeam.harness.encoding.stamps import Stamp, Stamps
from arcbeam.harness.step.windows import Windows, our_pane, their_pane
from arcbeam.model.rows import Row
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window

NO_KEY: Final = b""
_EAGER_BYTES: Final = 1 << 20
"""The values of a pane up to this size (encoded) are given to user code as a list, more of them as an iterable."""


class Codec:
    """Elements of one PCollection on their way through the engine.

    Args:
        coder: of their values.
        windows: of the PCollection.
        waits: whether they may have to wait in the shard's state.

    Attributes:
        decode: makes a value of its bytes.
    """

    def __init__(self, coder: Any, windows: Windows, waits: bool) -> None:
        impl = coder.get_impl()
        self._encode, self.decode = impl.encode, impl.decode
        self._windows = windows
        self.waits = waits

    def elements(self, block: Block) -> Iterator[WindowedElement]:
        """The elements of a block for the engine."""
        all_ours = self._windows.all_ours
        for element in block.elements():
            value = self._encode(element.value) if self.waits else element.value
            yield value, Timestamp(element.timestamp_micros), all_ours(element.windows), our_pane(element.pane_info)

    def block(self, elements: Elements) -> Block:
        """A block of what comes from the engine, at least one element."""
        if isinstance(elements, BlockElements | EncodedElements):
            return elements.block
        values, times, windows, panes = zip(*elements, strict=True)
        return Block(
            list(map(self.decode, values)) if self.waits else list(values),
            _column(times, int),
            _column(windows, self._windows.all_theirs),
            _column(panes, their_pane),
        )

    def window(self, block: Block) -> Window | None:
        """The window that all elements are in; None if there is no one such, or it is not known."""
        windows = block.windows
        if type(windows) is Each or len(windows) != 1:
            return None
        return self._windows.all_ours(windows)[0]


def _column(each: Sequence[Any], theirs: Callable[[Any], Any]) -> Any:
    """A column of a block, said once if it is the same for all."""
    first = each[0]
    return theirs(first) if each.count(first) == len(each) else Each(map(theirs, each))


class BlockElements(Together):
    """A block that is taken apart only if somebody looks. See `arcbeam.engine.grouping.groupings.Together`.

    Attributes:
        block: as it came.
    """

    __slots__ = ("_codec", "block", "size", "window")

    def __init__(self, block: Block, codec: Codec, size: int) -> None:
        self.block = block
        self.size = size
        self._codec = codec
        self.window = codec.window(block)

    def __len__(self) -> int:
        return len(self.block)

    def __iter__(self) -> Iterator[WindowedElement]:
        return self._codec.elements(self.block)


class EncodedElements(Together):
    """The same of a block's bytes, of which what the elements share is known. They are decoded each time."""

    __slots__ = ("_codec", "_count", "_payload", "_stamp", "window")

    def __init__(self, payload: bytes, stamp: Stamp, window: Window | None, codec: Codec) -> None:
        self._payload, self._stamp, self._codec = payload, stamp, codec
        self.window = window

    @property
    def block(self) -> Block:
        """The block."""
        return self._stamp.block(self._payload)

    @property
    def size(self) -> int:  # type: ignore[override]  # an attribute that is worked out
        """See `Together`."""
        return len(self._payload)

    def __len__(self) -> int:
        return self._payload[1]

    def __iter__(self) -> Iterator[WindowedElement]:
        return self._codec.elements(self.block)


def plain_elements(rows: Iterable[Row], coder: BlockCoder, codec: Codec) -> Iterator[tuple[bytes, Elements]]:
    """What comes to a stage without keys."""
    for row in rows:
        for block in coder.read(row.blob):
            yield NO_KEY, BlockElements(block, codec, len(row.blob))


def keyed_elements(
    rows: Iterable[Row], coder: BlockCoder, codec: Codec, memory: int
) -> Iterator[tuple[bytes, Elements]]:
    """What comes to a stage with keys: each encoded key with its values.

    Args:
        rows: in ascending order of bucket.
        coder: of blocks of values.
        codec: of values.
        memory: bytes of a bucket to hold; beyond it they move to a local file.
    """
    stamps: Stamps[Window | None] = Stamps(coder)
    for key, chunks in key_groups(rows, memory):
        for payload in chunks[b""]:
            known = stamps.of(payload)
            if known is not None:
                yield key, EncodedElements(payload, *known, codec)
                continue
            for block in coder.read(payload):
                came = BlockElements(block, codec, len(payload))
                stamps.add(block, came.window)
                yield key, came


class PaneValues:
    """The values of a pane that is too large to be decoded at once; may be iterated any number of times.

    SUBTLE: what they are decoded from stays with the pane, not with the state, so it may be kept.
    """

    __slots__ = ("_codec", "_contents")

    def __init__(self, contents: Values | PassingValues, codec: Codec) -> None:
        self._contents = contents
        self._codec = codec

    @staticmethod
    def of(contents: Values | PassingValues, codec: Codec) -> Any:
        """The values of a pane, for the SDK: a list if they are few."""
        if contents.size > _EAGER_BYTES:
            return PaneValues(contents, codec)
        if isinstance(contents, PassingValues):
            # Each goes into this one pane, and nowhere else: it need not be encoded for that.
            parts: Sequence[Any] = contents.parts
            return list(parts[0].block.values if len(parts) == 1 else chain(*(part.block.values for part in parts)))
        return list(map(codec.decode, contents))

    def __iter__(self) -> Iterator[Any]:
        return map(self._codec.decode, self._contents)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


coder_impl.FastPrimitivesCoderImpl.register_iterable_like_type(PaneValues)
