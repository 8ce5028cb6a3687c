"""What the SDK's bundle processor calls its state handler, in this process: state requests and side inputs.

Owns what a request asks of the storage, and side inputs, which come from a `SideStore`. Where user state is, is said by
whoever derives from it: in memory (`harness.state.handler`), or in the view of a shard (`harness.streaming.state`).
Must not know where side inputs' files are, nor Spark.
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

_T = TypeVar("_T")
_CACHED_SIDE_BYTES = threshold(1 << 20)
"""Side-input contents up to this encoded size are kept decoded …"""
_CACHED_SIDES_BYTES = cache_size(16 << 20)
"""… up to this much in all."""
_ENTRY_OVERHEAD = 200


class Done:
    """A finished request; the SDK waits for each of its writes."""

    __slots__ = ()

    def get(self, timeout: float | None = None) -> None:
        """Returns at once."""


_DONE: Final = Done()


class StateHandler(ABC):
    """Serves state requests and side inputs on the thread that asks.

    Takes the place of the SDK's `GlobalCachingStateHandler`: `process_instruction_id`, `blocking_get`, `extend`,
    `clear`, `done`.

    Keys are what state requests carry: the *nested* encoding of the key coder. Windows are in the window coder's.

    Args:
        channels: side channel by (transform id, local name of the side input).
        sides: as `read_sides` takes them.

    Attributes:
        steps: names of steps by transform id, for errors.
    """

    def __init__(self, channels: Mapping[tuple[str, str], int], sides: SideStore | None = None) -> None:
        self._channels = dict(channels)
        self._sides = sides
        self._decoded = _Decoded()
        self.steps: Mapping[str, str] = {}

    # What the SDK calls.

    def process_instruction_id(self, bundle_id: str, cache_tokens: Iterable[Any] = ()) -> Any:
        """A context without effect: requests do not depend on the bundle."""
        return contextlib.nullcontext()

    def blocking_get(self, state_key: Any, coder: Any) -> Iterable[Any]:
        """The elements of a cell or side input, as they are now; later writes do not change a running iteration.

        Args:
            state_key: a `StateKey`.
            coder: coder impl of one element.

        Raises:
            ArcbeamError: for kinds of state keys that the Python SDK does not use without being invited to.
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
        """Adds elements to a cell; arguments as of `blocking_get`."""
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
        """Empties a cell; of an ordered list, the range that the key names, or all of it."""
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
        """The processor is not used any more: forgets everything."""
        self._decoded.clear()

    # Who begins tasks.

    def read_sides(self, sides: SideStore | None) -> None:
        """What side inputs are read from; None if there are none. A store never changes, so others are another one."""
        if sides is not self._sides:
            self._decoded.clear()
            self._sides = sides

    # The storage; for handles of ours, too: see `arcbeam.harness.state.handles.Storage`.

    @abstractmethod
    def read_bag(self, key: bytes, cell: CellId, coder: Any) -> Iterable[Any]:
        """The elements of a bag as they are now; later writes do not change what was returned."""

    @abstractmethod
    def extend_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Adds elements to a bag; `CoderError` if one cannot be encoded."""

    @abstractmethod
    def clear_bag(self, key: bytes, cell: CellId) -> None:
        """Empties a bag."""

    @abstractmethod
    def read_list(self, key: bytes, cell: CellId, coder: Any, range: ListRange) -> Iterable[Any]:
        """The elements, (sort key, value), of an ordered list in a range, as they are now."""

    @abstractmethod
    def extend_list(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Adds elements to an ordered list."""

    @abstractmethod
    def clear_list(self, key: bytes, cell: CellId, range: ListRange) -> None:
        """Removes the elements of an ordered list in a range."""

    def check_bag(self, transform: str, name: str, coder: Any, elements: Iterable[Any]) -> None:
        """Raises what `extend_bag` would."""
        try:
            for element in elements:
                coder.encode_nested(element)
        except Exception as e:
            raise self._error(e, transform, name, coder, elements) from e

    def _encoded(
        self, encode: Callable[[Any, Iterable[Any]], _T], id: CellId, coder: Any, elements: Iterable[Any]
    ) -> _T:
        """What `encode` makes of elements of a cell."""
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
        """The elements of an iterable side input, the values of a multimap's key, or its keys."""
        if kind == "multimap_side_input":
            side = state_key.multimap_side_input
            id: tuple[Any, ...] = (side.transform_id, side.side_input_id, side.window, side.key)
        elif kind == "iterable_side_input":
            side = state_key.iterable_side_input
            id = (side.transform_id, side.side_input_id, side.window)
        elif kind == "multimap_keys_side_input":
            side = state_key.multimap_keys_side_input
            id = (side.transform_id, side.side_input_id, side.window, None)
        else:
            raise _unserved(kind)
        known = self._decoded.get(id)
        if known is not None:
            return known
        channel = self._channels.get(id[:2])
        if channel is None or self._sides is None:
            raise ArcbeamError(f"'{id[1]}' is not a side input of transform '{id[0]}' in this stage")
        if kind == "multimap_side_input":
            chunks = self._sides.values(channel, side.window, side.key)
        elif kind == "iterable_side_input":
            chunks = self._sides.chunks(channel, side.window)
        else:
            chunks = self._sides.keys(channel, side.window)
        return self._decoded.read(id, chunks, coder)


class _Decoded:
    """Decodes side inputs, and keeps small ones decoded: a DoFn iterates over the same for each of its elements."""

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
        """All elements at once if they are small, else as they are iterated."""
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


def _id(state: Any) -> CellId:
    return state.transform_id, state.user_state_id, state.window


def _unserved(kind: str | None) -> ArcbeamError:
    return ArcbeamError(f"state requests of kind '{kind}' are not served in the Spark worker")
