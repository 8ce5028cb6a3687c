"""Cells of every kind are what a plain Python object of that kind is, over rows."""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.rows.keyspace import KEY_LIMIT
from arcbeam.engine.state.cells import (
    BagCell,
    Cells,
    CombiningCell,
    MapCell,
    MultimapCell,
    OrderedListCell,
    SetCell,
    ValueCell,
)
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

_ITEMS = st.sampled_from([b"", b"\0", b"a", b"a\0\1", b"\xff", b"b" * 130, b"\0" * 70, b"long" * 300])
_TIMES = st.sampled_from([MIN_TIMESTAMP, Timestamp(-1), Timestamp(0), Timestamp(9), MAX_TIMESTAMP])
_PLACES = st.sampled_from([(b"k", b""), (b"k", b"w"), (b"", b""), (b"k\0\1", b"w"), (b"l" * 300, b"w" * 100)])
_ACTS = st.lists(
    st.tuples(
        _PLACES,
        st.sampled_from(["add", "add", "add", "remove", "clear", "drop"]),
        st.tuples(_ITEMS, _ITEMS, _TIMES, _TIMES),
    ),
    max_size=25,
)


def _joined(accumulators: Sequence[bytes]) -> bytes:
    return b"".join(accumulators)


@pytest.mark.contract("ENG-12")
@settings(max_examples=60, deadline=None)
@given(_ACTS)
def test_cells_are_what_objects_are(acts: list[tuple]) -> None:
    view = MemoryView()
    cells, neighbours = Cells(view, 1), Cells(view, 2)
    value, bag, combining = ValueCell(cells, "f"), BagCell(cells, "f"), CombiningCell(cells, "f", _joined)
    elements, mapped, multi = SetCell(cells, "f"), MapCell(cells, "f"), MultimapCell(cells, "f")
    ordered = OrderedListCell(cells, "f")
    kinds = (value, bag, combining, elements, mapped, multi, ordered)
    model: dict = {}
    BagCell(neighbours, "f").add(b"k", b"w", b"stays")
    BagCell(cells, "g").add(b"other", b"w", b"stays")

    def empty() -> dict:
        return {"value": None, "bag": [], "sum": b"", "set": set(), "map": {}, "multi": {}, "ordered": []}

    for at, act, (item, other, time, end) in acts:
        now = model.setdefault(at, empty())
        match act:
            case "add":
                value.write(*at, item)
                now["value"] = item
                bag.add(*at, item)
                bag.extend(*at, [other, item])
                now["bag"] += [item, other, item]
                combining.add(*at, item)
                now["sum"] += item
                elements.add(*at, item)
                now["set"].add(item)
                mapped.put(*at, item, other)
                now["map"][item] = other
                multi.add(*at, item, other)
                now["multi"].setdefault(item, []).append(other)
                ordered.add(*at, time, item)
                insort_right(now["ordered"], (time, item), key=lambda pair: pair[0])
            case "remove":
                elements.discard(*at, item)
                now["set"].discard(item)
                mapped.remove(*at, item)
                now["map"].pop(item, None)
                multi.remove(*at, item)
                now["multi"].pop(item, None)
                ordered.clear_range(*at, time, end)
                now["ordered"] = [pair for pair in now["ordered"] if not time <= pair[0] < end]
            case "clear":
                for cell in kinds:
                    cell.clear(*at)
                    assert not cell.exists(*at)
                model[at] = empty()
            case "drop":
                cells.drop(*at)
                assert not cells.exist(*at)
                model[at] = empty()
        for place, then in model.items():
            assert value.read(*place) == then["value"]
            assert list(bag.read(*place)) == then["bag"]
            assert (combining.read(*place) or b"") == then["sum"]
            assert sorted(elements.read(*place)) == sorted(then["set"])
            assert elements.contains(*place, item) == (item in then["set"])
            assert dict(mapped.items(*place)) == then["map"]
            assert sorted(mapped.keys(*place)) == sorted(then["map"])
            assert mapped.get(*place, item) == then["map"].get(item)
            assert {key: list(values) for key, values in multi.items(*place)} == then["multi"]
            assert list(multi.get(*place, item)) == then["multi"].get(item, [])
            assert list(ordered.read(*place)) == then["ordered"]
            assert list(ordered.read(*place, time, end)) == [p for p in then["ordered"] if time <= p[0] < end]
            for cell, part in zip(kinds, ("value", "bag", "", "set", "map", "multi", "ordered"), strict=True):
                if part:
                    assert cell.exists(*place) == (then[part] is not None if part == "value" else bool(then[part]))
    for place in model:
        cells.drop(*place)
    assert len(view) == 2, "drop leaves rows behind, or takes those of a neighbour"


@pytest.mark.contract("ENG-12")
def test_a_bag_is_appended_to_and_never_rewritten_whole() -> None:
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


def test_a_small_bag_is_one_row() -> None:
    view = MemoryView()
    bag = BagCell(Cells(view, 0), "b")
    for _ in range(20):
        bag.add(b"k", b"w", b"12345678")
    assert len(view) == 1


def test_an_iteration_of_a_bag_does_not_see_what_is_appended_meanwhile() -> None:
    bag = BagCell(Cells(MemoryView(), 0), "b")
    bag.extend(b"k", b"w", [b"x" * 300] * 20)
    seen = 0
    for value in bag.read(b"k", b"w"):
        bag.add(b"k", b"w", value)
        seen += 1
    assert seen == 20
    assert len(list(bag.read(b"k", b"w"))) == 40


def test_values_appended_at_once_are_cut_into_rows() -> None:
    view = MemoryView()
    bag = BagCell(Cells(view, 0), "b")
    bag.extend(b"k", b"w", (b"x" * 100_000 for _ in range(25)))
    assert len(view) > 2
    assert max(map(len, view.snapshot().values())) < 2 << 20
    bag.clear(b"k", b"w")
    assert len(view) == 0


@pytest.mark.contract("ENG-12")
def test_accumulators_are_merged_now_and_then_not_at_every_add() -> None:
    merges = 0

    def merge(accumulators: Sequence[bytes]) -> bytes:
        nonlocal merges
        merges += 1
        return sum(int.from_bytes(each, "big") for each in accumulators).to_bytes(8, "big")

    view = MemoryView()
    cell = CombiningCell(Cells(view, 0), "c", merge)
    for _ in range(1000):
        cell.add(b"k", b"w", (3).to_bytes(8, "big"))
        assert len(next(iter(view.snapshot().values()))) < 700
    assert merges < 30
    assert cell.read(b"k", b"w") == (3000).to_bytes(8, "big")
    cell.write(b"k", b"w", (1).to_bytes(8, "big"))
    assert cell.read(b"k", b"w") == (1).to_bytes(8, "big")


@pytest.mark.contract("ENG-12")
def test_elements_come_in_the_order_of_what_stands_in_their_rows_and_all_of_them() -> None:
    short = [b"", b"a", b"a" * (KEY_LIMIT - 1), b"b"]
    same = [b"a" * KEY_LIMIT + bytes((end,)) for end in range(20)]
    found = SetCell(Cells(MemoryView(), 1), "f")
    for element in (*same, *reversed(short)):
        found.add(b"k", b"w", element)
    read = list(found.read(b"k", b"w"))
    assert [each[:KEY_LIMIT] for each in read] == sorted(each[:KEY_LIMIT] for each in (*short, *same))
    assert set(read) == {*short, *same}
    again = SetCell(Cells(MemoryView(), 1), "f")
    for element in read:
        again.add(b"k", b"w", element)
    assert list(again.read(b"k", b"w")) == read, "it depends on the elements alone"


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize(("start", "end"), [(None, 3), (3, None), (2, 5), (3, 3), (5, 2), (None, None)])
def test_a_range_of_an_ordered_list_is_cleared_and_nothing_beside_it(start: int | None, end: int | None) -> None:
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


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize("map_key", [b"short", b"long" * 100])
def test_a_map_key_that_is_removed_leaves_no_row(map_key: bytes) -> None:
    view = MemoryView()
    cell = MultimapCell(Cells(view, 0), "m")
    for _ in range(300):
        cell.add(b"k", b"w", map_key, b"v" * 20)
    cell.remove(b"k", b"w", map_key)
    assert not list(cell.keys(b"k", b"w"))
    assert len(view) == 0
