"""Stamps: the encoded common properties of a block's elements."""

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
    """Read a block; return whether its stamp was known."""
    found = stamps.of(encoded)
    (block,) = blocks.read(encoded)
    if found is None:
        stamps.add(encoded, block, number)
        return False
    assert found[1] == number
    assert list(found[0].block(encoded).elements()) == list(block.elements())
    return True


def test_stamp_is_known_from_second_block() -> None:
    blocks = coder()
    stamps: Stamps[int] = Stamps(blocks)
    for number in range(MANY):
        known = [taken(stamps, blocks, packed(number, blocks, [1, 2]), number) for _ in range(3)]
        assert known == [False, True, True]


def test_few_stamps_are_added_while_all_differ() -> None:
    blocks = coder()
    stamps: Stamps[int] = Stamps(blocks)
    for number in range(MANY):
        assert not taken(stamps, blocks, packed(number, blocks, [1]), number)
    again = [taken(stamps, blocks, packed(MANY, blocks, [1]), MANY) for _ in range(70)]
    assert again[-1]
    assert not taken(stamps, blocks, packed(MANY + 1, blocks, [1]), MANY + 1)
    assert taken(stamps, blocks, packed(MANY + 1, blocks, [1]), MANY + 1)


def test_bulk_blocks_have_no_stamp() -> None:
    blocks = coder(coders.TupleCoder([coders.VarIntCoder(), coders.StrUtf8Coder()]))
    stamps: Stamps[int] = Stamps(blocks)
    bulk = packed(0, blocks, [(n, "text") for n in range(50)])
    assert not any(taken(stamps, blocks, bulk, 0) for _ in range(MANY))
    assert not taken(stamps, blocks, packed(0, blocks, [(1, "a")]), 0)
    assert taken(stamps, blocks, packed(0, blocks, [(2, "b")]), 0)
