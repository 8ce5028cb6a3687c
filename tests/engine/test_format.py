"""The layout of rows is a format: a later version reads the rows of an earlier one.

`format_1.json` has the rows that `_fill` writes, in hexadecimal. After a release it is never rewritten: if `_fill`
makes other rows, the format has changed. `format_1_panes.json` has the rows of waiting elements with their panes,
`format_1_runs.json` those of buffered windows, and `format_1_buffered.json` the contents of these.
`format_1_totals.json` has the row of a splittable stage's totals beside those of its restrictions.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.openwindow import Rules
from arcbeam.engine.grouping.sortedruns import SortedRuns
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.windowbuffer import WindowBuffer
from arcbeam.engine.rows import keyspace
from arcbeam.engine.state.blocked import BlockedElement, BlockedElements, SideInputWindow
from arcbeam.engine.state.cells import BagCell, Cells, OrderedListCell
from arcbeam.engine.state.keyqueue import Element, SortedInput
from arcbeam.engine.state.residuals import Remainder, Residuals
from arcbeam.engine.state.timers import EXPIRATION, Timers
from arcbeam.engine.watermarks.clocks import Clock
from arcbeam.engine.watermarks.holds import Holder, HolderKind, Holds, Side
from arcbeam.errors import ArcbeamError
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow, PaneInfo, Timing
from arcbeam.testing.views import MemoryView

_GOLDEN = Path(__file__).parent / "format_1.json"
_GOLDEN_PANES = Path(__file__).parent / "format_1_panes.json"
_GOLDEN_RUNS = Path(__file__).parent / "format_1_runs.json"
_GOLDEN_BUFFERED = Path(__file__).parent / "format_1_buffered.json"
_GOLDEN_TOTALS = Path(__file__).parent / "format_1_totals.json"
_PANE = PaneInfo(300, 299, Timing.LATE, False, False)
_FAMILIES = {"event": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING}
_PLACES = [(b"user7", b"w\0"), (b"l" * 100, b"")]


def _golden(path: Path = _GOLDEN) -> MemoryView:
    rows = json.loads(path.read_text(encoding="ascii"))
    return MemoryView({bytes.fromhex(key): bytes.fromhex(value) for key, value in rows.items()})


def _fill(view: MemoryView) -> None:
    keyspace.put_format(view)
    cells, timers, holds = Cells(view, 258), Timers(view, 258, _FAMILIES), Holds(view, 258)
    for at in _PLACES:
        BagCell(cells, "bag").extend(*at, [b"", b"x" * 200, b"y" * 900, b"z"])
        OrderedListCell(cells, "list").add(*at, Timestamp(-5), b"early")
        timers.set(*at, "event", Timestamp(7), Timestamp(7), "tag", b"pane")
        timers.set(*at, "event", Timestamp(8), Timestamp(6))
        timers.set(*at, "clock", Timestamp(1_000_000), None)
        timers.set(*at, EXPIRATION, Timestamp(9), None)
        holds.set(Holder(HolderKind.STATE, "pane", *at), Timestamp(4), "main")
        SortedInput(view, 258).add(Element(*at, Timestamp(11), b"e"), MIN_TIMESTAMP)
    BlockedElements(view, 258).add(SideInputWindow("rates", b"side"), BlockedElement(Timestamp(2), b"p"))
    clock = Clock(view, 258, ("main",))
    clock.advance(Timestamp(1))
    Residuals(view, 259, ("main",)).admit(
        "orders", Remainder(b"0-10", 10.0, Timestamp(12), {"main": Timestamp(5)}), Timestamp(0)
    )


def _fill_panes(view: MemoryView) -> None:
    for at in (*_PLACES, (b"cut\0\2", b"w")):
        SortedInput(view, 258).add(Element(*at, Timestamp(11), b"e", _PANE), MIN_TIMESTAMP)


def test_rows_with_panes_match_golden_bytes() -> None:
    view = MemoryView()
    _fill_panes(view)
    golden = _golden(_GOLDEN_PANES)
    assert view.snapshot() == golden.snapshot()
    waiting = SortedInput(golden, 258)
    for at in (*_PLACES, (b"cut\0\2", b"w")):
        assert waiting.take(MAX_TIMESTAMP) == Element(*at, Timestamp(11), b"e", _PANE)


def test_sorted_runs_match_golden_bytes() -> None:
    view = MemoryView()
    SortedRuns(view, b"place").add({b"b": [b"1", b""], b"a\0": [b"2" * 300]})
    SortedRuns(view, b"place").add({b"b": [b"3"]})
    golden = _golden(_GOLDEN_RUNS)
    assert view.snapshot() == golden.snapshot()
    assert list(SortedRuns(golden, b"place").merged({})) == [(b"a\0", [b"2" * 300]), (b"b", [b"1", b"", b"3"])]


def _gathering(view: MemoryView) -> WindowBuffer:
    rules = Rules(Strategy(Repeatedly(AfterWatermark()), lateness=Duration(100)))
    return WindowBuffer(rules, view, b"space", lambda packed: [packed, packed])


def _fill_buffered(view: MemoryView) -> None:
    window = IntervalWindow(Timestamp(0), Timestamp(10))
    for watermark in (Timestamp(0), Timestamp(20)):
        gathering = _gathering(view)
        elements = [(value, Timestamp(7), (window,), NO_PANE) for value in (b"one", b"2" * 300)]
        assert not gathering.take_each(b"key", elements, watermark)
        gathering.store(window)


def test_buffered_windows_match_golden_bytes() -> None:
    view = MemoryView()
    _fill_buffered(view)
    rows = json.loads(_GOLDEN_BUFFERED.read_text(encoding="ascii"))
    golden = MemoryView({bytes.fromhex(key): bytes.fromhex(value) for key, value in rows.items()})
    assert view.snapshot() == golden.snapshot()
    ((key, contents),) = _gathering(golden).groups(IntervalWindow(Timestamp(0), Timestamp(10)))
    values = [b"one", b"2" * 300]
    assert (key, list(contents), contents.late()) == (b"key", values, (values, [7, 7]))


def test_totals_of_restrictions_match_golden_bytes() -> None:
    view = MemoryView()
    residuals = Residuals(view, 259, ("main", "errors"))
    times = {"main": Timestamp(5), "errors": Timestamp(4)}
    for root, size, watermarks in (("a", 10.0, times), ("b", 0.1, {"main": Timestamp(6)}), ("c", float(1 << 63), {})):
        residuals.admit(root, Remainder(b"0-10", size, Timestamp(12), watermarks), Timestamp(0))
    golden = _golden(_GOLDEN_TOTALS)
    assert view.snapshot() == golden.snapshot()
    again = Residuals(golden, 259, ("main", "errors"))
    assert again.totals() == residuals.totals()
    again.validate()


def test_rows_match_golden_bytes() -> None:
    view = MemoryView()
    _fill(view)
    assert view.snapshot() == _golden().snapshot()


def test_golden_rows_are_read() -> None:
    view = _golden()
    assert not keyspace.check_format(view, 0, 0)
    cells, timers = Cells(view, 258), Timers(view, 258, _FAMILIES)
    for at in _PLACES:
        assert list(BagCell(cells, "bag").read(*at)) == [b"", b"x" * 200, b"y" * 900, b"z"]
        assert list(OrderedListCell(cells, "list").read(*at)) == [(-5, b"early")]
        assert timers.get(*at, "event", "tag") == 7
    timers.validate()
    pending = {(each.key, each.family, each.tag, each.fire_at, each.hold, each.payload) for each in timers.pending()}
    for key, _ in _PLACES:
        assert {
            (key, "event", "tag", 7, 7, b"pane"),
            (key, "event", "", 8, 6, b""),
            (key, "clock", "", 1_000_000, None, b""),
            (key, EXPIRATION, "", 9, None, b""),
        } < pending
    for side in Side:
        Holds(view, 258, side).validate()
    earliest = Holds(view, 258).earliest("main")
    assert earliest is not None
    assert earliest.time == 4
    assert SortedInput(view, 258).next() == 11
    assert list(BlockedElements(view, 258).take(SideInputWindow("rates", b"side"))) == [
        BlockedElement(Timestamp(2), b"p")
    ]
    assert Clock(view, 258, ("main",)).input == 1
    residuals = Residuals(view, 259, ("main",))
    residuals.validate()
    assert [each.remainder for each in residuals.all()] == [
        Remainder(b"0-10", 10.0, Timestamp(12), {"main": Timestamp(5)})
    ]


def test_rows_of_other_format_are_refused_untouched() -> None:
    newer = MemoryView({b"\x01": b"\0\2", b"\x10": b""})
    before = newer.snapshot()
    with pytest.raises(ArcbeamError, match=r"shard 7 of level 2 has format 2; .* format 1"):
        keyspace.check_format(newer, 2, 7)
    assert newer.snapshot() == before
    with pytest.raises(ArcbeamError, match="no known format"):
        keyspace.check_format(MemoryView({b"\x10": b""}), 0, 0)
