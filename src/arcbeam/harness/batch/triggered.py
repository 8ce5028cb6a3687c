"""GroupByKey with a trigger that may fire more than once, or whose panes have timestamps of their own.

Owns driving `harness.batch.panes` over one key at a time: the watermark stays at the beginning of time while the
key's elements arrive, then passes everything. What a key holds beyond the budget goes to a local file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from apache_beam import coders
from apache_beam.metrics.metricbase import MetricName
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.engine.grouping import triggers
from arcbeam.harness.batch.inputs import payload_decoder
from arcbeam.harness.batch.keyed import Clock, WallClock
from arcbeam.harness.batch.panes import Panes, Strategy
from arcbeam.harness.bundle.metrics import DROPPED_CLOSED, DROPPED_LATE
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.strategies import empty_panes, trigger_of, windowing_proto
from arcbeam.harness.encoding.blocks import Block, BlockCoder
from arcbeam.harness.encoding.frames import Chunks, Spool, Values, key_groups
from arcbeam.harness.operations.lateoperation import MOST_TOGETHER, dropped, late_operation
from arcbeam.model.rows import BundleReport, Row
from arcbeam.sizes import threshold

_BATCH = threshold(512)
"""Panes handed to a bundle at a time."""
_BATCH_VALUES = threshold(1 << 16)
"""Values in panes after which they are handed over earlier."""
_SLICE = threshold(256)
"""Elements for which the clock is read once, if a trigger follows it."""


class TriggeredInput:
    """See `arcbeam.harness.batch.inputs.InputDriver`.

    Args:
        processor: of a stage whose root is a grouping.
        clock: what processing-time triggers follow.
    """

    def __init__(self, processor: StageProcessor, clock: Clock | None = None) -> None:
        self._bundles = processor.bundles
        self._root: Any = processor.root
        self._clock: Clock = clock or WallClock()
        self._memory = processor.settings.group_memory_bytes
        self._strategy = strategy_of(windowing_proto(processor), processor.root.windowing.windowfn)
        coder = processor.root.pcoll_coder
        element = coder.wrapped_value_coder
        value_coder = element.value_coder().value_coder()
        self._decode_key: Callable[[bytes], Any] = element.key_coder().get_impl().decode
        self._decode = BlockCoder(coders.WindowedValueCoder(value_coder, coder.window_coder)).decode
        self._encode_values: Callable[[list[Any]], bytes] = coders.ListCoder(value_coder).get_impl().encode
        self._decode_values = payload_decoder(element.value_coder())
        self._batch: list[Any] = []
        self._batch_values = 0
        self._late_operation = late_operation(processor.sdk.ops)
        self._late: list[Any] = []

    def run(self, rows: Iterable[Row], report: BundleReport) -> None:
        """See `InputDriver`."""
        self._batch, self._batch_values, self._late = [], 0, []
        closed = late = 0
        for encoded, windows in key_groups(rows, self._memory):
            panes = self._group(self._decode_key(encoded), windows[b""])
            closed += panes.dropped_closed
            late += panes.dropped_late
        self._hand_over()
        self._put_late()
        self._count(DROPPED_CLOSED, closed)
        self._count(DROPPED_LATE, late)

    def _count(self, name: MetricName, elements: int) -> None:
        if elements:
            self._bundles.open()  # metrics are those of a bundle
            self._root.metrics_container.get_counter(name).inc(elements)

    def _group(self, key: Any, chunks: Chunks) -> Panes:
        panes = Panes(self._strategy, keeps_dropped=self._late_operation is not None)
        timed = self._strategy.timed
        spool: Spool | None = None
        # Decoded elements take several times the space of their encodings.
        held, budget = 0, self._memory // 8
        for payload in chunks:
            elements = self._decode(payload)
            if timed:
                for start in range(0, len(elements), _SLICE):
                    now = self._clock.now()
                    panes.tick(now)
                    panes.add(elements[start : start + _SLICE], now)
            else:
                panes.add(elements, 0)
            self._output(key, panes)
            held += len(payload)
            if held > budget:
                spool = spool or Spool()
                panes.spill(functools.partial(self._put_away, spool))
                held = 0
        panes.finish(self._clock.now() if timed else 0)
        self._output(key, panes)
        return panes

    def _put_away(self, spool: Spool, spilled: Chunks | None, values: list[Any]) -> Chunks:
        spilled = spilled or Chunks()
        spilled.append(self._encode_values(values))
        spilled.spill(spool)
        return spilled

    def _output(self, key: Any, panes: Panes) -> None:
        taken, panes.out = panes.out, []
        for pane in taken:
            values: Any = pane.values
            self._batch_values += len(values)
            if pane.spilled is not None:
                if values:
                    pane.spilled.append(self._encode_values(values))
                values = Values(pane.spilled, self._decode_values)
            self._batch.append(WindowedValue((key, values), pane.timestamp, (pane.window,), pane.info))
            if len(self._batch) >= _BATCH or self._batch_values > _BATCH_VALUES:
                self._hand_over()

        if panes.dropped:
            self._put_out_dropped(key, panes)

    def _put_out_dropped(self, key: Any, panes: Panes) -> None:
        """What was dropped goes out, where the pipeline asks for it."""
        taken, panes.dropped = panes.dropped or (), []
        for window, values, spilled, micros, watermark, expired in taken:
            for value in chain(() if spilled is None else Values(spilled, self._decode_values), values):
                self._late.append(dropped(key, value, micros, window, watermark, expired))
                if len(self._late) >= MOST_TOGETHER:
                    self._put_late()

    def _put_late(self) -> None:
        late, self._late = self._late, []
        if late:
            assert self._late_operation is not None
            self._bundles.put(self._late_operation.put, Block.of(late))

    def _hand_over(self) -> None:
        batch, self._batch, self._batch_values = self._batch, [], 0
        self._bundles.emit(batch)


def strategy_of(proto: Any, windowfn: Any) -> Strategy:
    """How to group, for a `WindowingStrategy`; the SDK's object of it has lost half of what it says.

    Args:
        proto: the strategy.
        windowfn: the same strategy's window function.
    """
    empty_on_time, empty_last = empty_panes(proto)
    return Strategy(
        windowfn=windowfn,
        # Synchronized processing time is at its end when a bounded input is.
        trigger=trigger_of(proto.trigger, triggers.Never),
        accumulating=proto.accumulation_mode == runner_pb.AccumulationMode.ACCUMULATING,
        timestamp={runner_pb.OutputTime.EARLIEST_IN_PANE: min, runner_pb.OutputTime.LATEST_IN_PANE: max}.get(
            proto.output_time
        ),
        lateness=proto.allowed_lateness * 1000,
        empty_on_time=empty_on_time,
        empty_last=empty_last,
    )
