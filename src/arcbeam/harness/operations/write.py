"""Write operations: where elements leave a stage, in place of the SDK's data plane.

Owns what all of them share: where rows go, counts, and what a failing coder means to the user. Buffers belong to the
task, not to the bundle: `drain` empties them. Must not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from arcbeam.errors import CoderError
from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.encoding.codererrors import coder_error
from arcbeam.harness.operations.blockoperation import BlockOperation
from arcbeam.harness.operations.taskcontext import OperationContext
from arcbeam.model.rows import Passed, Row
from arcbeam.model.timestamps import MIN_TIMESTAMP
from arcbeam.model.urns import WriteSpec
from arcbeam.sizes import threshold

STREAMS_BYTES = threshold(64 << 20)
"""What encoded elements may take in memory until there are enough for a blob, over all shards or windows."""


class Write(BlockOperation):
    """What all writes share."""

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, None, factory, coder)
        self._wiring: OperationContext = factory.data_channel_factory
        self._wiring.writers.append(self)
        self._channel = spec.channel
        self._explode = spec.explode
        self._shards = self._wiring.settings.shards
        self._windowed_coder = coder
        self._written = 0
        self._count = 0
        # Of the task; None: nobody asks.
        self._passed = Passed() if self._wiring.settings.event_times else None
        self.producer = self.key_producer = ""

    @property
    def channel(self) -> int:
        """Where it writes."""
        return self._channel

    @property
    def window_coder(self) -> Any:
        """Of the windows of what it writes."""
        return self._windowed_coder.window_coder

    @property
    def taken(self) -> int:
        """Elements that have come in this task and are no bundle's any more; some may not be written yet."""
        return self._written + self._count

    def take(self, block: Block) -> None:
        """See `BlockOperation`. Of each block its times are looked at, not of each element what it is."""
        if self._waiting:
            self._take_waiting()
        if self._passed is not None:
            _see(self._passed, block)
        self._take(block)

    def _take_waiting(self) -> None:
        block = self._waited()
        if self._passed is not None:
            _see(self._passed, block)
        self._take(block)

    def _put(self, shard: int, bucket: int, blob: bytes) -> None:
        if self._passed is not None:
            self._passed.bytes += len(blob)
        self._wiring.outbox.put(Row(self._channel, shard, bucket, blob))

    def coder_error(self, error: Exception, values: Iterable[Any]) -> CoderError:
        """What a failing encode means to the user: the first element that fails, and its step."""
        return coder_error(self._windowed_coder.wrapped_value_coder, self.producer, error, values)

    def begin_task(self) -> None:
        """A task begins: nothing is buffered."""
        self._written = 0
        if self._passed is not None:
            self._passed = Passed()

    def drain(self) -> None:
        """The task's last bundle is done: hands over everything that is buffered."""
        counts = self._wiring.elements_out
        counts[self._channel] = counts.get(self._channel, 0) + self._written
        self._written = 0
        if self._passed is not None:
            self._wiring.passed.setdefault(self._channel, Passed()).add(self._passed)
            self._passed = Passed()


def _see(passed: Passed, block: Block) -> None:
    """Takes in the event times of a block; called for each, so it calls nothing that it need not."""
    micros, count = block.micros, len(block)
    if type(micros) is Each:
        least, most, total = min(micros), max(micros), sum(micros)
    else:
        least = most = micros
        total = micros * count
    if least <= MIN_TIMESTAMP:
        return
    passed.counted += count
    passed.total += total
    if least < passed.least:
        passed.least = least
    if most > passed.most:
        passed.most = most
