"""Write operations: the ends of a stage. They replace the SDK's data plane.

Owns what they share: where rows go, counts, and the error of a failing coder. Buffers belong to the task, not to the
bundle: `drain` empties them. Must not know Spark.
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
"""Memory for encoded elements that do not fill a blob yet, over all shards or windows."""


class Write(BlockOperation):
    """The base class of all writes."""

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
        self._more = 0
        # Figures of the task; None: not requested.
        self._passed = Passed() if self._wiring.settings.event_times else None
        self.producer = self.key_producer = ""

    @property
    def channel(self) -> int:
        """The channel to which it writes."""
        return self._channel

    @property
    def window_coder(self) -> Any:
        """The coder of the windows that it writes."""
        return self._windowed_coder.window_coder

    @property
    def taken(self) -> int:
        """Elements that have arrived in this task and have left their bundle. Some are perhaps not written yet."""
        return self._written + self._count

    @property
    def elements(self) -> int:
        """The same; of accumulators, the elements that they stand for."""
        return self._written + self._count + self._more

    def take(self, block: Block) -> None:
        """See `BlockOperation`. Times are inspected once per block, not per element."""
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
        """Return the error of a failed encoding: it names the first element that fails, and its transform."""
        return coder_error(self._windowed_coder.wrapped_value_coder, self.producer, error, values)

    def begin_task(self) -> None:
        """Begin a task with empty buffers."""
        self._written = self._more = 0
        if self._passed is not None:
            self._passed = Passed()

    def drain(self) -> None:
        """Write all buffered elements, after the task's last bundle."""
        counts = self._wiring.elements_out
        counts[self._channel] = counts.get(self._channel, 0) + self._written + self._more
        self._written = self._more = 0
        if self._passed is not None:
            self._wiring.passed.setdefault(self._channel, Passed()).add(self._passed)
            self._passed = Passed()


def _see(passed: Passed, block: Block) -> None:
    """Add a block's event times to the figures. It is called for each block, so it avoids calls."""
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
