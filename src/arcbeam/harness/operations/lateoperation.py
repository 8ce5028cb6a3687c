"""The output for elements that a grouping drops, if the pipeline requests it (`arcbeam.io.WithLate`).

Owns the operation after the grouping's read, and the form of a dropped element. Must not know the code that drops.
"""

from __future__ import annotations

from typing import Any

from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, create

from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.operations import registering
from arcbeam.harness.operations.blockoperation import BlockOperation, count_infos
from arcbeam.io.late import LateElement
from arcbeam.model.urns import LATE_TAG, LATE_URN
from arcbeam.sizes import threshold

ELEMENTS_MAX = threshold(512)
"""Dropped elements that are collected before they are emitted."""


class LateOperation(BlockOperation):
    """Passes on groups unchanged, and emits dropped elements, which arrive separately."""

    def __init__(self, name: Any, spec: Any, factory: Any, coder: Any, tags: list[str]) -> None:
        super().__init__(name, spec, factory, coder)
        self._tags = tags
        self._late = tags.index(LATE_TAG)

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            self._outputs[1 - self._late].emit(block)

    def put(self, dropped: Block) -> None:
        """Emit dropped elements; at least one. A bundle must be open."""
        with self.scoped_process_state:
            self._outputs[self._late].emit(dropped)

    def pcollection_count_monitoring_infos(self, tag_to_pcollection_id: Any) -> dict[Any, Any]:
        """See the SDK's `DoOperation`."""
        infos: dict[Any, Any] = super().pcollection_count_monitoring_infos(tag_to_pcollection_id)
        return infos | count_infos(dict(zip(self._tags, self.receivers, strict=True)), tag_to_pcollection_id)


def late_operation(operations: dict[str, Any]) -> LateOperation | None:
    """Return a stage's late operation; None if the pipeline does not request dropped elements."""
    return next((op for op in operations.values() if isinstance(op, LateOperation)), None)


def dropped(key: Any, value: Any, micros: int, window: Any, watermark: int, expired: bool) -> Any:
    """Return a dropped element as a windowed value.

    Args:
        key: the SDK's key.
        value: the SDK's value.
        micros: its event time.
        window: the SDK's window.
        watermark: the watermark when it was dropped, in microseconds.
        expired: whether its window had expired; otherwise the trigger had finished.
    """
    at, now = Timestamp(micros=micros), Timestamp(micros=watermark)
    element = LateElement(key, value, at, window, now, "expired" if expired else "closed")
    return create(element, micros, (window,), PANE_INFO_UNKNOWN)


def register() -> None:
    """Register our operation in the SDK's factory. Idempotent."""
    registering.register(LATE_URN, LateOperation)
