"""User state in the memory of this process, while a bounded input's keys are processed.

Owns the state of keys, also of keys that are suspended until a timer fires. State is stored encoded. So a DoFn cannot
change it by changing an object that it has read or written, and its size is known. Must not know Spark.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from typing_extensions import override

from arcbeam.errors import ArcbeamError
from arcbeam.harness.state.cells import (
    Cell,
    ListRange,
    bag_chunks,
    bag_elements,
    insert_entries,
    list_elements,
    list_entries,
    places,
)
from arcbeam.harness.state.statehandler import CellId, StateHandler
from arcbeam.model.rows import SideStore
from arcbeam.sizes import threshold

_SUSPENDED_BYTES_MAX = threshold(64 << 20)
_ENTRY_OVERHEAD = 200


@dataclass(frozen=True, slots=True)
class KeyState:
    """All state of one key, detached from the handler. Can be pickled.

    Attributes:
        cells: contents by cell, without empty cells.
    """

    cells: tuple[tuple[CellId, tuple[tuple[int, bytes], ...]], ...]

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        return sum(_ENTRY_OVERHEAD + sum(len(data) + 100 for _, data in entries) for _, entries in self.cells)


class InProcessStateHandler(StateHandler):
    """Serves state requests from memory.

    Besides the storage it has methods for the code that drives the keys of a stateful stage. These are called between
    bundles: an open bundle may have writes that are not here yet.

    Args:
        channels, sides: see `StateHandler`.
        suspended_bytes: memory for the state of suspended keys; the rest goes to a file.
        spill_folder: the folder of that file; None: the system's temporary folder.
    """

    def __init__(
        self,
        channels: Mapping[tuple[str, str], int],
        sides: SideStore | None = None,
        *,
        suspended_bytes: int = _SUSPENDED_BYTES_MAX,
        spill_folder: str | None = None,
    ) -> None:
        super().__init__(channels, sides)
        self._keys: dict[bytes, dict[CellId, Cell]] = {}
        self._suspended = _SuspendedKeys(suspended_bytes, spill_folder)

    @override
    def done(self) -> None:
        self.clear_all()
        super().done()

    # Called by our handles; see `arcbeam.harness.state.handles.CellStorage`.

    def read_bag(self, key: bytes, cell: CellId, coder: Any) -> Iterable[Any]:
        """Return the current elements of a bag."""
        cells = self._cells(key)
        entries = cells.get(cell) if cells else None
        return bag_elements(entries, coder) if entries else ()

    def extend_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Add elements to a bag."""
        added = self._encoded(bag_chunks, cell, coder, elements)
        if added:
            self._cell(key, cell).extend(added)

    def replace_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Replace the contents of a bag by elements, at least one."""
        self.clear_bag(key, cell)
        self.extend_bag(key, cell, coder, elements)

    def clear_bag(self, key: bytes, cell: CellId) -> None:
        """Clear a bag."""
        cells = self._cells(key)
        if cells and cells.pop(cell, None) is not None and not cells:
            del self._keys[key]

    # Ordered lists are only used by the SDK's handles.

    def read_list(self, key: bytes, cell: CellId, coder: Any, range: ListRange) -> Iterable[Any]:
        """Return the current elements of an ordered list in a range."""
        cells = self._cells(key)
        entries = cells.get(cell) if cells else None
        return list_elements(entries, *places(entries, range), coder) if entries else ()

    def extend_list(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Add elements (sort key, value) to an ordered list."""
        added = self._encoded(list_entries, cell, coder, elements)
        if added:
            insert_entries(self._cell(key, cell), added)

    def clear_list(self, key: bytes, cell: CellId, range: ListRange) -> None:
        """Remove the elements of an ordered list in a range."""
        cells = self._cells(key)
        entries = cells.get(cell) if cells else None
        if entries:
            start, end = places(entries, range)
            del entries[start:end]
            if not entries:
                self.clear_bag(key, cell)

    # Called by the driver of keys.

    def drop_key(self, key: bytes, window: bytes | None = None) -> None:
        """Remove the state of a finished key, suspended or not; with `window`, only in that window."""
        if window is None:
            self._keys.pop(key, None)
            self._suspended.drop(key)
            return
        cells = self._cells(key)
        if cells:
            for id in [id for id in cells if id[2] == window]:
                del cells[id]
            if not cells:
                del self._keys[key]

    def clear_all(self) -> None:
        """Remove the state of all keys, and close the spill file. Side inputs stay."""
        self._keys.clear()
        self._suspended.clear()

    def keys(self) -> list[bytes]:
        """Return all keys that have state, suspended or not."""
        return [*self._keys, *self._suspended.keys()]

    def windows(self, key: bytes) -> set[bytes]:
        """Return the windows in which the key has state."""
        return {window for _, _, window in self._cells(key) or ()}

    def snapshot(self, key: bytes) -> KeyState:
        """Return a copy of all state of a key."""
        cells = self._cells(key) or {}
        return KeyState(tuple((id, tuple(cell)) for id, cell in cells.items()))

    def restore(self, key: bytes, state: KeyState) -> None:
        """Replace all state of a key by a snapshot."""
        self._suspended.drop(key)
        self._keys.pop(key, None)
        if state.cells:
            self._keys[key] = {id: list(entries) for id, entries in state.cells}

    def suspend(self, key: bytes) -> None:
        """Allow a key's state to go to a file, because it is not needed soon. Any later use of the key restores it."""
        cells = self._keys.get(key)
        if cells:
            self._suspended.put(key, self.snapshot(key))
            del self._keys[key]

    def _cells(self, key: bytes) -> dict[CellId, Cell] | None:
        """Return the cells of a key, restored if it is suspended; None if there are none."""
        cells = self._keys.get(key)
        if cells is None and key in self._suspended:
            state = self._suspended.take(key)
            cells = self._keys[key] = {id: list(entries) for id, entries in state.cells}
        return cells

    def _cell(self, key: bytes, id: CellId) -> Cell:
        """Return a cell for writing; a new one if it was empty."""
        cells = self._cells(key)
        if cells is None:
            cells = self._keys[key] = {}
        cell = cells.get(id)
        if cell is None:
            cell = cells[id] = []
        return cell


class _SuspendedKeys:
    """State of keys that are not needed soon: in memory up to a budget, the rest in an anonymous file.

    The oldest go to the file first. Invariant: a key is either in `_memory` or in `_places` (offset, length in the
    file), never in both.
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
        """Add the state of a key that is not present."""
        self._memory[key] = state
        self._held += state.size
        while self._held > self._budget:
            oldest = next(iter(self._memory))
            state = self._memory.pop(oldest)
            self._held -= state.size
            self._spill(oldest, pickle.dumps(state, protocol=5))

    def take(self, key: bytes) -> KeyState:
        """Remove and return the state of a key that is present."""
        state = self._memory.pop(key, None)
        if state is not None:
            self._held -= state.size
            return state
        offset, length = self._places[key]
        spilled: KeyState = pickle.loads(self._read(offset, length))
        self._forget(key)
        return spilled

    def drop(self, key: bytes) -> None:
        """Remove a key, if present."""
        state = self._memory.pop(key, None)
        if state is not None:
            self._held -= state.size
        elif key in self._places:
            self._forget(key)

    def clear(self) -> None:
        """Remove all keys, and close the file."""
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
            raise ArcbeamError("the file of spilled state is truncated", "check that the disk has free space")
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
        """Move live data to the front, in the order of its position, so that no unread data is overwritten."""
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
