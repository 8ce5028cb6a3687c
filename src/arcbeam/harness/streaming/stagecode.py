"""The user code of a stage, for the stage's tasks: all in which stages differ that run in different places.

Owns this difference, and user code that runs in this process. A stage with SDK workers: `arcbeam.fnapi.stage`.
"""

from __future__ import annotations

from types import FrameType
from typing import Any, Protocol

from typing_extensions import override

from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.task.taskstage import StageRunner
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.harness.streaming.restrictions import StageRestrictions, StreamingRestrictions
from arcbeam.harness.streaming.runner import StreamingRunner
from arcbeam.harness.streaming.stageparts import StageParts
from arcbeam.model.interfaces import StateView


class StageCode(Protocol):
    """The user code of an open stage.

    Attributes:
        parts: the parts of the stage.
        restrictions: the restrictions of a splittable stage; None for others.
    """

    parts: StageParts
    restrictions: StageRestrictions | None

    def runner(self, view: StateView, placed: StagePlacement, clock: TaskClock) -> StageRunner:
        """Return the user code in a shard; see `TaskStage.runner`."""

    def running_step(self, frame: FrameType | None) -> str:
        """Return the name of the transform that runs now; see `arcbeam.model.interfaces.OpenStage`."""

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples so far; see `StageSampler.taken`."""

    def abandon(self) -> None:
        """Give up the open bundle: its task has failed."""


class EmbeddedCode(StageCode):
    """User code that runs in this process.

    Args:
        parts: the parts of the stage.
    """

    def __init__(self, parts: StageParts) -> None:
        self.parts = parts
        self.restrictions = StreamingRestrictions(parts.processor) if parts.processor.stage.splittable else None

    @override
    def runner(self, view: StateView, placed: StagePlacement, clock: TaskClock) -> StreamingRunner:
        return StreamingRunner(self.parts, view, placed, clock, self.restrictions)

    @override
    def running_step(self, frame: FrameType | None) -> str:
        return self.parts.processor.running_step(frame)

    @override
    def samples(self) -> list[dict[str, Any]]:
        sampler = self.parts.sampler
        return [] if sampler is None else sampler.taken(self.parts.processor.sdk.ops)

    @override
    def abandon(self) -> None:
        """See `StageCode`: the processor's bundle is the only one."""
