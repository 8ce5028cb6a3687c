"""Records of the actions of a simulated job's stages, and the error for a violation.

Owns the shapes of the records. Must not know which component writes or checks them.
"""

from __future__ import annotations

from typing import NamedTuple

from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import PaneInfo, Window


class Broken(AssertionError):
    """An invariant does not hold, or a result is wrong."""


class Out(NamedTuple):
    """An output of a stage.

    Attributes:
        pane: the pane, if the stage is a grouping.
        joined: whether the side input had contents; for a stage with a side input.
        elements: the number of elements in it; for a grouping.
        side_input: all atoms read from the side input, sorted; for a stage with a side input.
    """

    stage: str
    output: str
    key: bytes
    atoms: tuple[bytes, ...]
    time: Timestamp
    window: Window | None = None
    pane: PaneInfo | None = None
    joined: bool | None = None
    elements: int = 1
    side_input: tuple[bytes, ...] | None = None


class Drop(NamedTuple):
    """A drop by a stage.

    Attributes:
        late: it was late. False: only its trigger had finished.
        watermark: the stage's input watermark at that moment.
        elements: the number of elements dropped.
    """

    stage: str
    key: bytes
    atoms: tuple[bytes, ...]
    time: Timestamp | None
    window: Window
    late: bool
    watermark: Timestamp
    elements: int = 1


Record = Out | Drop


class Part(NamedTuple):
    """The committable of one stage in one shard, from one attempt of a task.

    Attributes:
        micro-batch, epoch: the micro-batch and epoch of the attempt.
        time: the time of this run of the micro-batch.
        stages: the stages that its pipeline had: some join later.
    """

    micro_batch: int
    epoch: int
    records: tuple[Record, ...]
    time: Timestamp
    stages: frozenset[str]
