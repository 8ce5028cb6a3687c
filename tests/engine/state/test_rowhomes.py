"""The key of a row decides its shard, however the row stores the key; other rows have a rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from arcbeam.engine.rows.keyspace import Kind, claim, moment, name, prefix
from arcbeam.engine.state.blocked import BlockedElement, BlockedElements, SideInputWindow
from arcbeam.engine.state.cells import BagCell, Cells, OrderedListCell
from arcbeam.engine.state.keyqueue import Element, SortedInput
from arcbeam.engine.state.residuals import Remainder, Residuals
from arcbeam.engine.state.rowhomes import Home, home
from arcbeam.engine.state.timers import Timers
from arcbeam.engine.watermarks.clocks import Clock
from arcbeam.engine.watermarks.holds import GATHERED, Holder, HolderKind, Holds, Side
from arcbeam.model.plan import TimeDomain
from arcbeam.model.rows import key_hash
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

_STAGE = 0x0102
_FAMILIES = {"event": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING, GATHERED: TimeDomain.EVENT}
_SHORT = [b"", b"a", b"a\0\1\2", b"\xff\xff"]
_LONG = b"\0l" * 200
_WINDOWS = [b"", b"\0\1", b"w" * 90]


def _timers(view: MemoryView, key: bytes) -> None:
    timers = Timers(view, _STAGE, _FAMILIES)
    for window in _WINDOWS:
        for tag in ("", "t\0", "u" * 150):
            timers.set(key, window, "event", Timestamp(5), Timestamp(5), tag)
            timers.set(key, window, "event", Timestamp(5), Timestamp(3), tag + "2")
            timers.set(key, window, "clock", Timestamp(5), Timestamp(3), tag)


def _keyed(view: MemoryView, key: bytes) -> None:
    cells = Cells(view, _STAGE)
    for window in _WINDOWS:
        BagCell(cells, "bag").extend(key, window, [b"v" * 2000] * 3)
        OrderedListCell(cells, "list").add(key, window, Timestamp(1), b"v")
        for side in Side:
            Holds(view, _STAGE, side).set(Holder(HolderKind.STATE, "pane", key, window), Timestamp(2), "out\0")
    _timers(view, key)
    _waiting(view, key)
    view.put(prefix(Kind.GROUPING, _STAGE) + len(key).to_bytes(4, "big") + key + b"w", b"record")


def _waiting(view: MemoryView, key: bytes) -> None:
    ordered = SortedInput(view, _STAGE)
    for window in _WINDOWS:
        assert ordered.add(Element(key, window, Timestamp(4), b"v"), MIN_TIMESTAMP) is None


def _shared(view: MemoryView) -> None:
    claim(view, 0, 0)
    clock = Clock(view, _STAGE, ("out",))
    clock.advance(Timestamp(1))
    parked = BlockedElements(view, _STAGE)
    parked.park(SideInputWindow("side\0", b"\0\1"), BlockedElement(Timestamp(1), b"element"))
    Residuals(view, _STAGE, ("out", "late")).admit("root", Remainder(b"element"), Timestamp(0))
    clock.follow(Timestamp(3))
    view.put(prefix(Kind.SAID, _STAGE) + name("out"), moment(Timestamp(1)) * 2)
    Timers(view, _STAGE, _FAMILIES).set(b"", b"\0\1", GATHERED, Timestamp(7), Timestamp(7))
    view.put(prefix(Kind.GROUPING, _STAGE) + b"\xffwindow", b"directory")


def _rows(view: MemoryView) -> Iterator[tuple[bytes, bytes]]:
    return iter(list(view.scan(b"")))


@pytest.mark.parametrize("key", _SHORT)
def test_all_rows_of_a_key_have_its_hash(key: bytes) -> None:
    view = MemoryView()
    _keyed(view, key)
    homes = {Kind(row[0]): home(row, value) for row, value in _rows(view) if row[0] != Kind.ARRIVALS}
    assert homes.keys() == {
        Kind.KEYED, Kind.EVENT_HELD, Kind.EVENT, Kind.PROCESSING, Kind.SORTED, Kind.HOLDS, Kind.PENDING, Kind.GROUPING,
    }  # fmt: skip
    assert all(home(row, value) == key_hash(key) for row, value in _rows(view) if row[0] != Kind.ARRIVALS)


def test_rows_that_lack_a_long_key_are_not_placed() -> None:
    view = MemoryView()
    _keyed(view, _LONG)
    cut = {Kind.KEYED, Kind.HOLDS, Kind.PENDING}
    for row, value in _rows(view):
        if row[0] != Kind.ARRIVALS:
            assert home(row, value) == (Home.CUT if row[0] in cut else key_hash(_LONG))


def test_rows_without_a_key_have_a_rule() -> None:
    view = MemoryView()
    _shared(view)
    homes: dict[Kind, set[int | Home]] = {}
    for row, value in _rows(view):
        homes.setdefault(Kind(row[0]), set()).add(home(row, value))
    assert homes == {
        Kind.FORMAT: {Home.EVERY},
        Kind.KEYED: {Home.SPLIT},
        Kind.EVENT_HELD: {Home.SPLIT},
        Kind.FREE: {Home.SPLIT, Home.RESTRICTION, Home.SHARD},
        Kind.PENDING: {Home.SPLIT, Home.RESTRICTION, Home.SHARD},
        Kind.PARKED: {Home.SPLIT},
        Kind.RESIDUAL: {Home.RESTRICTION},
        Kind.DUE: {Home.RESTRICTION},
        Kind.ROOT: {Home.RESTRICTION},
        Kind.CLOCK: {Home.SHARD},
        Kind.SAID: {Home.SHARD},
        Kind.GROUPING: {Home.SPLIT},
    }


def test_every_kind_of_row_is_covered() -> None:
    view = MemoryView()
    _shared(view)
    _keyed(view, b"a")
    assert {Kind(row[0]) for row, _ in _rows(view)} == set(Kind)


def test_unknown_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="127"):
        home(b"\x7f\0\0", b"")
    view = MemoryView()
    Holds(view, _STAGE).set(Holder(HolderKind.ELEMENT, "e"), Timestamp(1))
    for row, value in _rows(view):
        with pytest.raises(ValueError, match="pending element"):
            home(row, value)
