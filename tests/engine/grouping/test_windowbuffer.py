"""Buffered windows keep the order of their payloads, in any form."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.contents import EncodedPaneValues
from arcbeam.engine.grouping.groupings import UniformElements, WindowedElement
from arcbeam.engine.grouping.openwindow import Rules
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.windowbuffer import WindowBuffer
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow, Window
from arcbeam.testing.views import MemoryView

_WINDOW = IntervalWindow(Timestamp(0), Timestamp(10))
_BEFORE = Timestamp(0)


class Pack(UniformElements):
    """Values separated by commas."""

    def __init__(self, values: list[bytes], windows: tuple[Window, ...]) -> None:
        self.windows, self.packed = windows, b"".join(b"," + value for value in values)
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[WindowedElement]:
        return iter([(value, Timestamp(7), self.windows or (), NO_PANE) for value in self._values])


def _gathering(view: MemoryView) -> WindowBuffer:
    rules = Rules(Strategy(Repeatedly(AfterWatermark()), lateness=Duration(100)))
    return WindowBuffer(rules, view, b"space", lambda packed: packed.split(b",")[1:])


@pytest.mark.contract("ENG-04", "ENG-08")
@pytest.mark.parametrize("seed", range(60))
def test_payloads_of_key_stay_in_order(
    seed: int,
) -> None:
    chance, view, number = random.Random(seed), MemoryView(), 0
    expected: defaultdict[bytes, list[bytes]] = defaultdict(list)
    windows: tuple[Window, ...] = (_WINDOW,)
    packs, micro_batches = chance.choice([0, 0.5, 1]), chance.choice([1, 2, 12])
    gathering = _gathering(view)
    for micro_batch in range(micro_batches):
        gathering = _gathering(view)
        for _ in range(chance.choice([1, 30])):
            key = b"k%d" % chance.randrange(8)
            values = [b"%d" % (number + more) for more in range(chance.randint(1, 3))]
            number += len(values)
            expected[key] += values
            pack = Pack(values, windows)
            if chance.random() < packs:
                assert gathering.take(key, pack, _BEFORE)
            else:
                assert not gathering.take_each(key, pack, _BEFORE)
        if micro_batch < micro_batches - 1:
            gathering.store(_WINDOW)
    found: dict[bytes, list[bytes]] = {}
    left = True
    while left:
        groups, room = gathering.groups(_WINDOW), chance.randint(1, 4)
        for key, contents in groups:
            assert key not in found
            found[key] = list(contents)
            assert list(contents) == found[key], "it may be iterated repeatedly"
            parts = [
                [*part] if isinstance(part, EncodedPaneValues) else part.split(b",")[1:] for part in contents.parts
            ]
            assert [value for part in parts for value in part] == found[key]
            room -= 1
            if not room:
                break
        left = groups.stop_reading()
        gathering = _gathering(view)
    assert found == expected
    assert not view.snapshot()


def test_payloads_of_one_micro_batch_are_not_copied() -> None:
    gathering = _gathering(MemoryView())
    windows: tuple[Window, ...] = (_WINDOW,)
    packs = [Pack([b"1"], windows), Pack([b"2"], windows)]
    for pack in packs:
        gathering.take(b"key", pack, _BEFORE)
    ((_, contents),) = gathering.groups(_WINDOW)
    assert [id(part) for part in contents.parts] == [id(pack.packed) for pack in packs]
