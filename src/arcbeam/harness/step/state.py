"""User state in a step: what the SDK asks for by state keys, in the cells of the shard's view.

Owns which cell a state key means, and when what user code has changed is in the view: at the end of each call. Must not
know when state goes: the engine drops cells with their window.

The Python SDK asks for bags and ordered lists; a value, an accumulator and a set are bags that are cleared and added
to.
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
from arcbeam.engine.state.cells import BagCell, Cells, OrderedListCell
from arcbeam.harness.encoding.frames import Chunks, Spool
from arcbeam.harness.state.handler import Done, InProcessStateHandler
from arcbeam.harness.step.windows import Windows
from arcbeam.model.seams import StateView
from arcbeam.model.timestamps import Timestamp

_EAGER_BYTES = 1 << 20
"""The contents of a cell up to this size are held as they were when they were read."""

_value = itemgetter(1)


class ViewState(InProcessStateHandler):
    """What the SDK calls a state handler, for many steps; side inputs are as in `InProcessStateHandler`.

    Between `enter` and `commit` all state is that of one user key, in one shard.

    Args:
        channels: side channel by (transform id, local name of the side input).
        families: the engine's name of a state, by (transform id, state name).

    Attributes:
        forms: of windows; to be set before there is any state.
    """

    def __init__(self, channels: Mapping[tuple[str, str], int], families: Mapping[tuple[str, str], str]) -> None:
        super().__init__(channels)
        self._families = families
        self._contexts: list[Any] = []
        self._lent: weakref.WeakSet[_Lent] = weakref.WeakSet()
        self.forms: Windows

    def work_on(self, view: StateView, stage: int) -> None:
        """From now on state is that of a stage in this view."""
        cells = Cells(view, stage)
        self._bags = {family: BagCell(cells, family) for family in self._families.values()}
        self._lists = {family: OrderedListCell(cells, family) for family in self._families.values()}

    def enter(self, key: bytes) -> None:
        """A call of user code is about that user key, encoded as the engine has it."""
        # SUBTLE: not the key in the SDK's state keys, which is in another encoding (nested): the engine finds what is
        # to be dropped by its own.
        self._key = key

    def commit(self) -> None:
        """What the call has changed is put into the view. The SDK itself would do that when its bundle ends."""
        for context in self._contexts:
            context.commit()
            # SUBTLE: within a bundle the SDK tells keys apart by `==`, but 1, 1.0 and True are three keys.
            context.reset()

    def keep(self) -> None:
        """Cells are about to change: what user code has read of them, and still has, stays what it was."""
        for lent in list(self._lent):
            lent.keep()
        self._lent.clear()

    def is_of(self, context: Any) -> None:
        """The SDK has made a context of user state for one of the stage's operations."""
        self._contexts.append(context)

    def blocking_get(self, state_key: Any, coder: Any) -> Iterable[Any]:
        """See `InProcessStateHandler`."""
        kind = state_key.WhichOneof("type")
        if kind == "bag_user_state":
            state = state_key.bag_user_state
            cell, place = self._bag(state), self._place(state)
            return self._elements(lambda: cell.read(*place), coder.decode)
        if kind == "ordered_list_user_state":
            state = state_key.ordered_list_user_state
            ordered, place = self._list(state), self._place(state)
            return self._elements(lambda: map(_value, ordered.read(*place, *_range(state))), coder.decode)
        return super().blocking_get(state_key, coder)

    def extend(self, state_key: Any, coder: Any, elements: Iterable[Any]) -> Done:
        """See `InProcessStateHandler`."""
        kind = state_key.WhichOneof("type")
        if kind == "bag_user_state":
            state = state_key.bag_user_state
            encoded = self._encoded(_each, state, coder, elements)
            self._bag(state).extend(*self._place(state), [data for _, data in encoded])
        elif kind == "ordered_list_user_state":
            state = state_key.ordered_list_user_state
            cell, place = self._list(state), self._place(state)
            for at, data in self._encoded(_each_at, state, coder, elements):
                cell.add(*place, Timestamp(at), data)
        else:
            return super().extend(state_key, coder, elements)
        return Done()

    def clear(self, state_key: Any) -> Done:
        """See `InProcessStateHandler`."""
        kind = state_key.WhichOneof("type")
        if kind == "bag_user_state":
            state = state_key.bag_user_state
            self._bag(state).clear(*self._place(state))
        elif kind == "ordered_list_user_state":
            state = state_key.ordered_list_user_state
            self._list(state).clear_range(*self._place(state), *_range(state))
        else:
            return super().clear(state_key)
        return Done()

    def _elements(self, read: Callable[[], Iterator[bytes]], decode: Callable[[bytes], Any]) -> Iterable[Any]:
        held: list[bytes] = []
        size = 0
        for value in read():
            held.append(value)
            size += len(value)
            if size > _EAGER_BYTES:
                lent = _Lent(read, decode)
                self._lent.add(lent)
                return lent
        return _Held(tuple(held), decode)

    def _bag(self, state: Any) -> BagCell:
        return self._bags[self._families[state.transform_id, state.user_state_id]]

    def _list(self, state: Any) -> OrderedListCell:
        return self._lists[self._families[state.transform_id, state.user_state_id]]

    def _place(self, state: Any) -> tuple[bytes, bytes]:
        return self._key, self.forms.ordered(state.window)


def _range(state: Any) -> tuple[Timestamp | None, Timestamp | None]:
    if not state.HasField("range"):
        return None, None
    return Timestamp(state.range.start), Timestamp(state.range.end)


def _each(coder: Any, elements: Iterable[Any]) -> list[tuple[int, bytes]]:
    return [(0, coder.encode(element)) for element in elements]


def _each_at(coder: Any, elements: Iterable[Any]) -> list[tuple[int, bytes]]:
    return [(element[0], coder.encode(element)) for element in elements]


@dataclass(frozen=True, slots=True)
class _Held:
    """The elements of a cell as it was once, decoded each time they are iterated."""

    values: tuple[bytes, ...]
    decode: Callable[[bytes], Any]

    def __iter__(self) -> Iterator[Any]:
        return map(self.decode, self.values)


class _Lent:
    """The same of a cell that is too large to be held.

    They are read from the cell as they are iterated, until it is about to change: then they move to a local file, if
    anybody still has them.
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
        """The cell is about to change."""
        if isinstance(self._read, _Kept):
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
        self._read = _Kept(kept)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Values in a local file."""

    chunks: Chunks

    def __call__(self) -> Iterator[bytes]:
        return (value for chunk in self.chunks for value in sequences.unframed(chunk))


class _Context(bundle_processor.FnApiUserStateContext):  # type: ignore[misc]  # Beam is untyped
    """Makes itself known to the handler: a compiled operation does not show the context that it has."""

    def __init__(self, state_handler: Any, transform_id: str, key_coder: Any, window_coder: Any) -> None:
        super().__init__(state_handler, transform_id, key_coder, window_coder)
        self._handler = state_handler if isinstance(state_handler, ViewState) else None
        if self._handler is not None:
            self._handler.is_of(self)

    def commit(self) -> None:
        """See the SDK's context."""
        if self._handler is not None:
            self._handler.keep()
        super().commit()


def register() -> None:
    """Gives our context to the SDK. Idempotent."""
    bundle_processor.FnApiUserStateContext = _Context
