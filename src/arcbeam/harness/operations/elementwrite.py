"""Writes of single elements: to the next stage, spread over all shards, or to the file of a side input.

Owns when encoded elements fill a blob. Must not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from apache_beam.coders.coder_impl import create_OutputStream
from apache_beam.utils.windowed_value import PaneInfoTiming, create
from typing_extensions import override

from arcbeam.engine.state.balancing import pack
from arcbeam.harness.encoding.blocks import Block, BlockCoder, WholeBlock, gathered
from arcbeam.harness.encoding.frames import BLOB_BYTES
from arcbeam.harness.operations.write import STREAMS_BYTES, Write
from arcbeam.model.plan import Routing
from arcbeam.model.urns import WriteSpec
from arcbeam.sizes import threshold

_BLOCK_ELEMENTS_MAX = threshold(2048, 2)
_ELEMENTS_MIN = threshold(16)
"""Elements of a batch; with fewer, taking it whole costs more."""
_BATCH_BYTES_MIN = threshold(1 << 10)
"""Bytes of a batch per shard; with fewer, writing its elements costs less."""
_HELD_BYTES_MAX = threshold(1 << 18, 2)
_WINDOWS_MAX = threshold(4096)


class ElementWrite(Write):
    """FORWARD and SPREAD: blocks, to the task's own place, or element by element in turn to all shards. Some batches
    stay whole.

    Restrictions of a splittable DoFn (one window each) are spread by their sizes.
    """

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, factory, spec, coder)
        settings = self._wiring.settings
        blocks = BlockCoder(coder, bulk=settings.bulk_values)
        self._append = blocks.write
        self._whole = blocks.whole if settings.bulk_values and settings.batches else None
        self._estimate = coder.wrapped_value_coder.get_impl().estimate_size
        self._spread = spec.routing == Routing.SPREAD
        self._targets = self._shards if self._spread else 1
        self._blob_bytes = max(4096, min(BLOB_BYTES, STREAMS_BYTES // self._targets))
        # Waiting elements take about a tenth of a blob per shard.
        self._held_bytes = self._blob_bytes // 10 * self._targets
        self._longest = min(_BLOCK_ELEMENTS_MAX * self._targets, max(_HELD_BYTES_MAX, self._targets))
        self.begin_task()

    @override
    def begin_task(self) -> None:
        super().begin_task()
        self._streams = [create_OutputStream() for _ in range(self._targets)]
        self._first = self._wiring.partition % self._targets
        self._place = 0 if self._spread else self._wiring.partition
        self._loads = [0.0] * self._targets
        self._clear()

    def _clear(self) -> None:
        self._blocks: list[Block] = []
        self._held = self._count = 0

    def takes_whole(self, converter: Any) -> bool:
        """Return whether batches of a converter may stay whole."""
        return self._whole is not None and self._whole.takes(converter)

    def take_batch(self, windowed_batch: Any, converter: Any) -> bool:
        """Take a batch of such a converter, if it is known to decode to the same elements.

        Returns:
            Whether it was taken; if not, its elements must be passed.
        """
        form, batch = self._whole, windowed_batch.values
        try:
            packed = form.pack(batch, converter) if converter.get_length(batch) >= _ELEMENTS_MIN else None  # type: ignore[union-attr]
        except Exception:
            # The code that reads or writes its elements reports the error.
            packed = None
        if packed is None:
            return False
        of = windowed_batch.as_empty_windowed_value()
        block = WholeBlock(form, packed, of.timestamp_micros, tuple(of.windows), of.pane_info)  # type: ignore[arg-type]
        fitting = self._held_bytes * len(block) // (block.size + 1)
        for part in block.parts(max(1, min(self._longest, fitting))):
            self.take(part)
        return True

    def _take(self, block: Block) -> None:
        if isinstance(block, WholeBlock):
            for each in block.in_each_window() if self._explode else (block,):
                # It outlives the batch, which user code may change.
                self._hold(each.with_batch(each.form.own(each.packed)), each.size)
            return
        values = block.values
        if self._explode and not block.in_one_window():
            exploded = [
                create(e.value, e.timestamp_micros, (w,), e.pane_info) for e in block.elements() for w in e.windows
            ]
            if not exploded:
                return
            block = Block.of(exploded)
            values = block.values
        try:
            size = self._estimate(values[0], True) + 1
        except Exception as e:
            raise self.coder_error(e, values) from e
        self._hold(block, size * len(values))

    def _hold(self, block: Block, size: int) -> None:
        self._blocks.append(block)
        self._count += len(block)
        self._held += size
        if self._held > self._held_bytes or self._count >= self._longest:
            self._encode_held()

    def _encode_held(self) -> None:
        """Encode the waiting blocks."""
        blocks = self._blocks
        self._clear()
        for block in gathered(blocks, _BATCH_BYTES_MIN * self._targets):
            self._encode(block)

    def _encode(self, block: Block) -> None:
        """Encode a block for its shards."""
        for target, part in self._parts(block):
            stream = self._streams[target]
            try:
                self._append(part, stream)
            except Exception as e:
                raise self.coder_error(e, block.values) from e
            if stream.size() > self._blob_bytes:
                self._streams[target] = create_OutputStream()
                self._put(self._place + target, 0, stream.get())
        self._first = (self._first + len(block)) % self._targets
        self._written += len(block)

    def _parts(self, block: Block) -> Iterator[tuple[int, Block]]:
        """Yield the part of a block for each shard.

        Elements go to the shards in turn. A batch is divided into equal consecutive parts. Restrictions are distributed
        by their sizes.
        """
        count, targets = len(block), self._targets
        if self._explode and targets > 1:
            parts: dict[int, list[Any]] = {}
            places = pack([sized for _, sized in block.values], targets, self._loads)
            for place, element in zip(places, block.elements(), strict=True):
                parts.setdefault((place + self._wiring.partition) % targets, []).append(element)
            yield from ((target, Block.of(some)) for target, some in parts.items())
            return
        for i in range(least := min(targets, count)):
            if isinstance(block, WholeBlock):
                part: Block = block.slice(count * i // least, count * (i + 1) // least)
            else:
                part = block if targets == 1 else block.slice(i, None, targets)
            yield (self._first + i) % targets, part

    @override
    def drain(self) -> None:
        self._encode_held()
        for target, stream in enumerate(self._streams):
            if stream.size():
                self._put(self._place + target, 0, stream.get())
        self._streams = []
        super().drain()


class SideWrite(Write):
    """SIDE: encoded elements by window, directly to an immutable file of the task."""

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, factory, spec, coder)
        self._encode = coder.wrapped_value_coder.get_impl().encode_to_stream
        self._window_impl = coder.window_coder.get_impl()
        self.begin_task()

    @override
    def begin_task(self) -> None:
        super().begin_task()
        self._streams: dict[Any, Any] = {}
        self._blob_bytes = BLOB_BYTES
        self._file: Any = None
        self._panes: dict[Any, int] = {}

    def _take(self, block: Block) -> None:
        if self._file is None:
            self._file = self._wiring.side_writer(self._channel)  # type: ignore[operator]
        if self._file.last:
            for element in block.elements():
                for window in element.windows:
                    if self._fires(window, element.pane_info):
                        self._streams.pop(window, None)
                        self._file.firing(self._window_impl.encode(window))
                    self._write(element.value, window)
            return
        for value, windows in zip(block.values, block.windows_of_each(), strict=False):
            for window in windows:
                self._write(value, window)

    def _fires(self, window: Any, pane: Any) -> bool:
        """Return whether an element is of another firing in its window than the last one; without a pane it is."""
        before, self._panes[window] = self._panes.get(window), pane.index
        return before is not None and (pane.timing == PaneInfoTiming.UNKNOWN or pane.index != before)

    def _write(self, value: Any, window: Any) -> None:
        stream = self._streams.get(window)
        if stream is None:
            stream = self._streams[window] = create_OutputStream()
            if len(self._streams) > _WINDOWS_MAX:
                self._flush()
                stream = self._streams[window] = create_OutputStream()
            self._blob_bytes = min(BLOB_BYTES, STREAMS_BYTES // len(self._streams))
        try:
            self._encode(value, stream, True)
        except Exception as e:
            raise self.coder_error(e, [value]) from e
        self._written += 1
        if stream.size() > self._blob_bytes:
            self._append(window, self._streams.pop(window))

    def _append(self, window: Any, stream: Any) -> None:
        if stream.size():
            self._file.append(self._window_impl.encode(window), stream.get())

    def _flush(self) -> None:
        for window, stream in self._streams.items():
            self._append(window, stream)
        self._streams = {}

    @override
    def drain(self) -> None:
        self._flush()
        if self._file is not None:
            done = self._file.close()
            if done is not None:
                self._wiring.side_files.append(done)
            self._file = None
        super().drain()
