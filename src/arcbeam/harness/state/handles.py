"""State handles for user code: access to the cells of one key and window, between two commits.

Owns what a handle reads: what was written to it, else what the storage has. Writes reach the storage with `commit`, and
a handle is not used after it. Must not know bundles, timers, or where the storage is.

They replace the SDK's handles, which need many objects and requests for each element.
"""

from __future__ import annotations

import copy
import heapq
from bisect import insort_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol

from apache_beam import coders
from apache_beam.transforms import userstate
from apache_beam.utils.timestamp import Timestamp
from typing_extensions import override

from arcbeam.harness.state.bags import BagElements, kept_apart
from arcbeam.harness.state.cells import ListRange, places
from arcbeam.harness.state.statehandler import CellId
from arcbeam.sizes import memo

FIRST_KEY, LAST_KEY = -(1 << 63), (1 << 63) - 1
"""Bounds of the sort keys of ordered lists, in microseconds: the first is included, the last is excluded, as in the
SDK."""
_sort_key = itemgetter(0)


class CellStorage(Protocol):
    """State between commits. A cell is a bag of elements; a value is a bag of one.

    `key` is a nested encoding with the key's coder. `cell` is (transform id, state name, encoded window). `coder` is
    the impl of an element's coder.
    """

    def read_bag(self, key: bytes, cell: CellId, coder: Any) -> Iterable[Any]:
        """Return the current elements of a cell; later writes do not change the result."""
        ...

    def extend_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Add elements to a cell; raise `CoderError` if one cannot be encoded."""
        ...

    def replace_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Replace the contents of a cell by elements, at least one; raise `CoderError` if one cannot be encoded."""
        ...

    def check_bag(self, transform: str, name: str, coder: Any, elements: Iterable[Any]) -> None:
        """Raise the errors that `extend_bag` would raise, but add nothing: the key's state is dropped anyway."""
        ...

    def clear_bag(self, key: bytes, cell: CellId) -> None:
        """Clear a cell."""
        ...

    # Ordered lists. Elements are (sort key, value), ordered by key, then by arrival.

    def read_list(self, key: bytes, cell: CellId, coder: Any, range: ListRange) -> Iterable[Any]:
        """Return the current elements in a range; later writes do not change the result."""
        ...

    def extend_list(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Add elements; raise `CoderError` if one cannot be encoded."""
        ...

    def clear_list(self, key: bytes, cell: CellId, range: ListRange) -> None:
        """Remove the elements in a range."""
        ...


@dataclass(frozen=True, slots=True)
class CellHandles:
    """The cells of a transform.

    Attributes:
        storage: the storage that contains them.
        transform: the transform's id.
        encode_key: returns a key's nested encoding.
        encode_window: encodes a window.
    """

    storage: CellStorage
    transform: str
    encode_key: Callable[[Any], bytes]
    encode_window: Callable[[Any], bytes]


class KeyPlace:
    """The cells of a key in a window. Key and window are encoded when needed.

    Args:
        fresh: whether the storage has no entry of the key.

    Attributes:
        key, window: the key and the window of the cells.
    """

    __slots__ = ("_at", "_cells", "fresh", "key", "window")

    def __init__(self, cells: CellHandles, key: Any, window: Any, *, fresh: bool) -> None:
        self._cells, self.key, self.window, self.fresh = cells, key, window, fresh
        self._at: tuple[bytes, bytes] | None = None

    def read(self, name: str, coder: Any) -> Iterable[Any]:
        """Return the elements of a cell."""
        if self.fresh:
            return ()
        return self._cells.storage.read_bag(*self._where(name), coder)

    def write(self, name: str, coder: Any, elements: Sequence[Any], *, clear: bool, keep: bool) -> None:
        """Add elements to a cell, and clear it first if `clear`. If not `keep`, only check them."""
        if not keep:
            self._check(name, coder, elements)
            return
        storage, (key, cell) = self._cells.storage, self._where(name)
        if elements:
            put = storage.replace_bag if clear and not self.fresh else storage.extend_bag
            put(key, cell, coder, elements)
        elif clear and not self.fresh:
            storage.clear_bag(key, cell)

    def read_list(self, name: str, coder: Any, between: ListRange) -> Iterable[Any]:
        """Return the elements of an ordered list in a range."""
        if self.fresh:
            return ()
        return self._cells.storage.read_list(*self._where(name), coder, between)

    def write_list(
        self, name: str, coder: Any, elements: Sequence[Any], *, clear: Sequence[ListRange], keep: bool
    ) -> None:
        """Remove ranges of an ordered list, then add elements to it. If not `keep`, only check the elements."""
        if not keep:
            self._check(name, coder, elements)
            return
        storage, (key, cell) = self._cells.storage, self._where(name)
        if not self.fresh:
            for between in clear:
                storage.clear_list(key, cell, between)
        if elements:
            storage.extend_list(key, cell, coder, elements)

    def _check(self, name: str, coder: Any, elements: Sequence[Any]) -> None:
        if elements:
            self._cells.storage.check_bag(self._cells.transform, name, coder, elements)

    def _where(self, name: str) -> tuple[bytes, CellId]:
        cells, at = self._cells, self._at
        if at is None:
            at = self._at = cells.encode_key(self.key), cells.encode_window(self.window)
        return at[0], (cells.transform, name, at[1])


class Handle(Protocol):
    """The common interface of our handles."""

    def commit(self, *, keep: bool) -> None:
        """Write all changes to the storage. If not `keep`, only check them."""
        ...


class Value(userstate.ReadModifyWriteRuntimeState):  # type: ignore[misc]  # Beam is untyped
    """See the SDK's class. Each read decodes again, so changing the result does not change the state."""

    def __init__(self, place: KeyPlace, name: str, coder: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._written = self._cleared = False
        self._value: Any = None

    def read(self) -> Any:
        """Return the value; None if there is none."""
        if self._cleared or self._place.fresh:
            return self._value
        return next(iter(self._place.read(self._name, self._coder)), None)

    def write(self, value: Any) -> None:
        """Set the value."""
        self._value = value
        self._written = self._cleared = True

    def clear(self) -> None:
        """Remove the value."""
        self._value, self._written, self._cleared = None, False, True

    @override
    def commit(self, *, keep: bool) -> None:
        if self._cleared:
            self._place.write(self._name, self._coder, (self._value,) if self._written else (), clear=True, keep=keep)


class BagHandle(userstate.BagRuntimeState):  # type: ignore[misc]
    """See the SDK's class. The result of a read does not change when elements are added."""

    def __init__(self, place: KeyPlace, name: str, coder: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._cleared = False
        self._added: list[Any] = []

    def read(self) -> Iterable[Any]:
        """Return the current elements."""
        stored = () if self._cleared else self._place.read(self._name, self._coder)
        return BagElements(stored, self._added)

    def add(self, value: Any) -> None:
        """Add an element."""
        self._added.append(value)

    def clear(self) -> None:
        """Remove all elements."""
        self._cleared = True
        self._added = []

    @override
    def commit(self, *, keep: bool) -> None:
        if self._cleared or self._added:
            self._place.write(self._name, self._coder, self._added, clear=self._cleared, keep=keep)


class Set(userstate.SetRuntimeState):  # type: ignore[misc]
    """See the SDK's class."""

    def __init__(self, place: KeyPlace, name: str, coder: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._cleared = False
        self._added: set[Any] = set()
        self._stored: frozenset[Any] | None = None

    def _of_storage(self) -> frozenset[Any]:
        if self._stored is None:
            self._stored = frozenset(() if self._cleared else self._place.read(self._name, self._coder))
        return self._stored

    def read(self) -> set[Any]:
        """Return the current elements."""
        return set(chain(self._of_storage(), self._added))

    def add(self, value: Any) -> None:
        """Add an element, unless it is present."""
        self._added.add(value)

    def clear(self) -> None:
        """Remove all elements."""
        self._cleared = True
        self._added, self._stored = set(), frozenset()

    @override
    def commit(self, *, keep: bool) -> None:
        if self._cleared or self._added:
            new = list(self._added - self._of_storage())
            self._place.write(self._name, self._coder, new, clear=self._cleared, keep=keep)


class Combining(userstate.CombiningValueRuntimeState):  # type: ignore[misc]
    """See the SDK's class. Adding does not read; reading merges.

    SUBTLE: an output may be its accumulator, or `extract_output` may have changed the accumulator. So the state keeps
    a copy.
    """

    def __init__(self, place: KeyPlace, name: str, coder: Any, combine_fn: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._fn = combine_fn
        self._cleared = False
        self._accumulators: list[Any] = []
        self._adding = False

    def read(self) -> Any:
        """Return the output for all added values."""
        stored = () if self._cleared else self._place.read(self._name, self._coder)
        merged = self._fn.merge_accumulators([*stored, *self._accumulators])
        kept = kept_apart(merged, self._coder)
        self._cleared, self._accumulators, self._adding = True, [kept], False
        return self._fn.extract_output(merged)

    def add(self, value: Any) -> None:
        """Add a value."""
        accumulators = self._accumulators
        if self._adding:
            accumulators[-1] = self._fn.add_input(accumulators[-1], value)
        else:
            accumulators.append(self._fn.add_input(self._fn.create_accumulator(), value))
            self._adding = True

    def clear(self) -> None:
        """Remove all added values."""
        self._cleared, self._accumulators, self._adding = True, [], False

    @override
    def commit(self, *, keep: bool) -> None:
        if self._cleared or self._accumulators:
            self._place.write(self._name, self._coder, self._accumulators, clear=self._cleared, keep=keep)


class OrderedList(userstate.OrderedListRuntimeState):  # type: ignore[misc]
    """See the SDK's class. The result of a read does not change when elements are added.

    Args:
        coder: coder impl of (sort key, value).
    """

    def __init__(self, place: KeyPlace, name: str, coder: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._removed: list[ListRange] = []
        self._cleared = False
        # In order.
        self._added: list[tuple[int, Any]] = []

    def add(self, elem: tuple[Timestamp, Any]) -> None:
        """Add (timestamp, value).

        Raises:
            ValueError: the timestamp is out of range.
        """
        time, value = elem
        at = time.micros
        if not FIRST_KEY <= at < LAST_KEY:
            raise ValueError(f"timestamp {time} is out of the range of an ordered list")
        added = self._added
        if not added or added[-1][0] <= at:
            added.append((at, value))
        else:
            insort_right(added, (at, value), key=_sort_key)

    def read(self) -> Iterable[tuple[Timestamp, Any]]:
        """Return all current elements."""
        return self._between(None)

    def read_range(self, min_timestamp: Timestamp, limit_timestamp: Timestamp) -> Iterable[tuple[Timestamp, Any]]:
        """Return the current elements from `min_timestamp` (included) to `limit_timestamp` (excluded)."""
        return self._between((min_timestamp.micros, limit_timestamp.micros))

    def clear(self) -> None:
        """Remove all elements."""
        self._cleared, self._removed, self._added = True, [None], []

    def clear_range(self, min_timestamp: Timestamp, limit_timestamp: Timestamp) -> None:
        """Remove the elements from `min_timestamp` (included) to `limit_timestamp` (excluded)."""
        between = min_timestamp.micros, limit_timestamp.micros
        start, end = places(self._added, between)
        del self._added[start:end]
        if not self._cleared and between[0] < between[1]:
            self._removed.append(between)

    @override
    def commit(self, *, keep: bool) -> None:
        if self._removed or self._added:
            self._place.write_list(self._name, self._coder, self._added, clear=self._removed, keep=keep)

    def _between(self, between: ListRange) -> Iterable[tuple[Timestamp, Any]]:
        start, end = places(self._added, between)
        added = self._added[start:end]
        if self._cleared or self._place.fresh:
            return ((Timestamp(micros=at), value) for at, value in added)
        return self._both(self._place.read_list(self._name, self._coder, between), added, tuple(self._removed))

    @staticmethod
    def _both(
        stored: Iterable[tuple[int, Any]], added: list[tuple[int, Any]], removed: tuple[ListRange, ...]
    ) -> Iterator[tuple[Timestamp, Any]]:
        if removed:
            stored = (each for each in stored if not any(r is None or r[0] <= each[0] < r[1] for r in removed))
        for at, value in heapq.merge(stored, added, key=_sort_key) if added else stored:
            yield Timestamp(micros=at), value


class HandleMaker:
    """Creates handles for the state of one transform.

    CombineFns are set up when a bundle first needs them, and torn down at its end, as in the SDK.
    """

    def __init__(self) -> None:
        self._fns: dict[Any, Any] = {}
        self._makers: dict[Any, Callable[[KeyPlace], Handle]] = memo()

    def make(self, spec: Any, place: KeyPlace) -> Handle:
        """Return a handle for the state that an SDK spec describes."""
        maker = self._makers.get(spec)
        if maker is None:
            maker = self._makers[spec] = self._maker(spec)
        return maker(place)

    def end_bundle(self) -> None:
        """Tear down what was set up in the bundle."""
        fns, self._fns = self._fns, {}
        for fn in fns.values():
            fn.teardown()

    def _maker(self, spec: Any) -> Callable[[KeyPlace], Handle]:
        name, coder = spec.name, spec.coder.get_impl()
        match spec:
            case userstate.ReadModifyWriteStateSpec():
                return lambda place: Value(place, name, coder)
            case userstate.BagStateSpec():
                return lambda place: BagHandle(place, name, coder)
            case userstate.SetStateSpec():
                return lambda place: Set(place, name, coder)
            case userstate.CombiningValueStateSpec():
                return lambda place: Combining(place, name, coder, self._fn(spec))
            case userstate.OrderedListStateSpec():
                pairs = coders.TupleCoder(
                    [coders.VarIntCoder(), coders.coders.LengthPrefixCoder(spec.coder)]
                ).get_impl()
                return lambda place: OrderedList(place, name, pairs)
        kind = type(spec).__name__
        raise TypeError(f"state '{name}' has the unsupported type {kind}; use one of the SDK's StateSpecs")

    def _fn(self, spec: Any) -> Any:
        fn = self._fns.get(spec)
        if fn is None:
            fn = self._fns[spec] = copy.deepcopy(spec.combine_fn)
            fn.setup()
        return fn
