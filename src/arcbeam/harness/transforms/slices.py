"""Accumulators by windows and key, for the part of a combine before the exchange.

Owns the lookup of accumulators, and what overlapping windows share. A *slice* contains all elements that are in the
same windows. An element is added once, to its slice, however many windows that has. The accumulators of a window's
slices are merged when they are emitted. This applies to known CombineFns (`harness.transforms.folds`). With others, an
element is added in each of its windows. Must not know blocks, budgets or transforms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import Any, NamedTuple

from apache_beam import CombineFn

from arcbeam.harness.encoding.keyforms import PLAIN, KeyForms, Kind, PairsOfOneForm
from arcbeam.harness.transforms.folds import Fold, SameKeyFold

Windows = tuple[bytes, ...]
"""Encoded windows of a slice."""

_Table = tuple[Kind, dict[Any, Any], dict[Any, int]]
"""A kind of forms, and accumulators and times by form."""

_NOTHING = object()
_SLICE_BYTES = 600
"""Memory of a slice besides its accumulators."""


class WindowSlice(NamedTuple):
    """Accumulators of a window that are emitted.

    Attributes:
        window: the encoded window.
        pairs: the key as it arrived, and the compacted accumulator.
        times: the time of each, as the timestamp combiner has chosen it; None if times do not matter.
    """

    window: bytes
    pairs: list[tuple[Any, Any]]
    times: list[int] | None


class _Slice:
    """The accumulators of a slice by key; keys are identified by their forms (`harness.encoding.keyforms`)."""

    __slots__ = ("elements", "tables", "times", "windows")

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.elements = 0
        self.tables: dict[Kind, dict[Any, Any]] = {}
        self.times: dict[Kind, dict[Any, int]] = {}


class Slices:
    """All accumulators of a bundle.

    Args:
        fn: the CombineFn, set up.
        fold: adds many elements instead of `fn.add_input`; None if there is no fold.
        same_key_fold: the same for elements of one key.
        key_coder: impl of the keys' coder.
        choose_time: selects one of two event times (`min` or `max`); None if times do not matter.

    Attributes:
        entries: number of accumulators.
        added: number of additions to them.
    """

    def __init__(
        self,
        fn: CombineFn,
        fold: Fold | None,
        key_coder: Any,
        choose_time: Callable[[int, int], int] | None,
        same_key_fold: SameKeyFold | None = None,
    ) -> None:
        self._fn, self._fold, self._choose_time = fn, fold, choose_time
        self._same_key_fold = same_key_fold
        # SUBTLE: a user's merge may change any accumulator that it gets, not only the first one, and slices share
        # theirs between windows. Known CombineFns do not do this.
        self._shares = fold is not None
        self._forms, self._decode = KeyForms(key_coder), key_coder.decode
        self._keys: dict[Kind, dict[Any, Any]] = {}
        overrides = type(fn).compact is not CombineFn.compact
        self._compact: Callable[[Any], Any] | None = fn.compact if overrides else None
        self._slices: dict[Windows, _Slice] = {}
        self.entries = self.added = 0

    @property
    def overhead(self) -> int:
        """Approximate memory of slices besides their accumulators."""
        return len(self._slices) * _SLICE_BYTES

    def add(self, windows: Windows, pairs: list[tuple[Any, Any]], times: Iterable[int]) -> Any:
        """Add pairs of key and value, at least one, that are all in the same windows.

        Args:
            windows: their encoded windows.
            pairs: the elements.
            times: the time of each pair, in microseconds; may be endless, but must not be an iterator.

        Returns:
            One of the accumulators.
        """
        if len(windows) > 1 and not self._shares:
            accumulator: Any = None
            for window in windows:
                accumulator = self.add((window,), pairs, times)
            return accumulator
        found = self._slice(windows)
        found.elements += len(pairs)
        accumulator = None
        for alike in self._forms.of(pairs):
            if alike.kind is type(None) and self._same_key_fold is not None:
                accumulator = self._add_to_none(found, [value for _, value in alike.pairs])
            else:
                accumulator = self._add_alike(found, alike)
        self.added += len(pairs)
        if self._choose_time is not None:
            self._note_times(found, pairs, times)
        return accumulator

    def add_to_none(self, windows: Windows, values: list[Any], times: Iterable[int]) -> Any:
        """Add values, at least one, whose key is None; see `add`."""
        if self._same_key_fold is None:
            return self.add(windows, [(None, value) for value in values], times)
        # A CombineFn with a fold shares its slices.
        found = self._slice(windows)
        found.elements += len(values)
        self.added += len(values)
        accumulator = self._add_to_none(found, values)
        if self._choose_time is not None:
            self._note_times(found, zip(repeat(None), values, strict=False), times)
        return accumulator

    def _add_to_none(self, to: _Slice, values: list[Any]) -> Any:
        assert self._same_key_fold is not None
        table = to.tables.setdefault(type(None), {})
        if None not in table:
            table[None] = self._fn.create_accumulator()
            self.entries += 1
        accumulator = table[None] = self._same_key_fold(table[None], values)
        return accumulator

    def _slice(self, windows: Windows) -> _Slice:
        found = self._slices.get(windows)
        if found is None:
            found = self._slices[windows] = _Slice(windows)
        return found

    def _add_alike(self, to: _Slice, alike: PairsOfOneForm) -> Any:
        """Add pairs whose keys have forms of one kind."""
        kind, pairs, keys = alike
        table = to.tables.setdefault(kind, {})
        before = len(table)
        if self._fold is not None:
            self._fold.add(table, pairs)
        else:
            add, create, get = self._fn.add_input, self._fn.create_accumulator, table.get
            for form, value in pairs:
                accumulator = get(form, _NOTHING)
                table[form] = add(create() if accumulator is _NOTHING else accumulator, value)
        if keys is not None:
            alike.note_keys(self._keys.setdefault(kind, {}), table, before)
        self.entries += len(table) - before
        last, made = table[pairs[-1][0]], self._made(kind)
        return last if made is None else made(last)

    def _made(self, kind: Kind) -> Callable[[Any], Any] | None:
        """Return the function that makes accumulators from entries of a table; None if entries are accumulators."""
        if self._fold is None or (kind is type(None) and self._same_key_fold is not None):
            return None
        return self._fold.accumulator

    def _note_times(self, of: _Slice, pairs: Iterable[tuple[Any, Any]], times: Iterable[int]) -> None:
        choose, known = self._choose_time, of.times
        assert choose is not None
        for (key, _), micros in zip(pairs, times, strict=False):
            kind: Kind = type(key)
            if kind not in PLAIN:
                kind, key = self._forms.one(key)
            table = known.setdefault(kind, {})
            table[key] = choose(table.get(key, micros), micros)

    def elements(self) -> dict[bytes, int]:
        """Return the number of elements in each window."""
        found: defaultdict[bytes, int] = defaultdict(int)
        for part in self._slices.values():
            for window in part.windows:
                found[window] += part.elements
        return found

    def take(self, longest: int) -> Iterator[WindowSlice]:
        """Remove all accumulators, and yield them by key and window, in parts of limited length."""
        slices, self._slices = self._slices, {}
        keys, self._keys = self._keys, {}
        self.entries = self.added = 0
        by_window: defaultdict[bytes, list[_Slice]] = defaultdict(list)
        for part in slices.values():
            for window in part.windows:
                by_window[window].append(part)
        for window, parts in by_window.items():
            of_one = len(parts) == 1 and len(parts[0].windows) == 1
            for kind, table, times in self._tables(parts[0]) if of_one else self._merged(parts):
                items = iter(table.items())
                while pairs := list(islice(items, longest)):
                    chosen = None if self._choose_time is None else [times[key] for key, _ in pairs]
                    if kind is None:
                        pairs = [(self._decode(key), accumulator) for key, accumulator in pairs]
                    elif kind in keys:
                        key_of = keys[kind]
                        pairs = [(key_of[form], accumulator) for form, accumulator in pairs]
                    made = self._made(kind) if of_one else None
                    if made is not None:
                        pairs = [(key, made(value)) for key, value in pairs]
                    if self._compact is not None and (made is None or not self._fold.compacted):  # type: ignore[union-attr]
                        pairs = [(key, self._compact(accumulator)) for key, accumulator in pairs]
                    yield WindowSlice(window, pairs, chosen)

    def _tables(self, part: _Slice) -> Iterator[_Table]:
        for kind, table in part.tables.items():
            yield kind, table, part.times.get(kind, {})

    def _merged(self, parts: list[_Slice]) -> Iterator[_Table]:
        """Yield the tables of a window that has several slices, or shares its slice with other windows."""
        fn, choose = self._fn, self._choose_time
        for kind in dict.fromkeys(kind for part in parts for kind in part.tables):
            made = self._made(kind)
            together: defaultdict[Any, list[Any]] = defaultdict(list)
            times: dict[Any, int] = {}
            for part in parts:
                for key, accumulator in part.tables.get(kind, {}).items():
                    together[key].append(accumulator if made is None else made(accumulator))
                for key, micros in part.times.get(kind, {}).items():
                    times[key] = choose(times.get(key, micros), micros) if choose is not None else micros
            for accumulators in together.values():
                if len(accumulators) > 1 or self._compact is not None:
                    # SUBTLE: merging may change the first accumulator, and these are needed for other windows, too.
                    accumulators[0] = fn.merge_accumulators([fn.create_accumulator(), *accumulators])
            yield kind, {key: accumulators[0] for key, accumulators in together.items()}, times
