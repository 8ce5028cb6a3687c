"""The state handler of the SDK's bundle processor, in this process: state requests and side inputs.

Owns the translation of requests to storage operations, and side inputs, which a `SideStore` provides. Subclasses decide
where user state is: in memory (`harness.state.handler`), or in the view of a shard (`harness.streaming.state`). Must
not know where the files of side inputs are, nor Spark.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, TypeVar

from arcbeam.errors import ArcbeamError
from arcbeam.harness.encoding.codererrors import coder_error
from arcbeam.harness.state.cells import ListRange, list_range, whole
from arcbeam.model.rows import SideStore
from arcbeam.sizes import cache_size, threshold

CellId = tuple[str, str, bytes]
"""(transform id, state name, encoded window): a cell of one key."""

_SIDES = ("iterable_side_input", "multimap_side_input", "multimap_keys_side_input")
_T = TypeVar("_T")
_CACHED_SIDE_BYTES = threshold(1 << 20)
"""Side-input contents up to this encoded size are cached in decoded form."""
_CACHED_SIDES_BYTES = cache_size(16 << 20)
"""Encoded size of all side-input contents in that cache."""
_ENTRY_OVERHEAD = 200


class Done:
    """A finished request; the SDK waits for each of its writes."""

    __slots__ = ()

    def get(self, timeout: float | None = None) -> None:
        """Return at once."""


_DONE: Final = Done()


class StateHandler(ABC):
    """Serves state requests and side inputs on the calling thread.

    Replaces the SDK's `GlobalCachingStateHandler`: `process_instruction_id`, `blocking_get`, `extend`, `clear`, `done`.

    Keys are *nested* encodings with the key coder, as in state requests. Windows are encoded with the window coder.

    Args:
        channels: side channel by (transform id, local name of the side input).
        sides: see `read_sides`.

    Attributes:
        steps: names of transforms by transform id, for errors.
    """

    def __init__(self, channels: Mapping[tuple[str, str], int], sides: SideStore | None = None) -> None:
        self._channels = dict(channels)
        self._sides = sides
        self._decoded = _Decoded()
        self.steps: Mapping[str, str] = {}

    # Called by the SDK.

    def process_instruction_id(self, bundle_id: str, cache_tokens: Iterable[Any] = ()) -> Any:
        """Return a context without effect: requests do not depend on the bundle."""
        return contextlib.nullcontext()

    def blocking_get(self, state_key: Any, coder: Any) -> Iterable[Any]:
        """Return the elements of a cell or side input. Later writes do not change a running iteration.

        Args:
            state_key: a `StateKey`.
            coder: coder impl of one element.

        Raises:
            ArcbeamError: the kind of state key is unsupported. The Python SDK does not use such kinds on its own.
        """
        kind = state_key.WhichOneof("type")
        if kind == "bag_user_state":
            state = state_key.bag_user_state
            return self.read_bag(state.key, _id(state), coder)
        if kind == "ordered_list_user_state":
            state = state_key.ordered_list_user_state
            return self.read_list(state.key, _id(state), coder, list_range(state))
        return self._side(kind, state_key, coder)

    def extend(self, state_key: Any, coder: Any, elements: Iterable[Any]) -> Done:
        """Add elements to a cell; arguments as for `blocking_get`."""
        kind = state_key.WhichOneof("type")
        if kind == "bag_user_state":
            state = state_key.bag_user_state
            self.extend_bag(state.key, _id(state), coder, elements)
        elif kind == "ordered_list_user_state":
            state = state_key.ordered_list_user_state
            self.extend_list(state.key, _id(state), coder, elements)
        else:
            raise _unserved(kind)
        return _DONE

    def clear(self, state_key: Any) -> Done:
        """Clear a cell; for an ordered list, the range in the key, or all of it."""
        kind = state_key.WhichOneof("type")
        if kind == "bag_user_state":
            state = state_key.bag_user_state
            self.clear_bag(state.key, _id(state))
        elif kind == "ordered_list_user_state":
            state = state_key.ordered_list_user_state
            self.clear_list(state.key, _id(state), list_range(state))
        else:
            raise _unserved(kind)
        return _DONE

    def done(self) -> None:
        """Discard everything: the processor is not used any more."""
        self._decoded.clear()

    # Called at the begin of a task.

    def read_sides(self, sides: SideStore | None) -> None:
        """Set the source of side inputs; None if there are none. New contents are always a new store."""
        if sides is not self._sides:
            self._decoded.clear()
            self._sides = sides

    # The storage, also for our handles: see `arcbeam.harness.state.handles.CellStorage`.

    @abstractmethod
    def read_bag(self, key: bytes, cell: CellId, coder: Any) -> Iterable[Any]:
        """Return the current elements of a bag; later writes do not change the result."""

    @abstractmethod
    def extend_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Add elements to a bag; raise `CoderError` if one cannot be encoded."""

    @abstractmethod
    def clear_bag(self, key: bytes, cell: CellId) -> None:
        """Clear a bag."""

    @abstractmethod
    def read_list(self, key: bytes, cell: CellId, coder: Any, range: ListRange) -> Iterable[Any]:
        """Return the current elements (sort key, value) of an ordered list in a range."""

    @abstractmethod
    def extend_list(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Add elements to an ordered list."""

    @abstractmethod
    def clear_list(self, key: bytes, cell: CellId, range: ListRange) -> None:
        """Remove the elements of an ordered list in a range."""

    def check_bag(self, transform: str, name: str, coder: Any, elements: Iterable[Any]) -> None:
        """Raise the errors that `extend_bag` would raise."""
        try:
            for element in elements:
                coder.encode_nested(element)
        except Exception as e:
            raise self._error(e, transform, name, coder, elements) from e

    def _encoded(
        self, encode: Callable[[Any, Iterable[Any]], _T], id: CellId, coder: Any, elements: Iterable[Any]
    ) -> _T:
        """Encode elements of a cell with `encode`."""
        try:
            return encode(coder, elements)
        except Exception as e:
            raise self._error(e, id[0], id[1], coder, elements) from e

    def _error(self, error: Exception, transform: str, name: str, coder: Any, elements: Iterable[Any]) -> Exception:
        if isinstance(error, ArcbeamError):
            return error
        return coder_error(coder, self.steps.get(transform, ""), error, elements, f" for state '{name}'")

    # Side inputs.

    def _side(self, kind: str | None, state_key: Any, coder: Any) -> Iterable[Any]:
        """Return the elements of an iterable side input, the values of a multimap's key, or its keys."""
        id = _side_id(kind, state_key)
        known = self._decoded.get(id)
        return self._decoded.read(id, self.side_chunks(state_key), coder) if known is None else known

    def side_chunks(self, state_key: Any) -> Iterator[bytes]:
        """Return the same, encoded: each chunk has whole elements.

        Raises:
            ArcbeamError: the stage has no such side input, or the kind of state key is another one.
        """
        kind = state_key.WhichOneof("type")
        id = _side_id(kind, state_key)
        channel = self._channels.get(id[:2])
        if channel is None or self._sides is None:
            raise ArcbeamError(f"'{id[1]}' is not a side input of transform '{id[0]}' in this stage")
        side = getattr(state_key, kind)
        if kind == "multimap_side_input":
            return self._sides.values(channel, side.window, side.key)
        if kind == "iterable_side_input":
            return self._sides.chunks(channel, side.window)
        return self._sides.keys(channel, side.window)


class _Decoded:
    """Decodes side inputs, and caches small ones: a DoFn iterates over the same one for each of its elements."""

    def __init__(self) -> None:
        self._lists: dict[tuple[Any, ...], tuple[int, list[Any]]] = {}
        self._size = 0

    def get(self, id: tuple[Any, ...]) -> list[Any] | None:
        found = self._lists.get(id)
        return found[1] if found is not None else None

    def clear(self) -> None:
        self._lists.clear()
        self._size = 0

    def read(self, id: tuple[Any, ...], chunks: Iterator[bytes], coder: Any) -> Iterable[Any]:
        """Return small contents as a list; decode others during iteration."""
        first: list[bytes] = []
        size = 0
        for chunk in chunks:
            first.append(chunk)
            size += len(chunk)
            if size > _CACHED_SIDE_BYTES:
                return whole(chain(first, chunks), coder)
        elements = list(whole(first, coder))
        size += _ENTRY_OVERHEAD
        self._lists[id] = (size, elements)
        self._size += size
        while self._size > _CACHED_SIDES_BYTES:
            self._size -= self._lists.pop(next(iter(self._lists)))[0]
        return elements


def _side_id(kind: str | None, state_key: Any) -> tuple[Any, ...]:
    if kind not in _SIDES:
        raise _unserved(kind)
    side = getattr(state_key, kind)
    id = side.transform_id, side.side_input_id, side.window
    return id if kind == "iterable_side_input" else (*id, side.key if kind == "multimap_side_input" else None)


def _id(state: Any) -> CellId:
    return state.transform_id, state.user_state_id, state.window


def _unserved(kind: str | None) -> ArcbeamError:
    return ArcbeamError(f"state requests of kind '{kind}' are not supported")
