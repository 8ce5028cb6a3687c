"""The outputs of a DoFn that handles batches: batches stay whole or become blocks; single elements form blocks.

Owns the form in which each consumer gets them. The SDK calls this object instead of its own receiver.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from apache_beam.runners import common
from apache_beam.runners.worker import operations
from apache_beam.typehints.batch import BatchConverter

from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.operations.blockoperation import PIECE, BlockOperation, OperationOutput, longest_of
from arcbeam.harness.operations.elementwrite import ElementWrite
from arcbeam.harness.transforms.batchforms import exploder


class BatchTaker(BlockOperation):
    """An operation of ours that can process batches."""

    @abstractmethod
    def takes(self, converter: BatchConverter | None) -> bool:
        """Return whether it takes batches of a converter."""

    @property
    @abstractmethod
    def needs(self) -> Any:
        """The type of batches that it requires; None if it also takes elements."""

    @abstractmethod
    def process_batch(self, windowed_batch: Any) -> None:
        """Process a batch of its type."""


class BatchOutput(common.Receiver):  # type: ignore[misc]  # Beam is untyped
    """The output of a batch DoFn. The SDK passes a batch, or one element.

    Invariant: elements are collected into blocks at most until the bundle ends, and no batch overtakes them.

    Args:
        converter: converter of the batches; None if there are none.
        receiver: the SDK's receiver of the output.
        output: the output for blocks.
        consumers: the operations that consume the output.
        estimate: estimates sizes of outputs.
    """

    def __init__(
        self, converter: Any, receiver: Any, output: OperationOutput, consumers: list[Any], estimate: Any
    ) -> None:
        self._receiver, self._output, self._estimate = receiver, output, estimate
        self._converter = converter
        self._explode = None if converter is None else exploder(converter)
        ours = [c for c in consumers if isinstance(c, BlockOperation)]
        self._whole = [c for c in ours if isinstance(c, BatchTaker) and c.takes(converter)]
        self._in_blocks = [c for c in ours if c not in self._whole]
        self._writes = [c for c in self._in_blocks if isinstance(c, ElementWrite) and c.takes_whole(converter)]
        self._one_by_one = [c for c in consumers if not isinstance(c, BlockOperation)]
        self._rebatching = [c for c in self._in_blocks if isinstance(c, BatchTaker) and c.needs is not None]
        # An SDK operation that takes batches must be fed by the SDK's receiver, which then also feeds ours.
        self._mixed = any(c.get_batching_preference().supports_batches for c in self._one_by_one)
        self._waiting: list[Any] = []
        self._longest = 1

    def receive(self, windowed_value: Any) -> None:
        """Collect an element."""
        self._waiting.append(windowed_value)
        if len(self._waiting) >= self._longest:
            self.flush()

    def flush(self) -> None:
        """Pass on the collected elements."""
        waiting = self._waiting
        if waiting:
            self._waiting = []
            self._longest = min(PIECE, longest_of(len(waiting), self._estimate, waiting[0], waiting[-1]))
            self._output.emit(Block.of(waiting))

    def drop(self) -> None:
        """Discard the collected elements of a failed bundle."""
        self._waiting = []

    def receive_batch(self, windowed_batch: Any) -> None:
        """Pass on a batch."""
        self.flush()
        if self._mixed:
            self._receiver.receive_batch(windowed_batch)
            return
        for consumer in self._rebatching:
            warnings.warn(
                f"Input to operation {consumer} must be rebatched from type "
                f"{self._converter.batch_type!r} to {consumer.needs!r}.\n"
                "This is very inefficient, consider re-structuring your pipeline "
                "or adding a DoFn to directly convert between these types.",
                operations.InefficientExecutionWarning,
                stacklevel=2,
            )
        written = [c for c in self._writes if c.take_batch(windowed_batch, self._converter)]
        in_blocks = [c for c in self._in_blocks if c not in written] if written else self._in_blocks
        if in_blocks or self._one_by_one:
            for block in self._blocks(windowed_batch):
                for consumer in in_blocks:
                    consumer.take(block)
                for consumer in self._one_by_one:
                    for element in block.elements():
                        consumer.process(element)
        for consumer in self._whole:
            consumer.process_batch(windowed_batch)
        self._receiver.update_counters_batch(windowed_batch)

    def _blocks(self, windowed_batch: Any) -> Iterator[Block]:
        of = windowed_batch.as_empty_windowed_value()
        windows = tuple(of.windows)
        for values in self._explode(windowed_batch.values):  # type: ignore[misc]  # set if there are batches
            yield Block(values, of.timestamp_micros, windows, of.pane_info)
