"""State and side inputs of the SDK's bundle processor, in this process: what its operations call `state_handler`.

Owns user state while its keys are being processed, and the keys that are parked until a timer fires. State is held
encoded: what a DoFn does to an object that it read or wrote earlier does not change the state, and its size is known.
Side inputs come from a `SideStore`. Must not know where its files are, nor Spark.
"""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, Final

from arcbeam.errors import ArcbeamError
from arcbeam.harness.encoding.codererrors import coder_error
from arcbeam.harness.state.cells import (
    Cell,
    bag_chunks,
    bag_elements,
    insert_entries,
    list_elements,
    list_entries,
    list_range,
    whole,
)
from arcbeam.model.rows import SideStore

CellId = tuple[str, str, bytes]
"""(transform id, state name, encoded window): a cell of one key."""

_CACHED_SIDE_BYTES = 1 << 20
"""Side-input contents up to this encoded size are kept decoded …"""
_CACHED_SIDES_BYTES = 16 << 20
"""… up to this much in all."""
_ENTRY_OVERHEAD = 200


class _Done:
    """A finished request; the SDK waits for each of its writes."""

    __slots__ = ()

    def get(self, timeout: float | None = None) -> None:
        """Returns at once."""


_DONE: Final = _Done()


@dataclass(frozen=True, slots=True)
class KeyState:
    """All state of one key, detached from the handler. Pickles.

    Attributes:
        cells: contents by cell; never an empty one.
    """

    cells: tuple[tuple[CellId, tuple[tuple[int, bytes], ...]], ...]

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return sum(_ENTRY_OVERHEAD + sum(len(data) + 100 for _, data in entries) for _, entries in self.cells)


class InProcessStateHandler:
    """Serves state requests from memory and side inputs from files, on the thread that asks.

    Takes the place of the SDK's `GlobalCachingStateHandler`: `process_instruction_id`, `blocking_get`, `extend`,
    `clear`, `done`. The other methods are for whoever drives the keys of a stateful stage; call them between bundles:
    an open bundle holds writes that are not here yet.

    Keys are what state requests carry: the *nested* encoding of the key coder. Windows are in the window coder's.

    Args:
        channels: side channel by (transform id, local name of the side input).
        sides: the stage's side inputs; None if it has none.
        parked_bytes: what the state of parked keys may take in memory; beyond, it goes to a file.
        spill_folder: where that file is; the system's temporary folder if None.
    """

    def __init__(
        self,
        channels: Mapping[tuple[str, str], int],
        sides: SideStore | None,
        *,
        parked_bytes: int = 64 << 20,
        spill_folder: str | None = None,
    ) -> None:
        self._channels = dict(channels)
        self._sides = sides
        self._keys: dict[bytes, dict[CellId, Cell]] = {}
        self._parked = _Parked(parked_bytes, spill_folder)
        self._decoded = _Decoded()
        self.steps: Mapping[str, str] = {}
        """Names of steps by transform id, for errors."""

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
            cells = self._cells(state.key)
            cell = cells.get(_id(state)) if cells else None
            return list_elements(cell, *list_range(state, cell), coder) if cell else ()
        return self._side(kind, state_key, coder)

    def extend(self, state_key: Any, coder: Any, elements: Iterable[Any]) -> _Done:
        """Adds elements to a cell; arguments as of `blocking_get`."""
        kind = state_key.WhichOneof("type")
        if kind == "bag_user_state":
            state = state_key.bag_user_state
            self.extend_bag(state.key, _id(state), coder, elements)
        elif kind == "ordered_list_user_state":
            state = state_key.ordered_list_user_state
            added = self._encoded(list_entries, _id(state), coder, elements)
            if added:
                insert_entries(self._cell(state.key, _id(state)), added)
        else:
            raise _unserved(kind)
        return _DONE

    def clear(self, state_key: Any) -> _Done:
        """Empties a cell; of an ordered list, the range that the key names, or all of it."""
        kind = state_key.WhichOneof("type")
        if kind not in ("bag_user_state", "ordered_list_user_state"):
            raise _unserved(kind)
        state = getattr(state_key, kind)
        if kind == "ordered_list_user_state":
            cells = self._cells(state.key)
            cell = cells.get(_id(state)) if cells else None
            if cell is None:
                return _DONE
            start, end = list_range(state, cell)
            del cell[start:end]
            if cell:
                return _DONE
        self.clear_bag(state.key, _id(state))
        return _DONE

    def done(self) -> None:
        """The processor is not used any more: forgets everything."""
        self.clear_all()
        self._decoded.clear()

    # What handles of ours call; see `arcbeam.harness.state.handles.Storage`.

    def read_bag(self, key: bytes, cell: CellId, coder: Any) -> Iterable[Any]:
        """The elements of a bag as they are now."""
        cells = self._cells(key)
        entries = cells.get(cell) if cells else None
        return bag_elements(entries, coder) if entries else ()

    def extend_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Adds elements to a bag."""
        added = self._encoded(bag_chunks, cell, coder, elements)
        if added:
            self._cell(key, cell).extend(added)

    def check_bag(self, transform: str, name: str, coder: Any, elements: Iterable[Any]) -> None:
        """Raises what `extend_bag` would."""
        try:
            for element in elements:
                coder.encode_nested(element)
        except Exception as e:
            raise self._error(e, transform, name, coder, elements) from e

    def clear_bag(self, key: bytes, cell: CellId) -> None:
        """Empties a bag."""
        cells = self._cells(key)
        if cells and cells.pop(cell, None) is not None and not cells:
            del self._keys[key]

    # What the driver of keys calls.

    def drop_key(self, key: bytes, window: bytes | None = None) -> None:
        """Forgets the state of a finished key, parked or not; only in one window if it is given."""
        if window is None:
            self._keys.pop(key, None)
            self._parked.drop(key)
            return
        cells = self._cells(key)
        if cells:
            for id in [id for id in cells if id[2] == window]:
                del cells[id]
            if not cells:
                del self._keys[key]

    def clear_all(self) -> None:
        """Forgets the state of all keys, and gives up the spill file. Side inputs stay."""
        self._keys.clear()
        self._parked.clear()

    def has_state(self, key: bytes) -> bool:
        """Whether the key has any state, parked or not."""
        return key in self._keys or key in self._parked

    def keys(self) -> list[bytes]:
        """All keys that have state, parked or not."""
        return [*self._keys, *self._parked.keys()]

    def windows(self, key: bytes) -> set[bytes]:
        """The windows in which the key has state."""
        return {window for _, _, window in self._cells(key) or ()}

    def snapshot(self, key: bytes) -> KeyState:
        """A copy of all state of a key."""
        cells = self._cells(key) or {}
        return KeyState(tuple((id, tuple(cell)) for id, cell in cells.items()))

    def restore(self, key: bytes, state: KeyState) -> None:
        """Makes a snapshot all there is of a key."""
        self._parked.drop(key)
        self._keys.pop(key, None)
        if state.cells:
            self._keys[key] = {id: list(entries) for id, entries in state.cells}

    def park(self, key: bytes) -> None:
        """Says that a key will not be needed soon: its state may go to a file. Any later use of the key undoes it."""
        cells = self._keys.get(key)
        if cells:
            self._parked.put(key, self.snapshot(key))
            del self._keys[key]

    def _cells(self, key: bytes) -> dict[CellId, Cell] | None:
        """The cells of a key, brought back if it is parked; None if there are none."""
        cells = self._keys.get(key)
        if cells is None and key in self._parked:
            state = self._parked.take(key)
            cells = self._keys[key] = {id: list(entries) for id, entries in state.cells}
        return cells

    def _cell(self, key: bytes, id: CellId) -> Cell:
        """A cell to write to; new if it was empty."""
        cells = self._cells(key)
        if cells is None:
            cells = self._keys[key] = {}
        cell = cells.get(id)
        if cell is None:
            cell = cells[id] = []
        return cell

    def _encoded(
        self, encode: Callable[[Any, Iterable[Any]], Cell], id: CellId, coder: Any, elements: Iterable[Any]
    ) -> Cell:
        """What `encode` makes of elements of a cell."""
        try:
            return encode(coder, elements)
        except Exception as e:
            raise self._error(e, id[0], id[1], coder, elements) from e

    def _error(self, error: Exception, transform: str, name: str, coder: Any, elements: Iterable[Any]) -> Exception:
        if isinstance(error, ArcbeamError):
            return error
        return coder_error(coder, self.steps.get(transform, ""), error, elements, f" for state '{name}'")

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


class _Parked:
    """State of keys that are not needed soon: in memory up to a budget, the rest in an anonymous file.

    Oldest first to the file. Invariant: a key is in `_memory` or in `_places` (offset, length in the file), never both.
    """

    def __init__(self, budget: int, folder: str | None) -> None:
        self._budget, self._folder = budget, folder
        self._memory: dict[bytes, KeyState] = {}
        self._held = 0
        self._places: dict[bytes, tuple[int, int]] = {}
        self._live = 0
        self._end = 0
        self._file: IO[bytes] | None = None

    def __contains__(self, key: bytes) -> bool:
        return key in self._memory or key in self._places

    def keys(self) -> list[bytes]:
        return [*self._memory, *self._places]

    def put(self, key: bytes, state: KeyState) -> None:
        """Keeps the state of a key that is not here."""
        self._memory[key] = state
        self._held += state.size
        while self._held > self._budget:
            oldest = next(iter(self._memory))
            state = self._memory.pop(oldest)
            self._held -= state.size
            self._spill(oldest, pickle.dumps(state, protocol=5))

    def take(self, key: bytes) -> KeyState:
        """Gives back the state of a key that is here."""
        state = self._memory.pop(key, None)
        if state is not None:
            self._held -= state.size
            return state
        offset, length = self._places[key]
        spilled: KeyState = pickle.loads(self._read(offset, length))
        self._forget(key)
        return spilled

    def drop(self, key: bytes) -> None:
        """Forgets a key, if it is here."""
        state = self._memory.pop(key, None)
        if state is not None:
            self._held -= state.size
        elif key in self._places:
            self._forget(key)

    def clear(self) -> None:
        """Forgets all keys and gives up the file."""
        self._memory.clear()
        self._places.clear()
        self._held = self._live = self._end = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, offset: int, length: int) -> bytes:
        assert self._file is not None
        self._file.seek(offset)
        data = self._file.read(length)
        if len(data) != length:
            raise ArcbeamError("the file of spilled state was cut off", "see that the disk has room")
        return data

    def _spill(self, key: bytes, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="arcbeam-state-", dir=self._folder)  # noqa: SIM115 - kept
        self._file.seek(self._end)
        self._file.write(data)
        self._places[key] = (self._end, len(data))
        self._end += len(data)
        self._live += len(data)

    def _forget(self, key: bytes) -> None:
        self._live -= self._places.pop(key)[1]
        if not self._places:
            self._end = 0  # written over from the start
        elif self._end > 2 * self._live + self._budget:
            self._compact()

    def _compact(self) -> None:
        """Moves what is live to the front, in order of place: nothing is written over that is still to be read."""
        places = sorted(self._places.items(), key=lambda item: item[1])
        self._end = 0
        assert self._file is not None
        for key, (offset, length) in places:
            data = self._read(offset, length)
            self._file.seek(self._end)
            self._file.write(data)
            self._places[key] = (self._end, length)
            self._end += length
        self._file.truncate(self._end)
