"""A stage of a bounded pipeline in a worker: a task is one pass over its rows.

Owns which input drives a stage's bundles, and the loop of a task. What a bundle is, is `harness.bundle.processor`'s.
Must not know Spark.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any

from arcbeam.harness.batch.inputs import ElementInput, GroupInput, ImpulseInput, InputDriver
from arcbeam.harness.batch.keyed import KeyedInput
from arcbeam.harness.batch.restrictions import RestrictionInput
from arcbeam.harness.batch.triggered import TriggeredInput
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.harness.state.handler import InProcessStateHandler
from arcbeam.model import texts
from arcbeam.model.plan import Stage
from arcbeam.model.rows import BundleReport, Outbox, Row, SideStore


class BoundedStage:
    """One stage, ready to run tasks in this process; see `arcbeam.model.interfaces.OpenStage`.

    Args:
        stage: what to run.
        settings: of the job.
        sides: the stage's side inputs, complete; None if it has none.

    Attributes:
        processor: its bundles are the input's.
        input: makes bundles of rows.
    """

    def __init__(self, stage: Stage, settings: Settings, sides: SideStore | None) -> None:
        self.processor = StageProcessor(stage, settings, InProcessStateHandler(stage.side_channels))
        self._sides = sides
        self.input: InputDriver = input_of(self.processor)

    def run(self, rows: Iterable[Row], outbox: Outbox, partition: int, side_writer: Any) -> BundleReport:
        """Runs one task: all bundles over its rows.

        Args:
            rows: of this task's shard, in ascending order of bucket.
            outbox: takes what the stage writes.
            partition: the task's Spark partition.
            side_writer: makes a writer for an iterable side input, by channel.

        Returns:
            The report, but for what only Spark's side knows (attempt, worker).
        """
        processor = self.processor
        processor.begin_task(outbox, partition, side_writer, self._sides)
        report = BundleReport(stage=processor.stage.id, shard=partition)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            try:
                self.input.run(rows, report)
                if not report.residuals:
                    # A DoFn's input ends here as far as this task knows; what is left is for another task.
                    processor.prepare()
                processor.end_task(report)
            except BaseException:
                processor.abandon_task()
                raise
        named = {(f"{w.category.__module__}.{w.category.__qualname__}", texts.said(str, w.message)) for w in caught}
        report.warnings = sorted(named)
        return report

    def finalize(self) -> None:
        """Runs the bundle finalization callbacks; call when the task's output is safe."""
        self.processor.bundles.callbacks.run()

    @property
    def id(self) -> str:
        """See `OpenStage`."""
        return self.processor.stage.id

    def needs_teardown(self) -> bool:
        """See `OpenStage`."""
        return self.processor.needs_teardown()

    def running_step(self, frame: FrameType | None = None) -> str:
        """See `OpenStage`."""
        return self.processor.running_step(frame)

    def abandon(self) -> None:
        """See `OpenStage`."""
        self.processor.abandon_task()

    def shut_down(self) -> list[str]:
        """See `OpenStage`."""
        return self.processor.graceful.shut_down()

    def close(self) -> list[str]:
        """See `OpenStage`."""
        return self.processor.close()


def input_of(processor: StageProcessor) -> InputDriver:
    """The input driver for a stage's way of reading."""
    # Every splittable stage is driven restriction by restriction, also where a truncation stands in front.
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
