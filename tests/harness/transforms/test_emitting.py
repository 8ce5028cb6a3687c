"""Blocks of outputs over many calls: their lengths if time matters."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.operations.blockoperation import BLOCK_ELEMENTS_MAX, PIECE
from arcbeam.harness.transforms.emitting import Emitter

GLOBAL = (GlobalWindow(),)


class Slow:
    """Takes blocks, with a clock that advances for each element."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds
        self.lengths: list[int] = []
        self.values: list[Any] = []

    def emit(self, block: Any) -> None:
        self.lengths.append(len(block))
        self.values += block.values
        self.now += self.seconds * len(block)

    def handle(self, element: Any, outputs: Any) -> None:
        self.emit(Block(list(outputs), 0, GLOBAL, PANE_INFO_UNKNOWN))

    def clock(self) -> float:
        return self.now


def emitter_to(slow: Slow, timed: bool = True) -> Emitter:
    coder = coders.WindowedValueCoder(coders.VarIntCoder(), GlobalWindowCoder())
    emitter = Emitter(slow, slow.handle, GlobalWindows(), coder, slow.clock if timed else None)  # type: ignore[arg-type]
    emitter.stamp(0, GLOBAL, PANE_INFO_UNKNOWN)
    emitter.resume()
    return emitter


def test_blocks_grow_without_clock() -> None:
    for timed in (False, True):
        slow = Slow(0.0)
        emitter = emitter_to(slow, timed)
        emitter.take(iter(range(50_000)))
        emitter.hand_on()
        assert slow.values == list(range(50_000))
        assert all(after <= 2 * before for before, after in pairwise(slow.lengths))
        assert max(slow.lengths) == BLOCK_ELEMENTS_MAX


@pytest.mark.contract("SDF-06")
def test_blocks_adapt_to_speed_of_consumer() -> None:
    slow = Slow(0.001)
    emitter = emitter_to(slow)
    emitter.take(iter(range(500)))
    assert all(length <= 32 for length in slow.lengths), "twenty milliseconds, after the first blocks"
    slow.seconds = 0.5
    emitter.take(iter(range(100)))
    assert set(slow.lengths[-50:]) == {1}
    slow.seconds = 0.0
    emitter.take(iter(range(20_000)))
    assert max(slow.lengths) == BLOCK_ELEMENTS_MAX


@pytest.mark.contract("SDF-06")
def test_blocks_are_short_while_user_code_is_slow() -> None:
    slow = Slow(0.0)
    emitter = emitter_to(slow)

    def polls() -> Any:
        for n in range(300):
            slow.now += 0.01
            yield n

    emitter.take(polls())
    assert all(length <= 4 for length in slow.lengths)


def test_outputs_are_counted_while_user_code_runs() -> None:
    slow = Slow(0.0)
    emitter = emitter_to(slow)

    def looks() -> Any:
        for n in range(3000):
            assert emitter.taken == n
            yield n

    emitter.take(looks())
    emitter.hand_on()
    assert (emitter.taken, len(slow.values)) == (3000, 3000)


@pytest.mark.parametrize(("row", "longest"), [(50, 50), (2, PIECE)])
def test_outputs_of_one_kind_form_blocks(row: int, longest: int) -> None:
    slow = Slow(0.0)
    emitter = emitter_to(slow)
    made = [n if n // row % 2 else TimestampedValue(n, n) for n in range(2000)]
    emitter.take(iter(made))
    emitter.hand_on()
    assert [v.value if isinstance(v, TimestampedValue) else v for v in slow.values] == list(range(2000))
    assert max(slow.lengths) == longest


def test_few_outputs_leave_one_by_one() -> None:
    handled: list[Any] = []
    slow = Slow(0.0)
    slow.handle = lambda element, outputs: handled.extend(outputs)  # type: ignore[method-assign]
    emitter = emitter_to(slow)
    for _ in range(10):
        emitter.take([1, 2])
        emitter.hand_on()
    assert (len(slow.values), len(handled)) == (2, 18)
