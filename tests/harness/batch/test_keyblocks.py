"""The input of a keyed stage: the values of each key, for all amounts of decoding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.harness.batch import keyblocks
from arcbeam.harness.batch.keyblocks import InOrder, TimeSorted
from arcbeam.harness.encoding.blocks import BlockCoder
from arcbeam.harness.encoding.frames import record
from arcbeam.model.rows import Row

Group = tuple[int, bytes, list[tuple[int, int]]]
"""A bucket, a key in it, and its (value, time) pairs: the contents of one record."""

CODER = coders.WindowedValueCoder(coders.VarIntCoder(), GlobalWindowCoder())

groups = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([b"a", b"b", b""]),
        st.lists(st.tuples(st.integers(-9, 9), st.sampled_from([7, 7, 7, 8])), min_size=1, max_size=200),
    ),
    max_size=12,
)


def rows_of(made: list[Group], *, records_a_row: int = 2) -> list[Row]:
    coder = BlockCoder(CODER, bulk=True)
    rows = []
    for bucket in sorted({bucket for bucket, _, _ in made}):
        encoded = [
            record(key, b"", coder.encode([WindowedValue(value, time, (GlobalWindow(),)) for value, time in values]))
            for at, key, values in made
            if at == bucket
        ]
        for start in range(0, len(encoded), records_a_row):
            rows.append(Row(0, 0, bucket, b"".join(encoded[start : start + records_a_row])))
    return rows


def read(way: Any, rows: Iterable[Row], memory: int = 1 << 20) -> list[tuple[bytes, list[tuple[int, int, Any]]]]:
    return [
        (key, [(e.value, e.timestamp_micros // 1_000_000, e.pane_info) for block in blocks for e in block.elements()])
        for some in way(BlockCoder(CODER), memory)(rows)
        for key, blocks in some
    ]


def expected(made: list[Group], *, by_time: bool = False) -> list[tuple[bytes, list[tuple[int, int, Any]]]]:
    values_of: dict[tuple[int, bytes], list[tuple[int, int, Any]]] = {}
    for bucket, key, values in sorted(made, key=lambda group: group[0]):
        values_of.setdefault((bucket, key), []).extend((v, time, PANE_INFO_UNKNOWN) for v, time in values)
    return [(key, sorted(v, key=lambda e: e[1]) if by_time else v) for (_, key), v in values_of.items()]


class TestInOrder:
    @given(groups, st.sampled_from([0, 50, 1 << 20]))
    def test_values_of_key_are_adjacent_in_order(self, made: list[Group], memory: int) -> None:
        assert read(InOrder, rows_of(made), memory) == expected(made)

    @pytest.mark.parametrize("few", [0, 100, 1 << 20])
    def test_result_does_not_depend_on_decoded_amount(self, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keyblocks, "_BUCKET_BYTES_MAX", few)
        made = [(n % 3, bytes([n % 7]), [(n, 7)] * (1 + n % 150)) for n in range(60)]
        assert read(InOrder, rows_of(made)) == expected(made)

    def test_small_bucket_is_one_block(self) -> None:
        made = [(0, b"k", [(n, 7)]) for n in range(10)]
        (alike,) = InOrder(BlockCoder(CODER), 1 << 20)(rows_of(made))
        assert isinstance(alike, keyblocks.KeysOfOneKind)
        assert len(alike) == 10
        ((key, blocks),) = alike
        assert key == b"k"
        assert [block.values for block in blocks] == [list(range(10))]


class TestTimeSorted:
    @given(groups, st.sampled_from([0, 400, 1 << 20]))
    def test_values_are_sorted_by_time_stably(self, made: list[Group], memory: int) -> None:
        assert read(TimeSorted, rows_of(made), memory) == expected(made, by_time=True)
