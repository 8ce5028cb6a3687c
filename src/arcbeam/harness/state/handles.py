"""What user code reads and writes as its state: the handles on the cells of one key and window, between two commits.

Owns what a handle answers: at once what was written to it, else what the storage has. Nothing is in the storage before
`commit`, and a handle is not used after it. Must not know bundles, timers, or where the storage is.

They take the place of the SDK's handles, which are as many objects and requests for each element.
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

from arcbeam.harness.state.bags import Elements, kept_apart
from arcbeam.harness.state.cells import ListRange, places
from arcbeam.harness.state.statehandler import CellId
from arcbeam.sizes import memo

FIRST_KEY, LAST_KEY = -(1 << 63), (1 << 63) - 1
"""Sort keys of ordered lists are from the one on and before the other, in microseconds: the SDK's bounds."""
_sort_key = itemgetter(0)


class Storage(Protocol):
    """Where state is between commits. A cell is a bag of elements; a value is a bag of one.

    `key` is in the nested encoding of the key's coder, `cell` is (transform id, state name, encoded window), `coder` is
    the impl of an element's coder.
    """

    def read_bag(self, key: bytes, cell: CellId, coder: Any) -> Iterable[Any]:
        """The elements of a cell as they are now; later writes do not change what was returned."""
        ...

    def extend_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Adds elements to a cell; `CoderError` if one cannot be encoded."""
        ...

    def replace_bag(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Makes elements, at least one, all that a cell has; `CoderError` if one cannot be encoded."""
        ...

    def check_bag(self, transform: str, name: str, coder: Any, elements: Iterable[Any]) -> None:
        """Raises what `extend_bag` would raise, and adds nothing: the key's state goes."""
        ...

    def clear_bag(self, key: bytes, cell: CellId) -> None:
        """Empties a cell."""
        ...

    # Of ordered lists. Elements are (sort key, value), in the order of their keys, then of arrival.

    def read_list(self, key: bytes, cell: CellId, coder: Any, range: ListRange) -> Iterable[Any]:
        """The elements in a range as they are now; later writes do not change what was returned."""
        ...

    def extend_list(self, key: bytes, cell: CellId, coder: Any, elements: Iterable[Any]) -> None:
        """Adds elements; `CoderError` if one cannot be encoded."""
        ...

    def clear_list(self, key: bytes, cell: CellId, range: ListRange) -> None:
        """Removes the elements in a range."""
        ...


@dataclass(frozen=True, slots=True)
class Cells:
    """Where a transform's cells are.

    Attributes:
        storage: has them.
        transform: its id.
        encode_key: to the nested encoding.
        encode_window: a window to bytes.
    """

    storage: Storage
    transform: str
    encode_key: Callable[[Any], bytes]
    encode_window: Callable[[Any], bytes]


class Place:
    """The cells of a key in a window. Key and window are encoded when that is needed.

    Args:
        fresh: whether the storage has nothing of the key.

    Attributes:
        key, window: whose cells these are.
    """

    __slots__ = ("_at", "_cells", "fresh", "key", "window")

    def __init__(self, cells: Cells, key: Any, window: Any, *, fresh: bool) -> None:
        self._cells, self.key, self.window, self.fresh = cells, key, window, fresh
        self._at: tuple[bytes, bytes] | None = None

    def read(self, name: str, coder: Any) -> Iterable[Any]:
        """The elements of a cell."""
        if self.fresh:
            return ()
        return self._cells.storage.read_bag(*self._where(name), coder)

    def write(self, name: str, coder: Any, elements: Sequence[Any], *, clear: bool, keep: bool) -> None:
        """Adds elements to a cell, empties it first if `clear`; only checks them if not `keep`."""
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
        """The elements of an ordered list in a range."""
        if self.fresh:
            return ()
        return self._cells.storage.read_list(*self._where(name), coder, between)

    def write_list(
        self, name: str, coder: Any, elements: Sequence[Any], *, clear: Sequence[ListRange], keep: bool
    ) -> None:
        """Removes ranges of an ordered list, then adds elements to it; only checks these if not `keep`."""
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
    """What all handles of ours share."""

    def commit(self, *, keep: bool) -> None:
        """Brings to the storage what was written; only checks it if not `keep`."""
        ...


class Value(userstate.ReadModifyWriteRuntimeState):  # type: ignore[misc]  # Beam is untyped
    """See the SDK's class. What is stored is decoded each time: changing what was read does not change the state."""

    def __init__(self, place: Place, name: str, coder: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._written = self._cleared = False
        self._value: Any = None

    def read(self) -> Any:
        """The value; None if there is none."""
        if self._cleared or self._place.fresh:
            return self._value
        return next(iter(self._place.read(self._name, self._coder)), None)

    def write(self, value: Any) -> None:
        """Sets the value."""
        self._value = value
        self._written = self._cleared = True

    def clear(self) -> None:
        """Forgets the value."""
        self._value, self._written, self._cleared = None, False, True

    def commit(self, *, keep: bool) -> None:
        """See `Handle`."""
        if self._cleared:
            self._place.write(self._name, self._coder, (self._value,) if self._written else (), clear=True, keep=keep)


class Bag(userstate.BagRuntimeState):  # type: ignore[misc]
    """See the SDK's class. What was read stays as it was, whatever comes to the bag later."""

    def __init__(self, place: Place, name: str, coder: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._cleared = False
        self._added: list[Any] = []

    def read(self) -> Iterable[Any]:
        """The elements as they are now."""
        stored = () if self._cleared else self._place.read(self._name, self._coder)
        return Elements(stored, self._added)

    def add(self, value: Any) -> None:
        """Adds an element."""
        self._added.append(value)

    def clear(self) -> None:
        """Removes all elements."""
        self._cleared = True
        self._added = []

    def commit(self, *, keep: bool) -> None:
        """See `Handle`."""
        if self._cleared or self._added:
            self._place.write(self._name, self._coder, self._added, clear=self._cleared, keep=keep)


class Set(userstate.SetRuntimeState):  # type: ignore[misc]
    """See the SDK's class."""

    def __init__(self, place: Place, name: str, coder: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._cleared = False
        self._added: set[Any] = set()
        self._stored: frozenset[Any] | None = None

    def _of_storage(self) -> frozenset[Any]:
        if self._stored is None:
            self._stored = frozenset(() if self._cleared else self._place.read(self._name, self._coder))
        return self._stored

    def read(self) -> set[Any]:
        """The elements as they are now."""
        return set(chain(self._of_storage(), self._added))

    def add(self, value: Any) -> None:
        """Adds an element if it is not there."""
        self._added.add(value)

    def clear(self) -> None:
        """Removes all elements."""
        self._cleared = True
        self._added, self._stored = set(), frozenset()

    def commit(self, *, keep: bool) -> None:
        """See `Handle`."""
        if self._cleared or self._added:
            new = list(self._added - self._of_storage())
            self._place.write(self._name, self._coder, new, clear=self._cleared, keep=keep)


class Combining(userstate.CombiningValueRuntimeState):  # type: ignore[misc]
    """See the SDK's class. Adding is blind; reading merges.

    SUBTLE: an output may be the accumulator it is made of, or have used it up: the state keeps another.
    """

    def __init__(self, place: Place, name: str, coder: Any, combine_fn: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._fn = combine_fn
        self._cleared = False
        self._accumulators: list[Any] = []
        self._adding = False

    def read(self) -> Any:
        """What is made of all that was added."""
        stored = () if self._cleared else self._place.read(self._name, self._coder)
        merged = self._fn.merge_accumulators([*stored, *self._accumulators])
        kept = kept_apart(merged, self._coder)
        self._cleared, self._accumulators, self._adding = True, [kept], False
        return self._fn.extract_output(merged)

    def add(self, value: Any) -> None:
        """Adds a value."""
        accumulators = self._accumulators
        if self._adding:
            accumulators[-1] = self._fn.add_input(accumulators[-1], value)
        else:
            accumulators.append(self._fn.add_input(self._fn.create_accumulator(), value))
            self._adding = True

    def clear(self) -> None:
        """Forgets all that was added."""
        self._cleared, self._accumulators, self._adding = True, [], False

    def commit(self, *, keep: bool) -> None:
        """See `Handle`."""
        if self._cleared or self._accumulators:
            self._place.write(self._name, self._coder, self._accumulators, clear=self._cleared, keep=keep)


class OrderedList(userstate.OrderedListRuntimeState):  # type: ignore[misc]
    """See the SDK's class. What was read stays as it was, whatever comes to the list later.

    Args:
        coder: the impl of the coder of (sort key, value).
    """

    def __init__(self, place: Place, name: str, coder: Any) -> None:
        self._place, self._name, self._coder = place, name, coder
        self._removed: list[ListRange] = []
        self._cleared = False
        # In order.
        self._added: list[tuple[int, Any]] = []

    def add(self, elem: tuple[Timestamp, Any]) -> None:
        """Adds (timestamp, value).

        Raises:
            ValueError: the timestamp is none that has a place.
        """
        time, value = elem
        at = time.micros
        if not FIRST_KEY <= at < LAST_KEY:
            raise ValueError(f"{time} cannot be the key of an ordered list: it is out of range")
        added = self._added
        if not added or added[-1][0] <= at:
            added.append((at, value))
        else:
            insort_right(added, (at, value), key=_sort_key)

    def read(self) -> Iterable[tuple[Timestamp, Any]]:
        """All of it, as it is now."""
        return self._between(None)

    def read_range(self, min_timestamp: Timestamp, limit_timestamp: Timestamp) -> Iterable[tuple[Timestamp, Any]]:
        """What is at or behind the one and before the other, as it is now."""
        return self._between((min_timestamp.micros, limit_timestamp.micros))

    def clear(self) -> None:
        """Removes all of it."""
        self._cleared, self._removed, self._added = True, [None], []

    def clear_range(self, min_timestamp: Timestamp, limit_timestamp: Timestamp) -> None:
        """Removes what is at or behind the one and before the other."""
        between = min_timestamp.micros, limit_timestamp.micros
        start, end = places(self._added, between)
        del self._added[start:end]
        if not self._cleared and between[0] < between[1]:
            self._removed.append(between)

    def commit(self, *, keep: bool) -> None:
        """See `Handle`."""
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
    """Makes handles on the state of one transform.

    CombineFns are set up when a bundle first needs them, and torn down with it, as the SDK has it.
    """

    def __init__(self) -> None:
        self._fns: dict[Any, Any] = {}
        self._makers: dict[Any, Callable[[Place], Handle]] = memo()

    def make(self, spec: Any, place: Place) -> Handle:
        """A handle on the state that a spec of the SDK's describes."""
        maker = self._makers.get(spec)
        if maker is None:
            maker = self._makers[spec] = self._maker(spec)
        return maker(place)

    def end_bundle(self) -> None:
        """The bundle is over, and with it what was set up."""
        fns, self._fns = self._fns, {}
        for fn in fns.values():
            fn.teardown()

    def _maker(self, spec: Any) -> Callable[[Place], Handle]:
        name, coder = spec.name, spec.coder.get_impl()
        match spec:
            case userstate.ReadModifyWriteStateSpec():
                return lambda place: Value(place, name, coder)
            case userstate.BagStateSpec():
                return lambda place: Bag(place, name, coder)
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
        raise TypeError(f"state '{name}' is a {kind}, which the SDK has no state of; use one of its StateSpecs")

    def _fn(self, spec: Any) -> Any:
        fn = self._fns.get(spec)
        if fn is None:
            fn = self._fns[spec] = copy.deepcopy(spec.combine_fn)
            fn.setup()
        return fn
