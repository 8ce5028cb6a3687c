"""The input of a worker has the bytes that Beam's coder writes for each element."""

from __future__ import annotations

from typing import Any

import numpy as np
from apache_beam import coders
from apache_beam.coders.coder_impl import create_OutputStream
from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, PaneInfoTiming
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.fnapi.wire.encodedblocks import BlockEncoder
from arcbeam.fnapi.wire.times import to_millis
from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.operations.encodedvalues import EncodedValues
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP

_TIMES = st.one_of(
    st.sampled_from([int(MIN_TIMESTAMP), int(MAX_TIMESTAMP), int(END_OF_GLOBAL_WINDOW)]),
    st.integers(-(10**12), 10**12),
)
_PANE = PaneInfo(True, False, PaneInfoTiming.EARLY, 3, 0)
_WINDOWS = (IntervalWindow(0, 5), IntervalWindow(2, 7))


@given(st.lists(st.tuples(st.binary(max_size=200), _TIMES), max_size=9), st.booleans(), st.booleans())
def test_block_has_the_bytes_of_its_elements(timed: list[Any], alike: bool, same_pane: bool) -> None:
    coder = coders.WindowedValueCoder(coders.TupleCoder([coders.BytesCoder()] * 2), IntervalWindowCoder())
    times = [time for _, time in timed]
    block = to_millis(
        Block(
            [(value, b"") for value, _ in timed],
            (times or [0])[0] if alike else Each(times),
            _WINDOWS,
            PANE_INFO_UNKNOWN if same_pane else Each([_PANE] * len(timed)),
        )
    )
    written = create_OutputStream()
    assert BlockEncoder(coder).write(block, written) is same_pane
    if same_pane:
        assert written.get() == b"".join(map(coder.get_impl().encode_nested, block.elements()))


@given(st.lists(st.binary(max_size=200), max_size=9), _TIMES)
def test_encoded_values_have_the_same_bytes(values: list[bytes], time: int) -> None:
    coder = coders.WindowedValueCoder(coders.BytesCoder(), IntervalWindowCoder())
    each = [coder.wrapped_value_coder.get_impl().encode_nested(value) for value in values]
    ends = np.cumsum(np.array(list(map(len, each)), np.int64))
    decode = coders.ListCoder(coders.BytesCoder()).get_impl().decode
    block = to_millis(EncodedValues(decode, b"".join(each), ends, time, _WINDOWS, _PANE))
    written = create_OutputStream()
    assert BlockEncoder(coder).write(block, written)
    assert written.get() == b"".join(map(coder.get_impl().encode_nested, block.elements()))
