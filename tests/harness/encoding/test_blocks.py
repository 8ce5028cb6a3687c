"""Blocks: columns of windowed values, and their encoding."""

from __future__ import annotations

from typing import Any

import pytest
from apache_beam import coders
from apache_beam.coders.coder_impl import TupleSequenceCoderImpl, create_InputStream, create_OutputStream
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.transforms.window import GlobalWindow, IntervalWindow
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.harness.encoding.blocks import Block, BlockCoder, Each
from arcbeam.harness.encoding.windowcoder import IntervalWindowCoder, WindowTuples

PANES = [
    PaneInfo(True, True, PaneInfoTiming.UNKNOWN, 0, 0),
    PaneInfo(False, True, PaneInfoTiming.LATE, 3, 2),
    PaneInfo(True, False, PaneInfoTiming.EARLY, 0, -1),
]
windows = st.builds(
    lambda start, length: IntervalWindow(Timestamp(micros=start), Timestamp(micros=start + length)),
    st.sampled_from([MIN_TIMESTAMP.micros - 1, -1, 0, 1, MAX_TIMESTAMP.micros]),
    st.integers(1, 3),
)
elements = st.builds(
    lambda value, micros, in_windows, pane: WindowedValue(value, Timestamp(micros=micros), tuple(in_windows), pane),
    st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=3), st.binary(max_size=3)),
    st.sampled_from([0, 1, -1, MIN_TIMESTAMP.micros, MAX_TIMESTAMP.micros]),
    st.lists(windows, max_size=2),
    st.sampled_from(PANES),
)
some = st.lists(elements, min_size=1, max_size=6)
CODER = BlockCoder(coders.WindowedValueCoder(coders.FastPrimitivesCoder(), IntervalWindowCoder()))


def same(a: Any, b: Any) -> bool:
    """Return whether values are equal and of equal types: 1 and True are not."""
    a, b = list(a), list(b)
    return a == b and list(map(repr, a)) == list(map(repr, b))


@pytest.mark.contract("PLAN-04")
@given(some)
def test_block_has_its_elements(given_elements: list[Any]) -> None:
    block = Block.of(given_elements)
    assert same(block.elements(), given_elements)
    bare = Block(block.values, block.micros, block.windows, block.panes)
    assert same(bare.elements(), given_elements)
    assert same([bare.element(i) for i in range(len(bare))], given_elements)


@given(st.lists(st.lists(windows, max_size=3), min_size=1, max_size=6))
def test_windows_are_encoded_like_sdk_and_shared(given_windows: list[list[Any]]) -> None:
    theirs = TupleSequenceCoderImpl(IntervalWindowCoder().get_impl())
    ours, read = WindowTuples(IntervalWindowCoder().get_impl()), {}
    for each in map(tuple, given_windows):
        streams = create_OutputStream(), create_OutputStream()
        for impl, stream in zip((theirs, ours), streams, strict=True):
            impl.encode_to_stream(each, stream, True)
        data = streams[1].get()
        assert data == streams[0].get()
        found = ours.decode_from_stream(create_InputStream(data), True)
        assert found == each
        assert len(each) != 1 or read.setdefault(data, found) is found


@pytest.mark.contract("PLAN-04")
@given(st.lists(some, min_size=1, max_size=4))
def test_blocks_are_joined_in_order(lists: list[list[Any]]) -> None:
    joined = Block.join([Block.of(part) for part in lists])
    assert same(joined.elements(), [e for part in lists for e in part])


@given(some, st.integers(0, 5), st.integers(0, 6), st.integers(1, 3))
def test_slice_is_slice_of_list(given_elements: list[Any], start: int, stop: int, step: int) -> None:
    assert same(Block.of(given_elements).slice(start, stop, step).elements(), given_elements[start:stop:step])


@given(some, st.integers(1, 7))
def test_parts_form_whole_block(given_elements: list[Any], longest: int) -> None:
    parts = list(Block.of(given_elements).parts(longest))
    assert max(map(len, parts)) <= longest
    assert same([e for part in parts for e in part.elements()], given_elements)


@given(some, st.data())
def test_selection_keeps_columns(given_elements: list[Any], data: Any) -> None:
    block = Block.of(given_elements)
    flags = data.draw(st.lists(st.booleans(), min_size=len(block), max_size=len(block)))
    kept = [e for e, flag in zip(given_elements, flags, strict=True) if flag]
    assert same(block.compress([e.value for e in kept], flags).elements(), kept)
    places = data.draw(st.lists(st.integers(0, len(block) - 1)))
    picked = [given_elements[i] for i in places]
    assert same(block.pick([e.value for e in picked], places).elements(), picked)


@pytest.mark.contract("PLAN-04")
@given(st.lists(some))
def test_bytes_are_exact(lists: list[list[Any]]) -> None:
    stream = create_OutputStream()
    for part in lists:
        CODER.write(Block.of(part), stream)
    assert same([e for block in CODER.read(stream.get()) for e in block.elements()], [e for p in lists for e in p])


def test_shared_columns_are_written_once() -> None:
    coder = BlockCoder(coders.WindowedValueCoder(coders.VarIntCoder(), GlobalWindowCoder()))
    block = Block([0] * 100, 5, (GlobalWindow(),), PANES[0])
    stream = create_OutputStream()
    coder.write(block, stream)
    assert len(stream.get()) < 130
    (read,) = coder.read(stream.get())
    assert read.uniform
    assert read.micros == 5


def test_different_times_take_eight_bytes_each() -> None:
    coder = BlockCoder(coders.WindowedValueCoder(coders.VarIntCoder(), GlobalWindowCoder()))
    stream = create_OutputStream()
    coder.write(Block([0] * 100, Each(range(100)), (GlobalWindow(),), PANES[0]), stream)
    assert len(stream.get()) < 930


@pytest.mark.contract("PLAN-04")
@given(some, st.lists(st.sampled_from([1, 2, 127, 128, 300]), max_size=4), st.booleans())
def test_uniform_values_are_encoded_without_windowed_values(stamps: list[Any], counts: list[int], bulk: bool) -> None:
    coder = BlockCoder(coders.WindowedValueCoder(coders.StrUtf8Coder(), IntervalWindowCoder()), bulk=bulk)
    for stamp in stamps:
        encode = coder.encoder_of_alike(stamp.timestamp_micros, stamp.windows, stamp.pane_info)
        for count in counts:
            values = [f"v{n}" for n in range(count)]
            encoded = encode(values)
            expected = [stamp.with_value(value) for value in values]
            assert encoded == coder.encode(expected)
            assert same(coder.read_one(encoded).elements(), expected)
    for stamp in stamps:
        assert same(coder.read_one(coder.encode([stamp.with_value("a")])).elements(), [stamp.with_value("a")])
