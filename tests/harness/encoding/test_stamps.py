"""What blocks share, known by its bytes."""

from __future__ import annotations

from typing import Any

from apache_beam import coders
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from arcbeam.harness.encoding.blocks import BlockCoder
from arcbeam.harness.encoding.stamps import Stamps
from arcbeam.harness.encoding.windowcoder import IntervalWindowCoder

MANY = 1000


def coder(of: Any = None) -> BlockCoder:
    values = of or coders.VarIntCoder()
    return BlockCoder(coders.WindowedValueCoder(values, IntervalWindowCoder()), bulk=True)


def packed(number: int, blocks: BlockCoder, values: list[Any]) -> bytes:
    window = IntervalWindow(number * 60, number * 60 + 60)
    return blocks.encoder_of_alike(0, (window,), PANE_INFO_UNKNOWN)(values)


def taken(stamps: Stamps[int], blocks: BlockCoder, encoded: bytes, number: int) -> bool:
    """Reads a block; whether it was known."""
    found = stamps.of(encoded)
    (block,) = blocks.read(encoded)
    if found is None:
        stamps.add(encoded, block, number)
        return False
    assert found[1] == number
    assert list(found[0].block(encoded).elements()) == list(block.elements())
    return True


def test_windows_come_and_go_and_each_is_known_from_its_second_block_on() -> None:
    blocks = coder()
    stamps: Stamps[int] = Stamps(blocks)
    for number in range(MANY):
        known = [taken(stamps, blocks, packed(number, blocks, [1, 2]), number) for _ in range(3)]
        assert known == [False, True, True]


def test_where_all_differ_few_are_looked_at_until_one_comes_again() -> None:
    blocks = coder()
    stamps: Stamps[int] = Stamps(blocks)
    for number in range(MANY):
        assert not taken(stamps, blocks, packed(number, blocks, [1]), number)
    again = [taken(stamps, blocks, packed(MANY, blocks, [1]), MANY) for _ in range(70)]
    assert again[-1]
    assert not taken(stamps, blocks, packed(MANY + 1, blocks, [1]), MANY + 1)
    assert taken(stamps, blocks, packed(MANY + 1, blocks, [1]), MANY + 1)


def test_blocks_in_bulk_take_no_room() -> None:
    blocks = coder(coders.TupleCoder([coders.VarIntCoder(), coders.StrUtf8Coder()]))
    stamps: Stamps[int] = Stamps(blocks)
    bulk = packed(0, blocks, [(n, "text") for n in range(50)])
    assert not any(taken(stamps, blocks, bulk, 0) for _ in range(MANY))
    assert not taken(stamps, blocks, packed(0, blocks, [(1, "a")]), 0)
    assert taken(stamps, blocks, packed(0, blocks, [(2, "b")]), 0)
