"""Outputs of user code, collected into blocks over many calls, each with time, windows and pane.

Owns when there are enough for a block, and how outputs that are more than values (a `TimestampedValue`, a
`WindowedValue`, a `TaggedOutput`) leave. Must not know the transform that outputs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, repeat
from types import GeneratorType
from typing import Any

from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.operations.blockoperation import BLOCK_ELEMENTS_MAX, PIECE, OperationOutput, once, piece_after
from arcbeam.harness.transforms.outputs import BLOCK_OUTPUTS_MIN, OutputBlocks

_SECONDS = 0.02
"""Time for a block, if there is a clock: for creating it, and for all its consumers."""


class Emitter:
    """Collects outputs, and passes them on in order.

    Args:
        output: takes blocks of the main output.
        handle: the SDK's function that passes on outputs that are more than values: (input element, outputs).
        windowfn: window function of the outputs.
        coder: the SDK's coder of the main output's windowed values.
        clock: returns seconds. If given, blocks stay so small that creating and passing on one takes little time.

    Attributes:
        values: the collected outputs. Code may add to it, if it calls `look` once there are `due`.
        due: number of outputs at which `look` must be called.
    """

    def __init__(
        self,
        output: OperationOutput,
        handle: Callable[[Any, Any], None],
        windowfn: Any,
        coder: Any,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._out, self._handle, self._clock = OutputBlocks(output.emit, windowfn, coder), handle, clock
        self._since = 0.0
        self._most = BLOCK_ELEMENTS_MAX if clock is None else 1
        self._emitted = 0
        self.values: list[Any] = []
        self.begin()

    def begin(self) -> None:
        """Discard collected outputs."""
        self.values.clear()
        self.due = 1
        self._stamp: tuple[int, Any, Any] = (0, (), None)
        # Outputs with earlier stamps: the end position of each stamp.
        self._ends: list[int] = []
        self._stamps: list[tuple[int, Any, Any]] = []

    @property
    def taken(self) -> int:
        """How many outputs were taken so far. May be read on any thread, also while user code runs."""
        return self._emitted + len(self.values)

    def resume(self) -> None:
        """Start measuring the time for the next outputs."""
        if self._clock is not None:
            self._since = self._clock()

    def stamp(self, micros: int, windows: Any, pane: Any) -> None:
        """Set the time, windows and pane of the following outputs."""
        then = self._stamp
        if micros == then[0] and pane is then[2] and windows is then[1]:
            return
        now, count = (micros, windows, pane), len(self.values)
        if count and now != then and (not self._ends or self._ends[-1] != count):
            self._ends.append(count)
            self._stamps.append(then)
        self._stamp = now

    def take(self, results: Any) -> None:
        """Take what user code has returned, with the latest stamp."""
        values = self.values
        if type(results) is list and len(results) < PIECE:
            values += results
            if len(values) >= self.due:
                self.look()
            return
        self.take_from(results if type(results) is GeneratorType else once(results))

    def take_from(self, more: Iterator[Any]) -> None:
        """Take all outputs of an iterator, with the latest stamp."""
        values = self.values
        due = self.due
        while True:
            values.extend(islice(more, due - len(values)))
            if len(values) < due:
                return
            self.look()
            due = self.due

    def look(self) -> None:
        """Pass on the collected outputs if they are enough, and set when to look again."""
        values = self.values
        count, latest = len(values), values[-1]
        if count >= min(self._longest, self._out.most_like(latest)):
            self._hand_on_block()
            count = 0
        self.due = count + max(1, min(piece_after(latest), self._longest - count))

    @property
    def _longest(self) -> int:
        return min(self._most, self._out.longest)

    def hand_on(self) -> None:
        """Pass on the collected outputs."""
        if self.values:
            self._hand_on_block(least=BLOCK_OUTPUTS_MIN)

    def _hand_on_block(self, least: int = 1) -> None:
        block = self._block()
        # SUBTLE: callers hold a reference to the list, so it must not be replaced.
        self._emitted += len(block)
        self.values.clear()
        self._ends, self._stamps = [], []
        self.due = 1
        if len(block) < least:
            self._hand_on_one_by_one(block)
        elif not self._out.put_out(block):
            for part in self._out.alike(block):
                if len(part) < BLOCK_OUTPUTS_MIN or not self._out.put_out(part):
                    self._hand_on_one_by_one(part)
        if self._clock is not None:
            self._pace(len(block), self._clock())

    def _hand_on_one_by_one(self, block: Block) -> None:
        self._out.grow(len(block))
        if block.uniform:
            self._handle(block.element(0), block.values)
        else:
            for element in block.elements():
                self._handle(element, (element.value,))

    def _pace(self, count: int, now: float) -> None:
        """Adapt the size of blocks to the time that this many outputs took."""
        spent, self._since = now - self._since, now
        if spent > _SECONDS:
            self._most = max(1, int(count * _SECONDS / spent))
        elif 2 * spent <= _SECONDS:
            self._most = max(self._most, min(2 * count, BLOCK_ELEMENTS_MAX))

    def _block(self) -> Block:
        values = self.values.copy()
        if not self._ends:
            return Block(values, *self._stamp)
        columns: list[Any] = []
        ends = [*self._ends, len(values)]
        for column in zip(*self._stamps, self._stamp, strict=True):
            if column.count(column[0]) == len(column):
                columns.append(column[0])
                continue
            each, start = Each(), 0
            for what, end in zip(column, ends, strict=True):
                each.extend(repeat(what, end - start))
                start = end
            columns.append(each)
        return Block(values, *columns)
