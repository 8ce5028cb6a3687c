"""Bytes that are lent: readable until they are released, and afterwards if they are in use."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from arcbeam.engine.grouping import contents, sortedruns
from arcbeam.engine.grouping.contents import WindowBag
from arcbeam.engine.grouping.sortedruns import SortedRuns
from arcbeam.engine.rows.storedpane import StoredPane
from arcbeam.testing.views import MemoryView


class Rows:
    """Three pieces, until they are removed."""

    def __init__(self) -> None:
        self.there = [b"a", b"b", b"c"]
        self.copies = 0
        self.lent = StoredPane(self.there, 3, b"c", self.there.clear)

    def copied(self, pieces: Iterable[bytes]) -> list[bytes]:
        self.copies += 1
        return list(pieces)


def test_unused_pieces_are_removed_without_copy() -> None:
    rows = Rows()
    rows.lent.keep_if(lambda: False, rows.copied)
    assert [list(rows.lent) for _ in range(2)] == [[b"a", b"b", b"c"]] * 2
    rows.lent.release()
    rows.lent.release()
    assert rows.there == []
    assert rows.lent.is_released
    assert rows.copies == 0


def test_used_pieces_are_copied_and_iterations_continue() -> None:
    rows = Rows()
    rows.lent.keep_if(lambda: True, rows.copied)
    started = iter(rows.lent)
    assert next(started) == b"a"
    rows.lent.release()
    assert rows.there == []
    assert rows.copies == 1
    assert list(started) == [b"b", b"c"]
    assert list(rows.lent) == [b"a", b"b", b"c"]


def test_further_rows_are_removed_at_release() -> None:
    rows, removed = Rows(), list[int]()
    rows.lent.also(lambda: removed.append(1))
    assert rows.lent.held() == [b"a", b"b", b"c"]
    assert removed == [1]
    assert list(rows.lent) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("seed", range(20))
def test_large_keys_of_runs_are_lent(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sortedruns, "STORED_PANE_BYTES_MIN", 60)
    monkeypatch.setattr(sortedruns, "ROW_BYTES", 100)
    chance, view, expected = random.Random(seed), MemoryView(), dict[bytes, list[bytes]]()
    runs = SortedRuns(view, b"here")
    for _ in range(4):
        groups = {
            b"%d" % n: [chance.randbytes(chance.choice([5, 30])) for _ in range(chance.randint(1, 30))]
            for n in chance.sample(range(9), 5)
        }
        runs.add(groups)
        for key, payloads in groups.items():
            expected.setdefault(key, []).extend(payloads)
    found, lent = dict[bytes, list[bytes]](), list[StoredPane]()
    for key, payloads in runs.merged({b"5": [b"newest"]}):
        if isinstance(payloads, StoredPane):
            lent.append(payloads)
            assert payloads.size == sum(map(len, payloads))
            assert payloads.last == list(payloads)[-1]
            assert not payloads.is_released
        found[key] = list(payloads)
        assert found[key] == list(payloads)
    expected.setdefault(b"5", []).append(b"newest")
    assert found == expected
    assert lent
    assert all(each.is_released for each in lent)
    runs.clear()
    assert not view.snapshot()


def _bag(view: MemoryView, values: list[bytes], fresh: bytes = b"w") -> WindowBag:
    bag = WindowBag(view, lambda address, n: b"e" + address + b"%d" % n, fresh)
    for value in values:
        bag.add([value])
        bag.store()
    return bag


def test_entries_of_bag_stay_until_pane_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "STORED_PANE_BYTES_MIN", 1_500)
    values = [bytes([n]) * 600 for n in range(5)]
    view = MemoryView()
    bag = _bag(view, values)
    bag.add([b"pending"])
    early = bag.take(keep=True)
    last = bag.take(keep=False)
    # A new pane of the same window begins while the rows of the last one stay.
    bag.add([b"x" * 600])
    bag.store()
    for pane in (early, last):
        assert [list(pane) for _ in range(2)] == [[*values, b"pending"]] * 2
    for pane in (early, last):
        assert isinstance(pane, contents.EncodedPaneValues)
        assert pane.lent is not None
        pane.lent.release()
    assert list(bag.take(keep=False)) == [b"x" * 600]
    assert not view.snapshot()


def test_bag_that_is_cleared_or_absorbed_spares_lent_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "STORED_PANE_BYTES_MIN", 1_500)
    values = [bytes([n]) * 600 for n in range(5)]
    view = MemoryView()
    bag = _bag(view, values)
    pane = bag.take(keep=True)
    bag.clear()
    assert list(pane) == values
    assert isinstance(pane, contents.EncodedPaneValues)
    assert pane.lent is not None
    pane.lent.release()
    assert not view.snapshot()

    bag, other = _bag(view, values), _bag(view, [b"y" * 600], b"v")
    pane = bag.take(keep=True)
    other.absorb(bag)
    assert list(pane) == values
    assert sorted(other.take(keep=False, lend=False)) == sorted([b"y" * 600, *values])
    assert not view.snapshot()


def test_adopted_contents_are_the_next_pane() -> None:
    view, arrived = MemoryView(), [b"a", b"b"]
    bag = _bag(view, [])
    bag.adopt(arrived)
    assert bag.take(keep=False) is arrived
    bag.adopt(arrived)
    bag.add([b"late"])
    assert list(bag.take(keep=True)) == [b"a", b"b", b"late"]
    assert list(bag.take(keep=False)) == [b"a", b"b", b"late"]
    bag.adopt(arrived)
    bag.store()
    assert list(bag.take(keep=False)) == [b"a", b"b"]
