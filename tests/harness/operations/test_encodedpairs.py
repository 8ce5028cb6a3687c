"""Pairs that stay encoded: what they are as a block, and that they are grouped as if they had been decoded."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder, IntervalWindowCoder
from apache_beam.transforms.window import GlobalWindow, IntervalWindow
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, PaneInfoTiming
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.harness.encoding.blocks import Block, BlockCoder
from arcbeam.harness.encoding.frames import key_groups
from arcbeam.harness.operations import keyedwrite
from arcbeam.harness.operations.encodedpairs import EncodedPairs, PairLayout, by_key
from arcbeam.model.plan import Routing
from tests.harness.operations.rig import MIB, Rig

PAIR = coders.TupleCoder([coders.VarIntCoder(), coders.BytesCoder()])
GLOBAL = (GlobalWindow(),)
EARLY = PaneInfo(True, False, PaneInfoTiming.EARLY, 0, -1)


def ends_of_keys(data: bytes, at: Any) -> Any:
    """Return the place after each key, which is a varint."""
    return np.array([next(n for n in itertools.count(place) if data[n] < 0x80) + 1 for place in at.tolist()], np.int64)


LAYOUT = PairLayout.of(PAIR, ends_of_keys)


def encoded(
    values: list[Any], micros: int = 0, windows: Any = GLOBAL, pane: Any = PANE_INFO_UNKNOWN, layout: Any = LAYOUT
) -> EncodedPairs:
    each = list(map(layout.coder.get_impl().encode_nested, values))
    ends = np.cumsum(np.array(list(map(len, each)), np.int64))
    return EncodedPairs(layout, b"".join(each), ends, micros, windows, pane)


VALUES = [(key % 5 * 100, bytes([key]) * (key % 3)) for key in range(20)]


class TestBlock:
    def test_it_has_the_values(self) -> None:
        block = encoded(VALUES, 7)
        assert (len(block), block.values) == (20, VALUES)
        assert [e.value for e in block.elements()] == VALUES
        assert block.element(3) == Block(VALUES, 7, GLOBAL, PANE_INFO_UNKNOWN).element(3)
        assert block.element(-1).value == VALUES[-1]
        with pytest.raises(IndexError):
            block.element(20)
        assert block.at(9).stamp == (9, GLOBAL, PANE_INFO_UNKNOWN)

    @pytest.mark.parametrize("part", [(0, 5), (5, 9), (19, 20), (3, None), (0, None), (7, 7), (20, 25)])
    def test_part_stays_encoded(self, part: tuple[int, int | None]) -> None:
        found = encoded(VALUES).slice(*part)
        assert isinstance(found, EncodedPairs)
        assert found.values == VALUES[slice(*part)]
        assert found.slice(1, 2).values == VALUES[slice(*part)][1:2]

    def test_part_with_gaps(self) -> None:
        assert encoded(VALUES).slice(1, None, 3).values == VALUES[1::3]


class TestByKey:
    @pytest.mark.parametrize("keys", [1, 300, 70_000], ids=["one", "some", "more than 16 bits"])
    @pytest.mark.parametrize("longest", [1, 3, 1_000_000])
    def test_values_of_a_key_stay_in_order(self, keys: int, longest: int) -> None:
        chance = random.Random(keys)
        pairs = [(chance.randrange(keys), b"%d" % n) for n in range(2 * keys if keys > 1000 else 1000)]
        blocks = [encoded(pairs[n : n + 5000]) for n in range(0, len(pairs), 5000)]
        expected, found = defaultdict(list), defaultdict(list)
        for key, value in pairs:
            expected[key].append(value)
        decode_key = coders.VarIntCoder().get_impl().decode
        for key, count, data in by_key(blocks, longest):
            assert 1 <= count <= longest
            values = coders.ListCoder(coders.BytesCoder()).get_impl().decode(count.to_bytes(4, "big") + bytes(data))
            found[decode_key(key)] += values
        assert found == expected


def rows_of(blocks: list[Block], memory: int, window: Any = None) -> dict[bytes, list[Any]]:
    """Write blocks; return the windowed values of each key, and those of each window in order."""
    rig = Rig(3, memory)
    op = rig.op(Routing.KEYED, PAIR, window)
    op.begin_task()
    for block in blocks:
        op.take(block)
    taken = op.taken
    op.drain()
    assert taken == rig.context.elements_out[7] == sum(map(len, blocks))
    decode = BlockCoder(coders.WindowedValueCoder(coders.BytesCoder(), window or GlobalWindowCoder())).decode
    found: dict[bytes, list[Any]] = {}
    for shard in range(3):
        rows = sorted((row for row in rig.rows if row.shard == shard), key=lambda row: row.bucket)
        for key, windows in key_groups(iter(rows), MIB):
            assert key not in found
            found[key] = [each for chunks in windows.values() for payload in chunks for each in decode(payload)]
    # Only the elements of a window have an order.
    return {key: sorted(values, key=lambda each: str(each.windows)) for key, values in found.items()}


def windows_of(numbers: list[int]) -> Any:
    return tuple(IntervalWindow(10 * n, 10 * n + 10) for n in numbers)


stamps = st.tuples(
    st.integers(0, 2),
    st.sampled_from([windows_of([0]), windows_of([1]), windows_of([0, 1]), windows_of([2])]),
    st.sampled_from([PANE_INFO_UNKNOWN, EARLY]),
)
contents = st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=3)), min_size=1, max_size=12)


@pytest.mark.contract("BAT-01")
@settings(max_examples=150)
@given(
    st.lists(st.tuples(contents, stamps, st.booleans()), min_size=1, max_size=8),
    st.sampled_from([1, 200, 2000, MIB]),
    st.sampled_from([1, 10, 10_000]),
)
def test_grouped_as_if_decoded(parts: list[Any], memory: int, fewest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyedwrite, "_PAIRS_MIN", fewest)
        decoded = [Block(values, *stamp) for values, stamp, _ in parts]
        mixed = [encoded(values, *stamp) if stays else Block(values, *stamp) for values, stamp, stays in parts]
        window = IntervalWindowCoder()
        assert rows_of(mixed, memory, window) == rows_of(decoded, MIB, window)


def test_groups_of_many_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: bytes) -> list[Any]:
        raise AssertionError

    blocks: list[Block] = [encoded(VALUES * 50, layout=PairLayout(PAIR, ends_of_keys, refuse))] * 3
    blocks = [block.at(5) for block in blocks if isinstance(block, EncodedPairs)]
    found = rows_of(blocks, MIB)
    decoded = rows_of([Block(VALUES * 50, 5, GLOBAL, PANE_INFO_UNKNOWN)] * 3, MIB)
    assert found == decoded


def test_pairs_of_another_coder_are_decoded() -> None:
    """As another coder would write them, the values would have other bytes."""
    layout = PairLayout.of(coders.TupleCoder([coders.VarIntCoder(), coders.FastPrimitivesCoder()]), ends_of_keys)
    blocks: list[Block] = [encoded(VALUES * 50, layout=layout), encoded(VALUES)]
    assert rows_of(blocks, MIB) == rows_of([Block(VALUES * 51, 0, GLOBAL, PANE_INFO_UNKNOWN)], MIB)
