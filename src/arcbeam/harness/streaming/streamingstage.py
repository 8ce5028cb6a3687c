"""A stage of an unbounded pipeline in a worker.

Owns how a task of the stage begins and ends, and the conversion of input rows for the engine. Must not know where its
user code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from typing_extensions import override

from arcbeam.engine.grouping.groupings import Combined, KeyElements
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.stagekinds import StageSpec, Stateful
from arcbeam.engine.task.taskstage import Counting, StageRunner, TaskStage
from arcbeam.harness.bundle.finalization import Callbacks
from arcbeam.harness.bundle.metrics import dropped
from arcbeam.harness.encoding.frames import COUNT, records
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.harness.streaming.elements import keyed_elements, plain_elements
from arcbeam.harness.streaming.scripts import scripted_elements
from arcbeam.harness.streaming.stagecode import StageCode
from arcbeam.model.interfaces import StateView
from arcbeam.model.rows import BundleReport, Outbox, PublishedSides, Row, SideWriter
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window


class StreamingStage(TaskStage):
    """One stage, ready to run micro-batches; see `TaskStage`.

    Args:
        code: its user code.
        release: releases what the stage uses outside of this process; None if it uses nothing.

    Attributes:
        code: the same.
        parts: the parts of the stage.
    """

    def __init__(self, code: StageCode, release: Callable[[], object] | None = None) -> None:
        self.code, self.parts, self._release = code, code.parts, release
        self._clock = TaskClock()
        self._sides: PublishedSides | None = None

    @property
    @override
    def id(self) -> str:
        return self.parts.processor.stage.id

    @property
    @override
    def writers(self) -> Sequence[Counting]:
        return self.parts.writers

    @override
    def spec(self, placed: StagePlacement) -> StageSpec:
        parts = self.parts
        return StageSpec(placed, parts.kind, parts.windows.decode, parts.stable, parts.prepares)

    @override
    def begin(
        self,
        outbox: Outbox,
        shard: int,
        side_writer: Callable[[int], SideWriter],
        sides: PublishedSides,
        now: Timestamp | None,
    ) -> None:
        self._clock, self._sides = TaskClock(now), sides
        self.parts.processor.begin_task(outbox, shard, side_writer, sides)

    @override
    def elements(self, rows: Iterable[Row]) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        parts = self.parts
        if parts.keyed:
            # A key with state is entered once. Elements that are stored stay as they arrived.
            join = isinstance(parts.kind, Stateful) and not parts.codec.waits
            memory = parts.processor.settings.group_memory_bytes
            return keyed_elements(rows, parts.blocks, parts.codec, memory, join=join)
        return plain_elements(rows, parts.blocks, parts.codec)

    @override
    def scripted(self, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, KeyElements]]:
        return scripted_elements(elements, self.parts.codec, self.parts.decode_scripted)

    @override
    def runner(self, view: StateView, placed: StagePlacement) -> StageRunner:
        return self.code.runner(view, placed, self._clock)

    @override
    def entries(self, row: Row) -> Iterator[tuple[bytes, bytes, bytes]]:
        for key, window, start, end in records(row.blob):
            yield window, key, row.blob[start + COUNT.size : end]

    @override
    def last_moment(self, channel: int, window: bytes) -> Timestamp:
        coder, windows = self.parts.written[channel]
        return windows.ours(coder.decode(window)).max_timestamp

    @override
    def sides_needed(self, window: Window) -> Sequence[tuple[int, bytes]]:
        return self.parts.sides.needed(window)

    @override
    def side_until(self, channel: int, window: bytes) -> Timestamp:
        return self.parts.sides.until(channel, window)

    @override
    def side_exists(self, channel: int, window: bytes) -> bool:
        assert self._sides is not None
        return self.parts.sides.is_there(channel, window, self._sides)

    @override
    def end(self, report: BundleReport, *, late: int, closed: int) -> None:
        processor = self.parts.processor
        processor.end_task(report)
        report.needs_teardown = self.needs_teardown()
        if late or closed:
            report.metrics += dropped(processor.root.name_context.transform_id, late, closed)

    @override
    def callbacks(self) -> Callbacks | None:
        return self.parts.processor.bundles.callbacks.take() or None

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples so far; see `StageSampler.taken`."""
        return self.code.samples()

    @override
    def needs_teardown(self) -> bool:
        return self._release is not None or self.parts.processor.needs_teardown()

    @override
    def running_step(self, frame: FrameType | None = None) -> str:
        return self.code.running_step(frame)

    @override
    def abandon(self) -> None:
        self.code.abandon()
        self.parts.processor.abandon_task()

    @override
    def shut_down(self) -> list[str]:
        return self.parts.processor.graceful.shut_down()

    @override
    def close(self) -> list[str]:
        if self.code.restrictions is not None:
            self.code.restrictions.close()
        errors = self.parts.processor.close()
        if self._release is not None:
            self._release()
        return errors
