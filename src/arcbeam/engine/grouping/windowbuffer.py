"""Windows of which nothing goes out before the watermark passes their end: all that comes to them is gathered.

Owns what a micro-batch has brought to such windows, and its place in the state if they go on. A pane, and what becomes
of a window behind its end, is as `engine.grouping.openwindow` has it. Must not know what is in an element.

    a byte    what came with a key, as a record of a run has it
    0         a block of elements (`engine.grouping.contents`)
    1         `Together.packed`
    2         elements that came behind the window's end: their number (four bytes), their times, a block
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from arcbeam.engine.grouping.contents import Values, block
from arcbeam.engine.grouping.groupings import Together, WindowedElement, by_window
from arcbeam.engine.grouping.openwindow import Rules
from arcbeam.engine.grouping.sortedruns import Many, Merged, SortedRuns
from arcbeam.engine.rows.keyspace import NAME_LIMIT, moment, part, time_of
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import NO_PANE, Window
from arcbeam.sizes import by_identity, cache_size, threshold

Unpack = Callable[[bytes], Iterable[bytes]]
"""Makes elements, encoded, of what `Together.packed` was."""

_MOST_KNOWN: Final = cache_size(1000)
"""Tuples of windows whose elements come by turns."""
MOST_PANES: Final = threshold(1000)
MOST_BYTES: Final = threshold(1 << 20)
"""What goes on at once, about."""
_SPACE: Final = b"\xff"
"""No key of the grouping's is so long that its rows begin with that."""
_ENCODED, _PACKED, _BEHIND = b"\0", b"\1", b"\2"


class AsCame:
    """What has come with a key in a micro-batch, as `Together.packed` has it; iterated, as a record of a run has it.

    Most windows end in the micro-batch in which they begin, and most bytes are in here: they are not copied behind a
    byte that only the state needs.

    Attributes:
        packed: in order.
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = [packed]

    def __iter__(self) -> Iterator[bytes]:
        for packed in self.packed:
            yield _PACKED + packed


class Gathered:
    """The contents of a pane as they were gathered; may be iterated again and again.

    Attributes:
        parts: what came, in order: as `Together.packed` has it, or values.
        behind: what came behind the end of the window, while this was waiting; it is not of the pane.
        size: how many bytes all of it takes, about.
    """

    __slots__ = ("_unpack", "behind", "parts", "size")

    parts: Sequence[bytes | Values]

    def __init__(self, payloads: Iterable[bytes], unpack: Unpack) -> None:
        self._unpack = unpack
        self.behind: Sequence[bytes] = ()
        if isinstance(payloads, AsCame):
            self.parts = payloads.packed
            self.size = sum(map(len, payloads.packed))
            return
        payloads = list(payloads)
        self.size = sum(map(len, payloads))
        if payloads[-1].startswith(_BEHIND):
            self.behind = [payload for payload in payloads if payload.startswith(_BEHIND)]
            payloads = [payload for payload in payloads if not payload.startswith(_BEHIND)]
        self.parts = [payload[1:] if payload.startswith(_PACKED) else Values((payload[1:],)) for payload in payloads]

    def __iter__(self) -> Iterator[bytes]:
        for each in self.parts:
            yield from each if isinstance(each, Values) else self._unpack(each)

    def late(self) -> tuple[list[bytes], list[Timestamp]]:
        """What came behind the end of the window, in order: values and times."""
        values: list[bytes] = []
        times: list[Timestamp] = []
        for payload in self.behind:
            start = 5 + 8 * int.from_bytes(payload[1:5], "big")
            times += (time_of(payload[at : at + 8]) for at in range(5, start, 8))
            values += Values((payload[start:],))
        return values, times

    def __repr__(self) -> str:
        return f"Gathered({self.size} bytes)"


class WindowBuffer:
    """What is gathered in a shard.

    Args:
        rules: of the grouping.
        view: of the shard's state.
        space: what the grouping's entries begin with.
        unpack: see there.

    Attributes:
        many: keys in the state, each once for each run that it is in.
    """

    __slots__ = ("_came", "_rules", "_space", "_takers", "_unpack", "_view", "_waiting", "many")

    def __init__(self, rules: Rules, view: StateView, space: bytes, unpack: Unpack) -> None:
        self._rules, self._view, self._unpack = rules, view, unpack
        self._space = space + _SPACE
        self.many = Many()
        # What has come in this micro-batch: by window, of each by key.
        self._came: dict[Window, dict[bytes, list[bytes] | AsCame]] = {}
        # By the identity of tuples of windows, with the tuple itself, or another could get it.
        self._takers: dict[int, tuple[tuple[Window, ...], list[dict[bytes, list[bytes] | AsCame]]]] = by_identity()
        # Of windows whose end is passed: whether there is something of them in the state.
        self._waiting: dict[Window, bool] = {}

    def take(self, key: bytes, elements: Together, watermark: Timestamp) -> bool:
        """Takes elements of a key; not if they have to be looked at one by one.

        Args:
            key: of all of them.
            elements: at least one.
            watermark: of the input, before it moves.
        """
        windows, packed = elements.windows, elements.packed
        if windows is None or packed is None:
            return False
        # Most are of the same windows as those before.
        takers = self._takers.get(id(windows))
        if takers is None:
            if any(watermark > self._rules.bounds(window).end for window in windows):
                return False
            if len(self._takers) >= _MOST_KNOWN:
                self._takers.clear()
            takers = self._takers[id(windows)] = windows, [self._came.setdefault(window, {}) for window in windows]
        for came in takers[1]:
            held = came.get(key)
            if held is None:
                came[key] = AsCame(packed)
            elif isinstance(held, AsCame):
                held.packed.append(packed)
            else:
                held.append(_PACKED + packed)
        return True

    def take_each(self, key: bytes, elements: Iterable[WindowedElement], watermark: Timestamp) -> list[WindowedElement]:
        """Takes elements of a key. Those of windows whose end is passed are given back: they are not gathered.

        SUBTLE: but for those of windows of which something is still in the state, because a budget was used up. It came
        before them, and goes on before them.
        """
        behind: list[WindowedElement] = []
        for window, (values, times) in by_window(elements).items():
            end, expiry, _ = self._rules.bounds(window)
            if watermark <= end:
                payload = _ENCODED + block(values)
            elif watermark <= expiry and self._waits(window):
                payload = b"".join((_BEHIND, len(times).to_bytes(4, "big"), *map(moment, times), block(values)))
            else:
                behind += [(value, time, (window,), NO_PANE) for value, time in zip(values, times, strict=True)]
                continue
            came = self._came.setdefault(window, {})
            held = came.get(key, ())
            if isinstance(held, list):
                held.append(payload)
            else:
                came[key] = [*held, payload]
        return behind

    def windows(self) -> list[Window]:
        """Those to which something has come that is not in the state yet."""
        return list(self._came)

    def is_stored(self, window: Window) -> bool:
        """Whether something that came to a window before is in the state."""
        return not self._runs(window).empty

    def store(self, window: Window) -> None:
        """Puts what has come to a window into the state."""
        self._takers.clear()
        self._runs(window).add(self._came.pop(window))

    def groups(self, window: Window) -> Groups:
        """All that there is of a window, which is there no more when it is read."""
        self._takers.clear()
        runs = self._runs(window)
        stored = not runs.empty
        return Groups(runs, runs.merged(self._came.pop(window, {})), stored, self._unpack)

    def _waits(self, window: Window) -> bool:
        waits = self._waiting.get(window)
        if waits is None:
            waits = self._waiting[window] = self.is_stored(window)
        return waits

    def _runs(self, window: Window) -> SortedRuns:
        return SortedRuns(self._view, self._space + part(self._rules.bounds(window).ordered, NAME_LIMIT), self.many)


class Groups:
    """What was gathered of a window, key by key. Iterated once.

    Attributes:
        stored: whether some of it was in the state.
    """

    __slots__ = ("_merged", "_runs", "_unpack", "stored")

    def __init__(self, runs: SortedRuns, merged: Merged, stored: bool, unpack: Unpack) -> None:
        self._runs, self._merged, self._unpack = runs, merged, unpack
        self.stored = stored

    def __iter__(self) -> Iterator[tuple[bytes, Gathered]]:
        unpack = self._unpack
        for key, payloads in self._merged:
            yield key, Gathered(payloads, unpack)
        self._runs.clear()

    def leave(self) -> bool:
        """Nothing more is read for now: the rest is in the state. Whether there is any."""
        rest = self._merged.leave()
        if rest:
            self._runs.add(rest)
        elif self._merged.empty:
            self._runs.clear()
        return not self._merged.empty
