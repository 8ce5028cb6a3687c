"""Inputs: how the rows of a task become elements of bundles, one class per way of reading.

Owns decoding and grouping on the read side. `harness.bundle.processor.Bundles` cuts bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.transforms.window import GlobalWindow, WindowFn
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue
from typing_extensions import override

from arcbeam.harness.batch.portions import ElementPortions, KeyPortions, Portions
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.encoding.blocks import Block, BlockCoder, Each
from arcbeam.harness.encoding.bulk import ListBytes
from arcbeam.harness.encoding.frames import Chunks, GroupValues, KeyGroup, key_groups
from arcbeam.model.rows import BundleReport, Row
from arcbeam.sizes import cache_size, threshold

_BATCH = threshold(512)
"""Maximum number of groups that are passed to a bundle together.

The first is passed alone, then twice as many each time: the task may stop if they take long (`harness.batch.portions`).
"""
_BATCH_BYTES = threshold(1 << 20)
"""Bytes of encoded values at which a batch of groups is passed on earlier: all of it is decoded in memory."""
_KNOWN_WINDOWS = cache_size(10_000)
_EAGER_BYTES = threshold(1 << 20)
"""A group smaller than this (encoded) is passed to user code as a list, a larger one as a lazy iterable."""

_END = int(MAX_TIMESTAMP.micros)

ONLY_PANE = PaneInfo(True, True, PaneInfoTiming.ON_TIME, 0, 0)


class InputDriver(Protocol):
    """Reads a task's rows into bundles."""

    def run(self, rows: Iterable[Row], report: BundleReport) -> None:
        """Process all rows; record the residuals in the report."""
        ...

    def portions(self, rows: Iterable[Row]) -> Portions:
        """Return rows, in ascending order of bucket, in portions that different tasks may process."""
        return KeyPortions(rows)


class ImpulseInput(InputDriver):
    """One empty element in the global window for each row (there is only one)."""

    def __init__(self, processor: StageProcessor) -> None:
        self._bundles = processor.bundles

    @override
    def run(self, rows: Iterable[Row], report: BundleReport) -> None:
        for _ in rows:
            self._bundles.emit([WindowedValue(b"", MIN_TIMESTAMP, (GlobalWindow(),))])


class ElementInput(InputDriver):
    """Encoded windowed values, in blocks."""

    def __init__(self, processor: StageProcessor) -> None:
        self._bundles = processor.bundles
        self._coder = BlockCoder(processor.root.written_coder)

    @override
    def portions(self, rows: Iterable[Row]) -> Portions:
        return ElementPortions(rows, self._coder)

    @override
    def run(self, rows: Iterable[Row], report: BundleReport) -> None:
        emit, read = self._bundles.emit_block, self._coder.read
        for row in rows:
            for block in read(row.blob):
                emit(block)


class GroupInput(InputDriver):
    """GroupByKey whose trigger fires once: one pane per key and window, at the end of the window."""

    def __init__(self, processor: StageProcessor) -> None:
        self._bundles = processor.bundles
        self._memory = processor.settings.group_memory_bytes
        coder = processor.root.written_coder
        element = coder.wrapped_value_coder
        self._decode_key: Callable[[bytes], Any] = element.key_coder().get_impl().decode
        self._decode_values: Callable[[bytes], list[Any]] = ListBytes(element.value_coder()).decode
        self._decode_window: Callable[[bytes], Any] = coder.window_coder.get_impl().decode
        self._windowfn: WindowFn = processor.root.windowing.windowfn
        self._global = isinstance(coder.window_coder, GlobalWindowCoder)
        self._decoded = 0

    @override
    def run(self, rows: Iterable[Row], report: BundleReport) -> None:
        groups = key_groups(rows, self._memory)
        self._decoded = 0
        if self._global:
            self._globally(groups)
        else:
            self._windowed(groups)

    def _values(self, chunks: Chunks) -> Any:
        if chunks.size > _EAGER_BYTES:
            return GroupValues(chunks, self._decode_values)
        self._decoded += chunks.size
        first, *rest = chunks
        values = self._decode_values(first)
        for payload in rest:
            values += self._decode_values(payload)
        return values

    def _globally(self, groups: Iterable[KeyGroup]) -> None:
        window = GlobalWindow()
        micros, windows = window.max_timestamp().micros, (window,)
        decode_key, values_of, emit = self._decode_key, self._values, self._bundles.emit_block
        batch: list[Any] = []
        most = 1
        for key, chunks_by_window in groups:
            batch.append((decode_key(key), values_of(chunks_by_window[b""])))
            if len(batch) >= most or self._decoded > _BATCH_BYTES:
                emit(Block(batch, micros, windows, ONLY_PANE))
                batch, self._decoded, most = [], 0, min(2 * most, _BATCH)
        if batch:
            emit(Block(batch, micros, windows, ONLY_PANE))

    def _windowed(self, groups: Iterable[KeyGroup]) -> None:
        merging = self._windowfn.is_merging()
        known: dict[bytes, tuple[int, tuple[Any, ...]]] = {}
        batch, micros, windows, most = list[Any](), Each(), Each(), 1
        for encoded_key, chunks_by_window in groups:
            key = self._decode_key(encoded_key)
            for time, window, chunks in self._by_window(chunks_by_window, merging, known):
                batch.append((key, self._values(chunks)))
                micros.append(time)
                windows.append(window)
                if len(batch) >= most or self._decoded > _BATCH_BYTES:
                    self._bundles.emit_block(Block(batch, micros, windows, ONLY_PANE))
                    batch, micros, windows, self._decoded = [], Each(), Each(), 0
                    most = min(2 * most, _BATCH)
        if batch:
            self._bundles.emit_block(Block(batch, micros, windows, ONLY_PANE))

    def _by_window(
        self, encoded: dict[bytes, Chunks], merging: bool, known: dict[bytes, tuple[int, tuple[Any, ...]]]
    ) -> Iterator[tuple[int, tuple[Any, ...], Chunks]]:
        """Yield (timestamp in microseconds, tuple of the window, values) of one key; `known` caches decoded windows."""
        by_window: dict[Any, Chunks] = {}
        for encoded_window, chunks in encoded.items():
            found = known.get(encoded_window)
            if found is None:
                if len(known) > _KNOWN_WINDOWS:
                    known.clear()
                window = self._decode_window(encoded_window)
                found = known[encoded_window] = min(window.max_timestamp().micros, _END), (window,)
            if not merging or len(encoded) == 1:
                yield *found, chunks
            else:
                by_window[found[1][0]] = chunks
        if by_window:
            for window, chunks in merge_windows(self._windowfn, by_window).items():
                yield min(window.max_timestamp().micros, _END), (window,), chunks


def payload_decoder(values_coder: Any) -> Callable[[bytes], list[Any]]:
    """Return the decoder of a payload of values, for the coder of the GroupByKey's iterable."""
    decode: Callable[[bytes], list[Any]] = (
        coders.ListCoder(
            values_coder.value_coder() if hasattr(values_coder, "value_coder") else values_coder._elem_coder
        )
        .get_impl()
        .decode
    )
    return decode


def merge_windows(windowfn: Any, by_window: dict[Any, Chunks]) -> dict[Any, Chunks]:
    """Merge the windows of one key with the window function, and join their values."""
    merged = dict(by_window)

    class Context(WindowFn.MergeContext):  # type: ignore[misc]  # Beam is untyped
        def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
            joined = Chunks()
            for window in to_be_merged:
                found = merged.pop(window, None)
                if found is not None:
                    joined.extend(found)
            if merge_result in merged:
                joined.extend(merged[merge_result])
            merged[merge_result] = joined

    windowfn.merge(Context(list(by_window)))
    return merged
