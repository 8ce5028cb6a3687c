"""Cells of all kinds behave like Python objects of that kind."""

from __future__ import annotations

from bisect import insort_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.rows import keyspace
from arcbeam.engine.state.cells import BagCell, Cells, MultimapCell, OrderedListCell
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

_ITEMS = st.sampled_from([b"", b"\0", b"a", b"a\0\1", b"\xff", b"b" * 130, b"\0" * 70, b"long" * 300])
_TIMES = st.sampled_from([MIN_TIMESTAMP, Timestamp(-1), Timestamp(0), Timestamp(9), MAX_TIMESTAMP])
_PLACES = st.sampled_from([(b"k", b""), (b"k", b"w"), (b"", b""), (b"k\0\1", b"w"), (b"l" * 300, b"w" * 100)])
_ACTS = st.lists(
    st.tuples(
        _PLACES,
        st.sampled_from(["add", "add", "add", "remove", "clear"]),
        st.tuples(_ITEMS, _ITEMS, _TIMES, _TIMES),
    ),
    max_size=25,
)


@pytest.mark.contract("ENG-12")
@settings(max_examples=60, deadline=None)
@given(_ACTS)
def test_cells_behave_like_python_objects(acts: list[tuple]) -> None:
    view = MemoryView()
    cells, neighbours = Cells(view, 1), Cells(view, 2)
    bag, ordered, multimap = BagCell(cells, "f"), OrderedListCell(cells, "f"), MultimapCell(cells, "f")
    model: dict = {}
    BagCell(neighbours, "f").add(b"k", b"w", b"stays")
    BagCell(cells, "g").add(b"other", b"w", b"stays")
    rows = len(view)

    for at, act, (item, other, time, end) in acts:
        now = model.setdefault(at, {"bag": [], "ordered": [], "map": {}})
        match act:
            case "add":
                bag.add(*at, item)
                bag.extend(*at, [other, item])
                now["bag"] += [item, other, item]
                ordered.add(*at, time, item)
                insort_right(now["ordered"], (time, item), key=lambda pair: pair[0])
                multimap.extend(*at, item, [other, item])
                now["map"].setdefault(item, []).extend([other, item])
                multimap.extend(*at, other, [])
                now["map"].setdefault(other, [])
            case "remove":
                ordered.clear_range(*at, time, end)
                now["ordered"] = [pair for pair in now["ordered"] if not time <= pair[0] < end]
                multimap.remove(*at, item)
                now["map"].pop(item, None)
            case "clear":
                bag.clear(*at)
                ordered.clear_range(*at, None, None)
                multimap.clear(*at)
                model[at] = {"bag": [], "ordered": [], "map": {}}
        for place, then in model.items():
            assert list(bag.read(*place)) == then["bag"]
            assert list(ordered.read(*place)) == then["ordered"]
            assert list(ordered.read(*place, time, end)) == [p for p in then["ordered"] if time <= p[0] < end]
            assert sorted(multimap.keys(*place)) == sorted(then["map"])
            assert list(multimap.read(*place, item)) == then["map"].get(item, [])
    for place in model:
        bag.clear(*place)
        ordered.clear_range(*place, None, None)
        multimap.clear(*place)
    assert len(view) == rows, "clearing left rows, or removed those of another cell"


@pytest.mark.contract("ENG-12")
def test_bag_is_appended_without_rewriting() -> None:
    written = 0

    class Counting(MemoryView):
        def put(self, key: bytes, value: bytes) -> None:
            nonlocal written
            written += len(value)
            super().put(key, value)

    bag = BagCell(Cells(Counting(), 0), "b")
    for _ in range(200):
        bag.add(b"k", b"w", b"x" * 500)
    assert written < 10 * 200 * 500
    assert sum(map(len, bag.read(b"k", b"w"))) == 200 * 500


def test_small_bag_is_one_row() -> None:
    view = MemoryView()
    bag = BagCell(Cells(view, 0), "b")
    for _ in range(20):
        bag.add(b"k", b"w", b"12345678")
    assert len(view) == 1


def test_iteration_of_bag_ignores_later_values() -> None:
    bag = BagCell(Cells(MemoryView(), 0), "b")
    bag.extend(b"k", b"w", [b"x" * 300] * 20)
    seen = 0
    for value in bag.read(b"k", b"w"):
        bag.add(b"k", b"w", value)
        seen += 1
    assert seen == 20
    assert len(list(bag.read(b"k", b"w"))) == 40


def test_values_appended_together_are_cut_into_rows() -> None:
    view = MemoryView()
    bag = BagCell(Cells(view, 0), "b")
    bag.extend(b"k", b"w", (b"x" * 100_000 for _ in range(25)))
    assert len(view) > 2
    assert max(map(len, view.snapshot().values())) < 2 << 20
    bag.clear(b"k", b"w")
    assert len(view) == 0


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize(("start", "end"), [(None, 3), (3, None), (2, 5), (3, 3), (5, 2), (None, None)])
def test_range_of_ordered_list_is_cleared_exactly(start: int | None, end: int | None) -> None:
    view = MemoryView()
    cell = OrderedListCell(Cells(view, 0), "o")
    times = [Timestamp(time) for time in (-1, 2, 2, 3, 4, 5, 9)]
    for time in times:
        cell.add(b"k", b"w", time, b"%d" % time)
    between = None if start is None else Timestamp(start), None if end is None else Timestamp(end)
    read = [time for time, _ in cell.read(b"k", b"w", *between)]
    assert read == [each for each in times if (start is None or start <= each) and (end is None or each < end)]
    cell.clear_range(b"k", b"w", *between)
    assert [time for time, _ in cell.read(b"k", b"w")] == [each for each in times if each not in read]


@pytest.mark.parametrize("key", [b"k" * 300, b"\0" * 45])
def test_long_key_is_stored_while_it_has_cells(key: bytes) -> None:
    view = MemoryView()
    cells = Cells(view, 1)
    bag, ordered = BagCell(cells, "bag"), OrderedListCell(cells, "list")
    bag.add(key, b"w", b"v")
    (row, stored), *_ = view.scan(b"")
    assert stored == key
    assert keyspace.parts(row[3:])[2] == bytes((keyspace.Section.KEY,))
    ordered.add(key, b"w", Timestamp(1), b"v")
    bag.replace(key, b"w", [b"v", b"w"])
    bag.clear(key, b"w")
    assert view.get(row) == key
    ordered.clear_range(key, b"w", None, None)
    assert not view.snapshot()
    bag.extend(key, b"w", [b"v"])
    assert view.get(row) == key
