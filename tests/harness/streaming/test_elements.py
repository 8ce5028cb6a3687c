"""The input of a keyed stage in a micro-batch, from the rows of several tasks."""

from __future__ import annotations

import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from arcbeam.harness.bundle.windows import Windows
from arcbeam.harness.encoding.blocks import Block, BlockCoder, Each
from arcbeam.harness.encoding.frames import record
from arcbeam.harness.streaming import elements
from arcbeam.harness.streaming.elements import Codec, keyed_elements
from arcbeam.model.rows import Row

CODER = coders.VarIntCoder()
BLOCKS = BlockCoder(coders.WindowedValueCoder(CODER, GlobalWindowCoder()))
WINDOWS = (GlobalWindow(),)


def row(*of: tuple[bytes, dict[int, int]]) -> Row:
    """Return the row that a task has written: each key, with its values and their times."""
    blocks = [(key, Block(list(timed), Each(timed.values()), WINDOWS, PANE_INFO_UNKNOWN)) for key, timed in of]
    records = [record(key, b"", BLOCKS.encode(list(block.elements()))) for key, block in blocks]
    return Row(0, 0, 0, b"".join(records))


ROWS = [row((b"a", {1: 10, 2: 20}), (b"b", {3: 30})), row((b"a", {4: 5})), row((b"c", {5: 50}), (b"a", {6: 60}))]
OF_A = [(1, 10), (2, 20), (4, 5), (6, 60)]


def arrived(*, join: bool) -> list[tuple[bytes, list[tuple[int, int]]]]:
    codec = Codec(CODER, Windows(GlobalWindowCoder()), waits=False)
    found = keyed_elements(ROWS, BLOCKS, codec, 1 << 20, join=join)
    return [(key, [(value, int(time)) for value, time, _, _ in some]) for key, some in found]


def test_blocks_of_key_are_joined_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "_JOINED_BYTES", 1 << 10)
    assert arrived(join=True) == [(b"a", OF_A), (b"b", [(3, 30)]), (b"c", [(5, 50)])]


def test_stored_or_large_blocks_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = [(b"a", OF_A[:2]), (b"a", OF_A[2:3]), (b"a", OF_A[3:]), (b"b", [(3, 30)]), (b"c", [(5, 50)])]
    assert arrived(join=False) == apart
    monkeypatch.setattr(elements, "_JOINED_BYTES", 1)
    assert arrived(join=True) == apart
