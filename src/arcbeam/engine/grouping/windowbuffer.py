"""Buffered windows: no pane is emitted before the watermark passes their end, so all elements are buffered.

Owns a micro-batch's elements of such windows, and their place in the state if the windows continue. Panes, and windows
after their end, follow `engine.grouping.openwindow`. Must not know what is in an element.

    a byte    the payload of a key, as in a record of a run
    0         a block of elements (`engine.grouping.contents`)
    1         `UniformElements.packed`
    2         elements that arrived after the window's end: their number (four bytes), their times, a block
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from arcbeam.engine.grouping.contents import EncodedPaneValues, block
from arcbeam.engine.grouping.groupings import UniformElements, WindowedElement, by_window
from arcbeam.engine.grouping.openwindow import Rules
from arcbeam.engine.grouping.sortedruns import Many, Merged, SortedRuns
from arcbeam.engine.rows.keyspace import NAME_LIMIT, moment, part, time_of
from arcbeam.engine.rows.storedpane import StoredPane
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import NO_PANE, Window
from arcbeam.sizes import by_identity, cache_size, threshold

Unpack = Callable[[bytes], Iterable[bytes]]
"""Makes encoded elements from `UniformElements.packed`."""

_KNOWN_MAX: Final = cache_size(1000)
"""The maximum of known tuples of windows."""
PANES_MAX: Final = threshold(1000)
EMITTED_BYTES_MAX: Final = threshold(1 << 20)
"""The approximate size of panes that are emitted together."""
_SPACE: Final = b"\xff"
"""No key of the grouping is so long that its rows begin with this."""
_ENCODED, _PACKED, _BEHIND = b"\0", b"\1", b"\2"


class AsCame:
    """The payloads of a key in a micro-batch, as in `UniformElements.packed`; iterating yields a run's records.

    Most windows end in the micro-batch in which they begin, and most bytes are here. So they are not copied to add a
    byte that only the state needs.

    Attributes:
        packed: the payloads in order.
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = [packed]

    def __iter__(self) -> Iterator[bytes]:
        for packed in self.packed:
            yield _PACKED + packed


class BufferedPane:
    """The contents of a pane of a buffered window; may be iterated repeatedly.

    Attributes:
        parts: the payloads in order: as in `UniformElements.packed`, or values.
        behind: payloads that arrived after the window's end, while this was waiting; they are not part of the pane.
        size: the approximate number of bytes.
        lent: the payloads, if they are in the view; else None.
    """

    __slots__ = ("_unpack", "behind", "lent", "parts", "size")

    parts: Sequence[bytes | EncodedPaneValues]

    def __init__(self, payloads: Iterable[bytes], unpack: Unpack) -> None:
        self._unpack = unpack
        self.behind: Sequence[bytes] = ()
        self.lent: StoredPane | None = None
        if isinstance(payloads, StoredPane) and not payloads.last.startswith(_BEHIND):
            self.lent, self.parts, self.size = payloads, _LentParts(payloads), payloads.size
            return
        if isinstance(payloads, AsCame):
            self.parts = payloads.packed
            self.size = sum(map(len, payloads.packed))
            return
        payloads = list(payloads)
        self.size = sum(map(len, payloads))
        if payloads[-1].startswith(_BEHIND):
            self.behind = [payload for payload in payloads if payload.startswith(_BEHIND)]
            payloads = [payload for payload in payloads if not payload.startswith(_BEHIND)]
        self.parts = list(map(_part, payloads))

    def __iter__(self) -> Iterator[bytes]:
        for each in self.parts:
            yield from each if isinstance(each, EncodedPaneValues) else self._unpack(each)

    def late(self) -> tuple[list[bytes], list[Timestamp]]:
        """Return the elements that arrived after the window's end, in order: values and times."""
        values: list[bytes] = []
        times: list[Timestamp] = []
        for payload in self.behind:
            start = 5 + 8 * int.from_bytes(payload[1:5], "big")
            times += (time_of(payload[at : at + 8]) for at in range(5, start, 8))
            values += EncodedPaneValues((payload[start:],))
        return values, times

    def __repr__(self) -> str:
        return f"BufferedPane({self.size} bytes)"


def _part(payload: bytes) -> bytes | EncodedPaneValues:
    return payload[1:] if payload.startswith(_PACKED) else EncodedPaneValues((payload[1:],))


class _LentParts(Sequence[bytes | EncodedPaneValues]):
    """The same parts, of lent payloads."""

    __slots__ = ("_lent",)

    def __init__(self, lent: StoredPane) -> None:
        self._lent = lent

    def __iter__(self) -> Iterator[bytes | EncodedPaneValues]:
        return map(_part, self._lent)

    def __len__(self) -> int:
        return sum(1 for _ in self._lent)

    def __getitem__(self, at: Any) -> Any:
        return list(self)[at]


class WindowBuffer:
    """The buffered windows of a shard.

    Args:
        rules: the rules of the grouping.
        view: the shard's state.
        space: the common prefix of the grouping's entries.
        unpack: see `Unpack`.

    Attributes:
        many: keys in the state, each once for each run that contains it.
    """

    __slots__ = ("_arrived", "_rules", "_space", "_takers", "_unpack", "_view", "_waiting", "many")

    def __init__(self, rules: Rules, view: StateView, space: bytes, unpack: Unpack) -> None:
        self._rules, self._view, self._unpack = rules, view, unpack
        self._space = space + _SPACE
        self.many = Many()
        # The payloads of this micro-batch, by window and key.
        self._arrived: dict[Window, dict[bytes, list[bytes] | AsCame]] = {}
        # By the identity of a tuple of windows. The entry has the tuple, so that no other tuple gets its identity.
        self._takers: dict[int, tuple[tuple[Window, ...], list[dict[bytes, list[bytes] | AsCame]]]] = by_identity()
        # For windows whose end has passed: whether the state has rows of them.
        self._waiting: dict[Window, bool] = {}

    def take(self, key: bytes, elements: UniformElements, watermark: Timestamp) -> bool:
        """Take elements of a key. Return False if they have to be handled one by one.

        Args:
            key: the key of all of them.
            elements: at least one.
            watermark: the input watermark before it moves.
        """
        windows, packed = elements.windows, elements.packed
        if windows is None or packed is None:
            return False
        # Most elements have the same windows as those before.
        takers = self._takers.get(id(windows))
        if takers is None:
            if any(watermark > self._rules.bounds(window).end for window in windows):
                return False
            if len(self._takers) >= _KNOWN_MAX:
                self._takers.clear()
            takers = self._takers[id(windows)] = windows, [self._arrived.setdefault(window, {}) for window in windows]
        for arrived in takers[1]:
            held = arrived.get(key)
            if held is None:
                arrived[key] = AsCame(packed)
            elif isinstance(held, AsCame):
                held.packed.append(packed)
            else:
                held.append(_PACKED + packed)
        return True

    def take_each(self, key: bytes, elements: Iterable[WindowedElement], watermark: Timestamp) -> list[WindowedElement]:
        """Take elements of a key. Return those of windows whose end has passed: they are not buffered.

        SUBTLE: except if the state still has elements of the window, because a budget was used up. Those arrived first,
        and are emitted first.
        """
        rest: list[WindowedElement] = []
        for window, (values, times) in by_window(elements).items():
            end, expiry, _ = self._rules.bounds(window)
            if watermark <= end:
                payload = _ENCODED + block(values)
            elif watermark <= expiry and self._waits(window):
                payload = b"".join((_BEHIND, len(times).to_bytes(4, "big"), *map(moment, times), block(values)))
            else:
                rest += [(value, time, (window,), NO_PANE) for value, time in zip(values, times, strict=True)]
                continue
            arrived = self._arrived.setdefault(window, {})
            held = arrived.get(key, ())
            if isinstance(held, list):
                held.append(payload)
            else:
                arrived[key] = [*held, payload]
        return rest

    def windows(self) -> list[Window]:
        """Return the windows with elements that are not in the state yet."""
        return list(self._arrived)

    def is_stored(self, window: Window) -> bool:
        """Return whether the state has earlier elements of a window."""
        return not self._runs(window).empty

    def store(self, window: Window) -> None:
        """Store the buffered elements of a window."""
        self._takers.clear()
        self._runs(window).add(self._arrived.pop(window))

    def groups(self, window: Window) -> Groups:
        """Return everything of a window; it is removed while it is read."""
        self._takers.clear()
        runs = self._runs(window)
        stored = not runs.empty
        return Groups(runs, runs.merged(self._arrived.pop(window, {})), stored, self._unpack)

    def _waits(self, window: Window) -> bool:
        waits = self._waiting.get(window)
        if waits is None:
            waits = self._waiting[window] = self.is_stored(window)
        return waits

    def _runs(self, window: Window) -> SortedRuns:
        return SortedRuns(self._view, self._space + part(self._rules.bounds(window).ordered, NAME_LIMIT), self.many)


class Groups:
    """The contents of a buffered window, key by key. Iterated once.

    Attributes:
        stored: whether some of it was in the state.
    """

    __slots__ = ("_merged", "_runs", "_unpack", "stored")

    def __init__(self, runs: SortedRuns, merged: Merged, stored: bool, unpack: Unpack) -> None:
        self._runs, self._merged, self._unpack = runs, merged, unpack
        self.stored = stored

    def __iter__(self) -> Iterator[tuple[bytes, BufferedPane]]:
        unpack = self._unpack
        for key, payloads in self._merged:
            yield key, BufferedPane(payloads, unpack)
        self._runs.clear()

    def stop_reading(self) -> bool:
        """Stop reading: the rest stays in the state. Return whether there is any."""
        rest = self._merged.stop_reading()
        if rest:
            self._runs.add(rest)
        elif self._merged.empty:
            self._runs.clear()
        return not self._merged.empty
