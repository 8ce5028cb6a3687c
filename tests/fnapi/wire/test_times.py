"""Times in milliseconds."""

from __future__ import annotations

from typing import Any

import pytest
from apache_beam.transforms.userstate import Timer
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.fnapi.wire.times import from_millis, timer_in_millis, to_millis
from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP

_MICROS = st.one_of(st.sampled_from([int(MIN_TIMESTAMP), int(MAX_TIMESTAMP), -1, 0, 1]), st.integers(-(10**12), 10**12))


def block(micros: Any) -> Block:
    return Block([None] * (len(micros) if type(micros) is Each else 1), micros, (), None)


@given(st.lists(_MICROS, min_size=1))
def test_times_are_rounded_down(micros: list[int]) -> None:
    rounded = to_millis(block(Each(micros))).micros
    for before, after in zip(micros, rounded, strict=True):
        assert after % 1000 == 0
        assert before - 1000 < after <= before
        assert to_millis(block(before)).micros == after


@pytest.mark.parametrize("moment", [MIN_TIMESTAMP, MAX_TIMESTAMP, END_OF_GLOBAL_WINDOW])
def test_ends_of_time_pass_exactly_both_ways(moment: int) -> None:
    sent = to_millis(block(int(moment)))
    assert sent.micros % 1000 == 0
    assert from_millis(sent).micros == moment
    several = from_millis(to_millis(block(Each([0, int(moment)]))))
    assert several.micros == [0, moment]


@given(_MICROS, _MICROS)
def test_times_of_timers_are_rounded_down(fires: int, holds: int) -> None:
    timer = Timer("key", "", (), False, Timestamp(micros=fires), Timestamp(micros=holds), None)
    rounded = timer_in_millis(timer)
    expected = to_millis(block(Each([fires, holds]))).micros
    assert [rounded.fire_timestamp.micros, rounded.hold_timestamp.micros] == list(expected)


def test_end_of_global_window_is_that_of_other_sdks() -> None:
    assert to_millis(block(int(END_OF_GLOBAL_WINDOW))).micros == 9223371950454775 * 1000
