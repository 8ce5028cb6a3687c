"""Feeds: how the rows of a task become elements of bundles, one class per way of reading.

Owns decoding and grouping on the read side. Bundles are cut by `harness.processor.Bundles`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.transforms.window import GlobalWindow, WindowFn
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue

from arcbeam.harness.frames import Chunks, Runs, Values, key_groups
from arcbeam.model.rows import Row, TaskReport

if TYPE_CHECKING:
    from arcbeam.harness.processor import StageProcessor

_BATCH = 512
"""Groups handed to a bundle at a time."""
_BATCH_BYTES = 1 << 20
"""Encoded values after which a batch of groups is handed over earlier: all of it is decoded at once."""
_EAGER_BYTES = 1 << 20
"""A group smaller than this (encoded) is given to user code as a list, a larger one as a lazy iterable."""

ONLY_PANE = PaneInfo(True, True, PaneInfoTiming.ON_TIME, 0, 0)


class Feed(Protocol):
    """Reads a task's rows into bundles."""

    def run(self, rows: Iterable[Row], report: TaskReport) -> None:
        """Feeds everything; notes in the report what is left over."""
        ...


def feed_of(processor: StageProcessor) -> Feed:
    """The feed for a stage's way of reading."""
    mode = processor.root.how.mode
    if mode == "keyed":
        from arcbeam.harness.keyed import KeyedFeed

        return KeyedFeed(processor)
    if mode == "triggered":
        from arcbeam.harness.triggered import TriggeredFeed

        return TriggeredFeed(processor)
    if mode == "restrictions":
        from arcbeam.harness.restrictions import RestrictionFeed

        return RestrictionFeed(processor)
    if mode == "groups":
        return GroupFeed(processor)
    return ImpulseFeed(processor) if mode == "impulse" else ElementFeed(processor)


class ImpulseFeed:
    """One empty element in the global window, for each row (there is one)."""

    def __init__(self, processor: StageProcessor) -> None:
        self._bundles = processor.bundles

    def run(self, rows: Iterable[Row], report: TaskReport) -> None:
        """See `Feed`."""
        for _ in rows:
            self._bundles.emit([WindowedValue(b"", MIN_TIMESTAMP, (GlobalWindow(),))])


class ElementFeed:
    """Encoded windowed values, in runs."""

    def __init__(self, processor: StageProcessor) -> None:
        self._bundles = processor.bundles
        self._decode = Runs(processor.root.written_coder).decode

    def run(self, rows: Iterable[Row], report: TaskReport) -> None:
        """See `Feed`."""
        emit, decode = self._bundles.emit, self._decode
        for row in rows:
            for elements in decode(row.blob):
                emit(elements)


class GroupFeed:
    """GroupByKey whose trigger fires once: one pane per key and window, at the end of the window."""

    def __init__(self, processor: StageProcessor) -> None:
        self._bundles = processor.bundles
        self._memory = processor.settings.group_memory_bytes
        coder = processor.root.written_coder
        element = coder.wrapped_value_coder
        self._decode_key: Callable[[bytes], Any] = element.key_coder().get_impl().decode
        self._decode_values: Callable[[bytes], list[Any]] = coders.ListCoder(element.value_coder()).get_impl().decode
        self._decode_window: Callable[[bytes], Any] = coder.window_coder.get_impl().decode
        self._windowfn: WindowFn = processor.root.windowing.windowfn
        self._global = isinstance(coder.window_coder, GlobalWindowCoder)
        self._decoded = 0

    def run(self, rows: Iterable[Row], report: TaskReport) -> None:
        """See `Feed`."""
        groups = key_groups(rows, self._memory)
        elements = self._globally(groups) if self._global else self._windowed(groups)
        batch: list[Any] = []
        self._decoded = 0
        for element in elements:
            batch.append(element)
            if len(batch) >= _BATCH or self._decoded > _BATCH_BYTES:
                self._bundles.emit(batch)
                batch, self._decoded = [], 0
        self._bundles.emit(batch)

    def _values(self, chunks: Chunks) -> Any:
        if chunks.size > _EAGER_BYTES:
            return Values(chunks, self._decode_values)
        self._decoded += chunks.size
        first, *rest = chunks
        values = self._decode_values(first)
        for payload in rest:
            values += self._decode_values(payload)
        return values

    def _globally(self, groups: Iterable[tuple[bytes, dict[bytes, Chunks]]]) -> Iterator[Any]:
        window = GlobalWindow()
        with_value = WindowedValue(None, window.max_timestamp(), (window,), ONLY_PANE).with_value
        decode_key, values_of = self._decode_key, self._values
        for key, windows in groups:
            yield with_value((decode_key(key), values_of(windows[b""])))

    def _windowed(self, groups: Iterable[tuple[bytes, dict[bytes, Chunks]]]) -> Iterator[Any]:
        merging = self._windowfn.is_merging()
        known: dict[bytes, Any] = {}
        for encoded_key, encoded_windows in groups:
            key = self._decode_key(encoded_key)
            by_window: dict[Any, Chunks] = {}
            for encoded, chunks in encoded_windows.items():
                window = known.get(encoded)
                if window is None:
                    if len(known) > 10_000:
                        known.clear()
                    window = known[encoded] = self._decode_window(encoded)
                by_window[window] = chunks
            if merging and len(by_window) > 1:
                by_window = merge_windows(self._windowfn, by_window)
            for window, chunks in by_window.items():
                yield WindowedValue((key, self._values(chunks)), window.max_timestamp(), (window,), ONLY_PANE)


def payload_decoder(values_coder: Any) -> Callable[[bytes], list[Any]]:
    """Decodes a payload of values, given the coder of the GroupByKey's iterable."""
    decode: Callable[[bytes], list[Any]] = (
        coders.ListCoder(
            values_coder.value_coder() if hasattr(values_coder, "value_coder") else values_coder._elem_coder
        )
        .get_impl()
        .decode
    )
    return decode


def merge_windows(windowfn: Any, by_window: dict[Any, Chunks]) -> dict[Any, Chunks]:
    """Lets the window function merge the windows of one key, and joins their values."""
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
