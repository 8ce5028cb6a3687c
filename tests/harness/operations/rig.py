"""Write operations without a bundle around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.runners.common import NameContext
from apache_beam.runners.worker.statesampler import StateSampler
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.counters import CounterFactory
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.harness.operations import groupwrite, writes
from arcbeam.harness.operations.taskcontext import OperationContext, TaskSettings
from arcbeam.model.files import SideFile
from arcbeam.model.plan import Routing
from arcbeam.model.rows import Row
from arcbeam.model.urns import WriteSpec

MIB = 1 << 20


class Rig:
    """Write operations alone: with what the SDK's factory would pass, and a list for their rows."""

    def __init__(self, shards: int = 3, memory: int = 128 * MIB, partition: int = 0) -> None:
        self.rows: list[Row] = []
        self.most = 0
        counters = CounterFactory()
        self.counter_factory, self.state_sampler = counters, StateSampler("test", counters)
        self.context = self.data_channel_factory = OperationContext(
            TaskSettings(shards=shards, group_memory_bytes=memory), partition=partition
        )
        self.context.outbox = self
        self.context.side_writer = MemorySide

    def put(self, row: Row) -> None:
        self.rows.append(row)

    def op(self, routing: Routing, element: Any, window: Any = None, explode: bool = False) -> Any:
        coder = coders.WindowedValueCoder(element, window or GlobalWindowCoder())
        kind = writes._WRITES[routing]
        if kind is groupwrite.GroupWrite and window is not None:
            kind = groupwrite.WindowedGroupWrite
        op = kind(NameContext("step", "step"), self, WriteSpec(7, routing, explode), coder)
        op.producer = op.key_producer = "the step"
        return op

    def written(self, op: Any, elements: Iterable[Any]) -> list[Row]:
        """Run one task; return its rows."""
        self.rows.clear()
        op.begin_task()
        for element in elements:
            op.process(element)
        op.finish()
        op.drain()
        return list(self.rows)


class MemorySide:
    """Replaces the file of a side input."""

    appended: list[tuple[bytes, bytes]]
    last = False

    def __init__(self, channel: int) -> None:
        MemorySide.appended = []

    def append(self, window: bytes, chunk: bytes) -> None:
        MemorySide.appended.append((window, chunk))

    def close(self) -> SideFile:
        return SideFile(7, -1, "", sum(len(chunk) for _, chunk in MemorySide.appended))


def globally(values: Iterable[Any], at: int = 0) -> Iterator[Any]:
    with_value = WindowedValue(None, Timestamp(at), (GlobalWindow(),)).with_value
    return map(with_value, values)


def pairs(key: Any = None, value: Any = None) -> Any:
    anything = coders.FastPrimitivesCoder()
    return coders.TupleCoder([key or anything, value or anything])
