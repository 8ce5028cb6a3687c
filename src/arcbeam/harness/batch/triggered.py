"""GroupByKey with a trigger that may fire more than once, or whose panes have timestamps of their own.

Feeds the engine's windows (`engine.grouping.keywindows`), one key after the other: the watermark stays at the beginning
of time while the key's elements arrive, then passes everything. Values beyond the memory budget move to a local file.
Must not decide when a pane is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from apache_beam import coders
from apache_beam.metrics.metricbase import MetricName
from typing_extensions import override

from arcbeam.engine.grouping import triggers
from arcbeam.engine.grouping.contents import InMemory
from arcbeam.engine.grouping.effects import DropHeld, DropLate, DropReason, EmitPane
from arcbeam.engine.grouping.keywindows import Arrival, Columns, KeyWindows
from arcbeam.engine.grouping.openwindow import Clocks, Rules
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.harness.batch.inputs import InputDriver, payload_decoder
from arcbeam.harness.batch.keyed import ProcessingClock, SystemClock
from arcbeam.harness.bundle.metrics import DROPPED_CLOSED, DROPPED_LATE
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.strategies import strategy_of, windowing_proto
from arcbeam.harness.bundle.windows import Windows, column, their_pane
from arcbeam.harness.encoding.blocks import Block, BlockCoder, Each
from arcbeam.harness.encoding.frames import Chunks, GroupValues, Spool, key_groups
from arcbeam.harness.operations.lateoperation import ELEMENTS_MAX, dropped, late_operation
from arcbeam.model.rows import BundleReport, Row
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import Window
from arcbeam.sizes import by_identity, threshold

_BATCH = threshold(512)
"""Maximum number of panes that are emitted together; the first is emitted alone, as in `inputs`."""
_BATCH_VALUES = threshold(1 << 16)
"""Values in panes that are emitted earlier."""
_SLICE = threshold(256)
"""Elements per reading of the clock, if the trigger uses it."""
_EXPIRED = DropReason.EXPIRED
_BEGINNING = Clocks(Timestamp(0), MIN_TIMESTAMP, MIN_TIMESTAMP)
_END = Clocks(Timestamp(0), MAX_TIMESTAMP, MAX_TIMESTAMP)


class _Codec:
    """Encodes values for a file, and decodes them."""

    def __init__(self, value_coder: Any, values_coder: Any) -> None:
        self.encode: Callable[[list[Any]], bytes] = coders.ListCoder(value_coder).get_impl().encode
        self.decode = payload_decoder(values_coder)


class _Contents(InMemory):
    """The values of a window. A pane's values are a list, or `GroupValues` if some of them are in a file.

    Attributes:
        spilled: earlier values, which `spill` has moved to a file; None if there are none.
    """

    __slots__ = ("_codec", "spilled")

    def __init__(self, codec: _Codec) -> None:
        super().__init__()
        self._codec = codec
        self.spilled: Chunks | None = None

    def spill(self, spool: Spool) -> None:
        """Move the values to a file."""
        if self.values:
            self.spilled = self.spilled or Chunks()
            self.spilled.append(self._codec.encode(self.values))
            self.spilled.spill(spool)
            self.values = []

    @override
    def take(self, keep: bool, *, lend: bool = True) -> list[Any] | GroupValues:
        values, spilled = super().take(keep), self.spilled
        if spilled is None:
            return values  # type: ignore[no-any-return]
        self.spilled = None
        if keep:
            # SUBTLE: the pane keeps the chunks; later values must not be added to them.
            self.spilled = Chunks()
            self.spilled.extend(spilled)
        if values:
            spilled.append(self._codec.encode(values))
        return GroupValues(spilled, self._codec.decode)

    @override
    def clear(self) -> None:
        super().clear()
        self.spilled = None

    @override
    def absorb(self, other: _Contents) -> None:
        super().absorb(other)
        if self.spilled is None:
            self.spilled = other.spilled
        elif other.spilled is not None:
            self.spilled.extend(other.spilled)


class TriggeredInput(InputDriver):
    """See `arcbeam.harness.batch.inputs.InputDriver`.

    Args:
        processor: the processor of a stage whose root is a grouping.
        clock: the clock of processing-time triggers.
    """

    def __init__(self, processor: StageProcessor, clock: ProcessingClock | None = None) -> None:
        self._bundles = processor.bundles
        self._root: Any = processor.root
        self._clock: ProcessingClock = clock or SystemClock()
        self._memory = processor.settings.group_memory_bytes
        coder = processor.root.pcoll_coder
        self._windows = Windows(coder.window_coder)
        strategy = bounded_strategy_of(windowing_proto(processor), processor.root.windowing.windowfn, self._windows)
        self._rules = Rules(strategy)
        self._timed, self._merges = strategy.trigger.timed(), strategy.merging is not None
        element = coder.wrapped_value_coder
        value_coder = element.value_coder().value_coder()
        self._decode_key: Callable[[bytes], Any] = element.key_coder().get_impl().decode
        self._read = BlockCoder(coders.WindowedValueCoder(value_coder, coder.window_coder)).read
        self._codec = _Codec(value_coder, element.value_coder())
        self._panes: list[EmitPane] = []
        self._values: list[Any] = []
        self._held, self._most = 0, 1
        self._closed = self._expired = 0
        self._late_operation = late_operation(processor.sdk.ops)
        self._late: list[Any] = []

    @override
    def run(self, rows: Iterable[Row], report: BundleReport) -> None:
        self._panes, self._values, self._held, self._late = [], [], 0, []
        self._most = 1
        self._closed = self._expired = 0
        for encoded, windows in key_groups(rows, self._memory):
            self._group(encoded, windows[b""])
        self._hand_over()
        self._put_late()
        self._count(DROPPED_CLOSED, self._closed)
        self._count(DROPPED_LATE, self._expired)

    def _count(self, name: MetricName, elements: int) -> None:
        if elements:
            self._bundles.open()  # metrics are those of a bundle
            self._root.metrics_container.get_counter(name).inc(elements)

    def _group(self, encoded: bytes, chunks: Chunks) -> None:
        key, timed = self._decode_key(encoded), self._timed
        windows = KeyWindows(self._rules, encoded, _BEGINNING, self._contents)
        spool: Spool | None = None
        # Decoded elements take several times the memory of their encodings.
        held, budget = 0, self._memory // 8
        for payload in chunks:
            for block in self._read(payload):
                if timed:
                    for part in block.parts(_SLICE):
                        windows.advance(self._now(_BEGINNING), ticked=True)
                        self._add(windows, part)
                else:
                    self._add(windows, block)
            if windows.out:
                self._take(key, windows)
            held += len(payload)
            if held > budget:
                spool = spool or Spool()
                for contents in windows.contents():
                    contents.spill(spool)
                held = 0
        windows.advance(self._now(_END) if timed else _END)
        self._take(key, windows)

    def _contents(self, window: Window) -> _Contents:
        return _Contents(self._codec)

    def _now(self, clocks: Clocks) -> Clocks:
        return clocks._replace(now=Timestamp(self._clock.now()))

    def _add(self, windows: KeyWindows[_Contents], block: Block) -> None:
        if self._merges:
            windows.add_merging(arrivals_of(block, self._windows))
        else:
            windows.add(columns_of(block, self._windows))

    def _take(self, key: Any, windows: KeyWindows[_Contents]) -> None:
        """Emit a key's panes, and count drops."""
        for effect in windows.out:
            if type(effect) is EmitPane:
                contents = effect.contents
                self._panes.append(effect)
                self._values.append((key, contents))
                if type(contents) is list:
                    self._held += len(contents)
                if len(self._panes) >= self._most or self._held > _BATCH_VALUES:
                    self._hand_over()
            elif type(effect) is DropLate:
                if effect.reason is _EXPIRED:
                    self._expired += 1
                else:
                    self._closed += 1
                if self._late_operation is not None:
                    self._put_out(key, (effect.value,), effect.timestamp, effect)
            elif type(effect) is DropHeld:
                self._closed += effect.count
                if self._late_operation is not None:
                    self._put_out(key, effect.contents, effect.window.max_timestamp, effect)
        windows.out.clear()

    def _put_out(self, key: Any, values: Iterable[Any], time: Timestamp, drop: DropLate | DropHeld) -> None:
        """Emit dropped values, which the pipeline requests."""
        window = self._windows.theirs(drop.window)
        expired = isinstance(drop, DropLate) and drop.reason is _EXPIRED
        for value in values:
            self._late.append(dropped(key, value, time, window, drop.watermark, expired))
            if len(self._late) >= ELEMENTS_MAX:
                self._put_late()

    def _put_late(self) -> None:
        late, self._late = self._late, []
        if late:
            assert self._late_operation is not None
            self._bundles.put(self._late_operation.put, Block.of(late))

    def _hand_over(self) -> None:
        panes, self._panes = self._panes, []
        values, self._values, self._held = self._values, [], 0
        self._most = min(2 * self._most, _BATCH)
        if not panes:
            return
        _, windows, _, times, infos = zip(*panes, strict=True)
        self._bundles.emit_block(
            Block(values, column(times, int), column(windows, self._their_tuple), column(infos, their_pane))
        )

    def _their_tuple(self, window: Window) -> tuple[Any, ...]:
        # Most windows that merge have one pane: a tuple is not worth caching.
        return (self._windows.theirs(window),) if self._merges else self._windows.all_theirs((window,))


def bounded_strategy_of(proto: Any, windowfn: Any, windows: Windows) -> Strategy:
    """Return the engine's strategy for a bounded input; see `strategy_of`."""
    # Synchronized processing time ends together with a bounded input.
    return strategy_of(proto, windowfn, windows, triggers.Never)


def arrivals_of(block: Block, windows: Windows) -> list[Arrival]:
    """Return the elements of a block, once for each of their windows, in order.

    Args:
        block: at least one element.
        windows: the windows of the PCollection.
    """
    each, ours = zip(block.values, block.times(), block.windows_of_each(), strict=False), windows.remembered
    return [(value, Timestamp(time), ours(window)) for value, time, theirs in each for window in theirs]


def columns_of(block: Block, windows: Windows) -> dict[Window, Columns]:
    """Return values and times of a block by window, in order.

    Args:
        block: at least one element.
        windows: the windows of the PCollection.
    """
    values, micros, theirs, ours = block.values, block.micros, block.windows, windows.ours
    times: Sequence[Any] = micros if type(micros) is Each else [micros] * len(values)
    if type(theirs) is not Each:
        return dict.fromkeys(map(ours, theirs), (values, times))
    columns: dict[Window, Any] = {}
    groups: dict[int, tuple[Any, list[Any]]] = by_identity()
    for value, time, each in zip(values, times, theirs, strict=True):
        found = groups.get(id(each))
        if found is None:
            # SUBTLE: a window may be in several tuples; its elements stay in order of arrival.
            group = [columns.setdefault(window, ([], [])) for window in map(ours, each)]
            found = groups[id(each)] = each, group
        for some, some_times in found[1]:
            some.append(value)
            some_times.append(time)
    return columns
