"""User state in a micro-batch: the SDK's state requests, served from cells of the shard's view.

Owns which cell a state key means, and when changes by user code are written to the view: at the end of each call. Must
not know when state is dropped: the engine drops cells with their window.

The Python SDK requests bags and ordered lists. Values, accumulators and sets are bags that are cleared and extended.
Other SDKs request multimaps, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from operator import itemgetter
from typing import Any

from apache_beam.runners.worker import bundle_processor

from arcbeam.engine.rows import sequences
from arcbeam.engine.state.cells import BagCell, Cells, MultimapCell, OrderedListCell
from arcbeam.harness.bundle.windows import Windows
from arcbeam.harness.encoding.frames import Chunks, Spool
from arcbeam.harness.state.cells import ListRange
from arcbeam.harness.state.statehandler import CellId, StateHandler
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp
from arcbeam.sizes import threshold

_EAGER_BYTES = threshold(1 << 20)
"""Contents of a cell up to this size are held in memory as they were when they were read."""

_value = itemgetter(1)


class ViewState(StateHandler):
    """The SDK's state handler for many micro-batches; for side inputs see `StateHandler`.

    Between `enter` and `commit` all state is that of one user key, in one shard.

    Args:
        channels: side channel by (transform id, local name of the side input).
        families: the engine's name of a state, by (transform id, state name).

    Attributes:
        forms: encodings of windows; must be set before there is any state.
    """

    def __init__(self, channels: Mapping[tuple[str, str], int], families: Mapping[tuple[str, str], str]) -> None:
        super().__init__(channels)
        self._families = families
        self._contexts: list[Any] = []
        self._lent: weakref.WeakSet[_LargeCell] = weakref.WeakSet()
        self._lending = False
        self.forms: Windows

    def work_on(self, view: StateView, stage: int) -> None:
        """Use the state of a stage in this view."""
        cells = self._cells = Cells(view, stage)
        self._bags = {place: BagCell(cells, family) for place, family in self._families.items()}
        self._lists = {place: OrderedListCell(cells, family) for place, family in self._families.items()}
        self._maps = {place: MultimapCell(cells, family) for place, family in self._families.items()}

    def more(self) -> Mapping[str, int]:
        """See `Cells.more`; counts since `work_on`."""
        return self._cells.more

    def enter(self, key: bytes) -> None:
        """Begin a call of user code for a user key in the engine's encoding."""
        # SUBTLE: not the key in the SDK's state keys, which has another encoding (nested): the engine drops cells by
        # its own encoding.
        self._key = key

    def commit(self) -> None:
        """Write changes by handles of the SDK to the view. The SDK would write them when the bundle ends."""
        for context in self._contexts:
            if context._all_states:
                context.commit()
                # SUBTLE: within a bundle the SDK compares keys with `==`, but 1, 1.0 and True are three keys.
                context.reset()

    def is_of(self, context: Any) -> None:
        """Register a context of user state that the SDK has created for one of the stage's operations."""
        self._contexts.append(context)

    # See `arcbeam.harness.state.handles.CellStorage`. A cell is (transform id, state name, encoded window).

    def read_bag(self, key: bytes, cell: CellId, coder: Any) -> Iterable[Any]:
        """Return the current elements of a bag."""
        bag, place = self._bags[cell[:2]], self._place(cell)
        return self._elements(lambda: bag.read(*place), coder.decode)

    def extend_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Add elements to a bag."""
        self._keep()
        encoded = self._encoded(_each, cell, coder, elements)
        self._bags[cell[:2]].extend(*self._place(cell), [data for _, data in encoded])

    def replace_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Replace the contents of a bag by elements, at least one."""
        self._keep()
        encoded = self._encoded(_each, cell, coder, elements)
        self._bags[cell[:2]].replace(*self._place(cell), [data for _, data in encoded])

    def clear_bag(self, key: bytes, cell: CellId) -> None:
        """Clear a bag."""
        self._keep()
        self._bags[cell[:2]].clear(*self._place(cell))

    def read_list(self, key: bytes, cell: CellId, coder: Any, range: ListRange) -> Iterable[Any]:
        """Return the current elements of an ordered list in a range."""
        ordered, place, between = self._lists[cell[:2]], self._place(cell), _moments(range)
        return self._elements(lambda: map(_value, ordered.read(*place, *between)), coder.decode)

    def extend_list(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Add elements (sort key, value) to an ordered list."""
        self._keep()
        ordered, place = self._lists[cell[:2]], self._place(cell)
        for at, data in self._encoded(_each_at, cell, coder, elements):
            ordered.add(*place, Timestamp(at), data)

    def clear_list(self, key: bytes, cell: CellId, range: ListRange) -> None:
        """Remove the elements of an ordered list in a range."""
        self._keep()
        self._lists[cell[:2]].clear_range(*self._place(cell), *_moments(range))

    # Multimaps, encoded: what is appended need not be one element.

    def read_map(self, cell: CellId, map_key: bytes) -> Iterator[bytes]:
        """Return what was appended for a key of a multimap; later writes do not change the result."""
        return iter(self._elements(lambda: self._maps[cell[:2]].read(*self._place(cell), map_key), bytes))

    def read_map_keys(self, cell: CellId) -> Iterator[bytes]:
        """Return the keys of a multimap; later writes do not change the result."""
        return iter(self._elements(lambda: self._maps[cell[:2]].keys(*self._place(cell)), bytes))

    def extend_map(self, cell: CellId, map_key: bytes, data: bytes) -> None:
        """Append encoded elements to a key of a multimap."""
        self._keep()
        self._maps[cell[:2]].extend(*self._place(cell), map_key, [data] if data else [])

    def clear_map_key(self, cell: CellId, map_key: bytes) -> None:
        """Remove a key of a multimap."""
        self._keep()
        self._maps[cell[:2]].remove(*self._place(cell), map_key)

    def clear_map(self, cell: CellId) -> None:
        """Remove all keys of a multimap."""
        self._keep()
        self._maps[cell[:2]].clear(*self._place(cell))

    def _elements(self, read: Callable[[], Iterator[bytes]], decode: Callable[[bytes], Any]) -> Iterable[Any]:
        held: list[bytes] = []
        size = 0
        for value in read():
            held.append(value)
            size += len(value)
            if size > _EAGER_BYTES:
                lent = _LargeCell(read, decode)
                self._lent.add(lent)
                self._lending = True
                return lent
        return _CellSnapshot(tuple(held), decode)

    def _keep(self) -> None:
        """Preserve contents that user code has read and still references, before cells change."""
        if self._lending:
            for lent in list(self._lent):
                lent.keep()
            self._lent.clear()
            self._lending = False

    def _place(self, cell: CellId) -> tuple[bytes, bytes]:
        return self._key, self.forms.ordered(cell[2])


def _moments(range: ListRange) -> tuple[Timestamp | None, Timestamp | None]:
    return (None, None) if range is None else (Timestamp(range[0]), Timestamp(range[1]))


def _each(coder: Any, elements: Iterable[Any]) -> list[tuple[int, bytes]]:
    return [(0, coder.encode(element)) for element in elements]


def _each_at(coder: Any, elements: Iterable[Any]) -> list[tuple[int, bytes]]:
    return [(element[0], coder.encode(element)) for element in elements]


@dataclass(frozen=True, slots=True)
class _CellSnapshot:
    """The elements of a cell at one moment, decoded at each iteration."""

    values: tuple[bytes, ...]
    decode: Callable[[bytes], Any]

    def __iter__(self) -> Iterator[Any]:
        return map(self.decode, self.values)


class _LargeCell:
    """The same for a cell that is too large to be held in memory.

    Elements are read from the cell during iteration. Before the cell changes, they are moved to a local file, if user
    code still references them.
    """

    def __init__(self, read: Callable[[], Iterator[bytes]], decode: Callable[[bytes], Any]) -> None:
        self._read = read
        self._decode = decode

    def __iter__(self) -> Iterator[Any]:
        read: Any = None
        for position in count():
            if read is not self._read:
                read = self._read
                values = islice(read(), position, None)
            value = next(values, None)
            if value is None:
                return
            yield self._decode(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def keep(self) -> None:
        """Move the elements to a local file, before the cell changes."""
        if isinstance(self._read, _StoredValues):
            return
        kept, spool, framed, size = Chunks(), Spool(), list[bytes](), 0
        for value in self._read():
            framed.append(sequences.framed(value))
            size += len(value)
            if size > _EAGER_BYTES:
                kept.append(b"".join(framed))
                kept.spill(spool)
                framed, size = [], 0
        kept.append(b"".join(framed))
        self._read = _StoredValues(kept)


@dataclass(frozen=True, slots=True)
class _StoredValues:
    """Values in a local file."""

    chunks: Chunks

    def __call__(self) -> Iterator[bytes]:
        return (value for chunk in self.chunks for value in sequences.unframed(chunk))


class _Context(bundle_processor.FnApiUserStateContext):  # type: ignore[misc]  # Beam is untyped
    """Registers itself with the handler: a compiled operation does not expose its context."""

    def __init__(self, state_handler: Any, transform_id: str, key_coder: Any, window_coder: Any) -> None:
        super().__init__(state_handler, transform_id, key_coder, window_coder)
        if isinstance(state_handler, ViewState):
            state_handler.is_of(self)


def register() -> None:
    """Replace the SDK's context by ours. Idempotent."""
    bundle_processor.FnApiUserStateContext = _Context
