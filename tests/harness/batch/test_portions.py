"""A stage's input in portions: no element is lost, doubled or divided from its key, after any number of portions."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.harness.batch.portions import ElementPortions, KeyPortions
from arcbeam.harness.encoding.blocks import BlockCoder
from arcbeam.model.rows import Row

_CODER = BlockCoder(coders.WindowedValueCoder(coders.VarIntCoder(), GlobalWindowCoder()))


def _row(values: list[int]) -> Row:
    elements = [WindowedValue(value, Timestamp(micros=value), (GlobalWindow(),)) for value in values]
    return Row(7, 0, 0, _CODER.encode(elements))


def _values(rows: list[Row]) -> list[int]:
    elements = [element for row in rows for block in _CODER.read(row.blob) for element in block.elements()]
    assert all(element.timestamp.micros == element.value for element in elements)
    return [element.value for element in elements]


@pytest.mark.contract("BAT-07")
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 12), st.integers(1, 9))
def test_elements_are_taken_left_or_still_to_come(sizes: list[int], taken: int, shards: int) -> None:
    numbers = iter(range(sum(sizes)))
    portions = ElementPortions([_row(list(islice(numbers, size))) for size in sizes], _CODER)
    first = list(islice(portions, taken))
    rest = portions.rest(shards)
    assert sorted(_values([*first, *rest])) == list(range(sum(sizes)))
    assert portions.taken == first
    assert list(portions) == portions.coming() == []
    assert {row.shard for row in rest} <= set(range(shards))
    # The rest is for all shards: none has two elements more than another.
    each = Counter(dict.fromkeys(range(shards), 0))
    for row in rest:
        each[row.shard] += len(_values([row]))
    assert max(each.values()) - min(each.values()) <= 1


@pytest.mark.contract("BAT-07")
def test_portions_of_elements_grow() -> None:
    portions = ElementPortions([_row(list(range(100)))], _CODER)
    assert [len(_values([row])) for row in portions] == [1, 2, 4, 8, 16, 32, 37]


@pytest.mark.contract("BAT-07")
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 12))
def test_keys_are_taken_whole(buckets: list[int], taken: int) -> None:
    rows = [Row(7, bucket % 2, bucket, bytes([n])) for n, bucket in enumerate(sorted(buckets))]
    portions = KeyPortions(rows)
    first = list(islice(portions, taken))
    rest = portions.rest(3)
    coming = portions.coming()
    assert [*first, *coming, *rest] == rows
    assert not {row.bucket for row in [*first, *coming]} & {row.bucket for row in rest}
    assert list(portions) == coming
    assert portions.taken == [*first, *coming]
