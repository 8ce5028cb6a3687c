"""What stages of a simulated job do, as records; and what is raised when something is wrong.

Owns their shapes. Must not know who writes or checks them.
"""

from __future__ import annotations

from typing import NamedTuple

from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import PaneInfo, Window


class Broken(AssertionError):
    """An invariant does not hold, or the result is not what it must be."""


class Out(NamedTuple):
    """A stage has put something out.

    Attributes:
        pane: of a grouping's.
        joined: whether the side input had anything; of what a stage with one puts out.
        elements: how many are in it; of a grouping's.
        aside: all that it has read of the side input, sorted; of what a stage with one puts out.
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
    aside: tuple[bytes, ...] | None = None


class Drop(NamedTuple):
    """A stage has dropped something.

    Attributes:
        late: it was too late, not just for a trigger that had finished.
        watermark: the stage's input watermark then.
        elements: how many they were.
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
    """What one attempt of a task has to publish for one stage in one shard.

    Attributes:
        micro-batch, epoch: for which it was made.
        time: of the run of the micro-batch.
    """

    micro_batch: int
    epoch: int
    records: tuple[Record, ...]
    time: Timestamp
