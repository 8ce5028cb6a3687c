"""GroupByKey with a trigger that may fire more than once, on a bounded input.

Owns running the SDK's trigger driver over one key at a time: the watermark stays at the beginning of time while the
key's elements arrive, then passes the end of time. Values of a key are held in memory while its panes are made.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from apache_beam import coders
from apache_beam.transforms.trigger import (
    GeneralTriggerDriver,
    InMemoryUnmergedState,
    MergeableStateAdapter,
)
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP

from arcbeam.harness.frames import key_groups
from arcbeam.model.rows import Row, TaskReport

if TYPE_CHECKING:
    from arcbeam.harness.processor import StageProcessor


class _Clock:
    def time(self) -> float:
        return time.time()


class TriggeredFeed:
    """See `arcbeam.harness.feeds.Feed`."""

    def __init__(self, processor: StageProcessor) -> None:
        self._bundles = processor.bundles
        self._memory = processor.settings.group_memory_bytes
        self._windowing = processor.root.windowing
        coder = processor.root.pcoll_coder
        element = coder.wrapped_value_coder
        self._decode_key = element.key_coder().get_impl().decode
        value_coder = element.value_coder().value_coder()
        self._decode = coders.ListCoder(coders.WindowedValueCoder(value_coder, coder.window_coder)).get_impl().decode

    def run(self, rows: Iterable[Row], report: TaskReport) -> None:
        """See `Feed`."""
        for encoded, windows in key_groups(rows, self._memory):
            key = self._decode_key(encoded)
            driver = GeneralTriggerDriver(self._windowing, _Clock())
            state = InMemoryUnmergedState()
            for payload in windows[b""]:
                # One element at a time: a pane's contents must not depend on how payloads were cut.
                for element in self._decode(payload):
                    self._output(key, driver.process_elements(state, [element], MIN_TIMESTAMP, MIN_TIMESTAMP))
            while state.timers:
                fired = [(at, window, name, domain)
                         for window, (name, domain, at, _) in state.get_and_clear_timers()]
                for at, window, name, domain in sorted(fired, key=lambda timer: timer[0]):
                    self._output(key, driver.process_timer(window, name, domain, at, state))
            self._output(key, self._leftovers(driver, state))

    def _leftovers(self, driver: Any, state: Any) -> Iterable[Any]:
        """What a trigger has not fired when its window expires is its last pane."""
        tagged = MergeableStateAdapter(state) if getattr(driver, "is_merging", False) else state
        for window in list(tagged.known_windows()) if tagged is not state else []:
            if tagged.get_state(window, driver.TOMBSTONE) or not tagged.get_state(window, driver.ELEMENTS):
                continue
            yield driver._output(window, True, tagged, MAX_TIMESTAMP, True)

    def _output(self, key: Any, panes: Iterable[Any]) -> None:
        self._bundles.emit([pane.with_value((key, pane.value)) for pane in panes])
