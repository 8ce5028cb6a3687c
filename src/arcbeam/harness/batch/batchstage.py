"""A stage of a bounded pipeline in a worker: a task is one pass over its rows.

Owns which input drives a stage's bundles, and the main loop of a task. `harness.bundle.processor` owns bundles. Must
not know Spark.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any

from typing_extensions import override

from arcbeam.harness.batch.inputs import ElementInput, GroupInput, ImpulseInput, InputDriver
from arcbeam.harness.batch.keyed import KeyedInput
from arcbeam.harness.batch.portions import Portions
from arcbeam.harness.batch.restrictions import RestrictionInput
from arcbeam.harness.batch.triggered import TriggeredInput
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.harness.state.handler import InProcessStateHandler
from arcbeam.model import texts
from arcbeam.model.interfaces import OpenStage
from arcbeam.model.plan import Stage
from arcbeam.model.rows import BundleReport, Outbox, Row, SideStore


class BoundedStage(OpenStage):
    """One stage, ready to run tasks in this process; see `arcbeam.model.interfaces.OpenStage`.

    Args:
        stage: the stage to run.
        settings: the job's settings.
        sides: the stage's side inputs, complete; None if it has none.

    Attributes:
        processor: the stage's processor. The input uses its bundles.
        input: makes bundles from rows.
    """

    def __init__(self, stage: Stage, settings: TaskSettings, sides: SideStore | None) -> None:
        self.processor = StageProcessor(stage, settings, InProcessStateHandler(stage.side_channels))
        self._sides = sides
        self.input: InputDriver = input_of(self.processor)

    def run(self, rows: Iterable[Row], outbox: Outbox, partition: int, side_writer: Any) -> BundleReport:
        """Run one task: all bundles over its rows.

        Args:
            rows: the rows of the task's shard, in ascending order of bucket.
            outbox: receives the rows that the stage writes.
            partition: the task's Spark partition.
            side_writer: creates a writer for an iterable side input, by channel.

        Returns:
            The report, without the fields that only Spark's side knows (attempt, worker).
        """
        processor = self.processor
        processor.begin_task(outbox, partition, side_writer, self._sides)
        report = BundleReport(stage=processor.stage.id, shard=partition)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            try:
                self.input.run(rows, report)
                if not report.residuals:
                    # As far as this task knows, a DoFn's input ends here. Residuals are processed by other tasks.
                    processor.prepare()
                processor.end_task(report)
            except BaseException:
                processor.abandon_task()
                raise
        named = {
            (f"{w.category.__module__}.{w.category.__qualname__}", texts.safe_text(str, w.message)) for w in caught
        }
        report.warnings = sorted(named)
        return report

    def portions(self, rows: Iterable[Row]) -> Portions:
        """Return the rows of an input in portions, of which this task may take some and leave the rest to others."""
        return self.input.portions(rows)

    def finalize(self) -> None:
        """Run the bundle finalization callbacks. Call this when the task's output is safe."""
        self.processor.bundles.callbacks.run()

    @property
    @override
    def id(self) -> str:
        return self.processor.stage.id

    @override
    def needs_teardown(self) -> bool:
        return self.processor.needs_teardown()

    @override
    def running_step(self, frame: FrameType | None = None) -> str:
        return self.processor.running_step(frame)

    @override
    def abandon(self) -> None:
        self.processor.abandon_task()

    @override
    def shut_down(self) -> list[str]:
        return self.processor.graceful.shut_down()

    @override
    def close(self) -> list[str]:
        return self.processor.close()


def input_of(processor: StageProcessor) -> InputDriver:
    """Return the input driver for a stage's way of reading."""
    # Every splittable stage is driven restriction by restriction, even if a truncation precedes the operation.
    match "restrictions" if processor.stage.splittable else processor.root.how.mode:
        case "restrictions":
            return RestrictionInput(processor)
        case "keyed":
            return KeyedInput(processor)
        case "triggered":
            return TriggeredInput(processor)
        case "groups":
            return GroupInput(processor)
        case "impulse":
            return ImpulseInput(processor)
        case _:
            return ElementInput(processor)
