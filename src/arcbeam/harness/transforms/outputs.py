"""Outputs of user code on the way to the next transform: blocks of plain values, or of values with new times.

Owns what is a plain value, how large the next block may be, and which outputs with times of their own can stay a block.
Must not know the code that creates outputs, nor how the SDK passes on outputs that are more than values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue

from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.operations.blockoperation import PIECE, fitting, longest_of
from arcbeam.harness.transforms.windowing import WindowAssigner
from arcbeam.sizes import cache_size, threshold

_SPECIAL = (TimestampedValue, WindowedValue, TaggedOutput)
_KINDS_MAX = cache_size(1000)
BLOCK_OUTPUTS_MIN = threshold(4)
"""Fewer outputs than this are not worth a block of their own."""
_MICROS = Timestamp.MICROS_PRECISION


class OutputBlocks:
    """The main output of an operation.

    Args:
        emit: takes its blocks.
        windowfn: window function of its elements.
        coder: the SDK's coder of its windowed values.

    Attributes:
        longest: how many elements the next block may have.
        plain_types: types of outputs that are known to be plain values.
        plain_type: a recent one of them; None if there is none yet.
    """

    def __init__(self, emit: Callable[[Block], None], windowfn: Any, coder: Any) -> None:
        self._emit, self._windows = emit, WindowAssigner(windowfn)
        self._estimate_element = coder.get_impl().estimate_size
        self._estimate_value = coder.wrapped_value_coder.get_impl().estimate_size
        self.longest = 1
        self.plain_types: set[type] = set()
        self.plain_type: type | None = None

    def most_like(self, output: Any) -> int:
        """Return how many outputs like this one fit into a block."""
        while isinstance(output, _SPECIAL):
            output = output.value
        return fitting(self._estimate_value, output)

    def are_plain(self, outputs: list[Any]) -> bool:
        """Return whether all outputs are plain values."""
        kinds = set(map(type, outputs))
        if kinds <= self.plain_types:
            return True
        if any(issubclass(kind, _SPECIAL) for kind in kinds):
            return False
        if len(self.plain_types) > _KINDS_MAX:
            self.plain_types.clear()
        self.plain_types |= kinds
        self.plain_type = next(iter(kinds), None)
        return True

    def put_out(self, block: Block) -> bool:
        """Pass on a block of outputs; if some are more than values, do nothing and return False."""
        if self.are_plain(block.values):
            block.plain = True
            self.hand_on(block)
            return True
        windows, outputs = self._windows, block.values
        if not windows.known or set(map(type, outputs)) != {TimestampedValue} or not block.in_one_window():
            return False
        micros = Each(micros_of([output.timestamp for output in outputs]))
        self.hand_on(Block([output.value for output in outputs], micros, windows.of(micros), PANE_INFO_UNKNOWN))
        return True

    def alike(self, block: Block) -> Iterator[Block]:
        """Yield the block in parts whose outputs may be passed on together: values, values with times, all others.

        The block stays whole if most parts would be short.
        """
        types = list(map(type, block.values))
        kinds = {kind: _kind_of(kind) for kind in set(types)}
        lengths = [len(list(part)) for _, part in groupby(map(kinds.__getitem__, types))]
        if len(lengths) * BLOCK_OUTPUTS_MIN > len(types):
            lengths = [len(types)]
        start = 0
        for length in lengths:
            yield block.slice(start, start + length)
            start += length

    def grow(self, count: int) -> None:
        """Record that this many outputs have left another way."""
        self.longest = max(self.longest, min(2 * count, PIECE))

    def hand_on(self, block: Block) -> None:
        """Pass on a block of plain values."""
        if block.values:
            samples = {0, len(block) - 1}
            self.longest = longest_of(
                max(self.longest, len(block)), self._estimate_element, *map(block.element, samples)
            )
            if not block.uniform:
                # With its columns, a long block does not stay in the processor's cache.
                self.longest = min(self.longest, PIECE)
            self._emit(block)


def micros_of(times: list[Any]) -> list[int]:
    """Convert SDK timestamps to microseconds.

    Raises:
        ValueError: one is finer than that.
    """
    # The attribute would take two Python calls for each timestamp.
    if {time._precision for time in times} == {_MICROS}:
        return [time._seconds * 1_000_000 + time._subseconds for time in times]
    return [time.micros for time in times]


def _kind_of(kind: type) -> int:
    return 1 if kind is TimestampedValue else 2 * issubclass(kind, _SPECIAL)
