"""What the engine decides of a commit, and the store keeps: values that both know.

Owns their shapes. Must not know how a commit comes about, nor how it becomes real.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class CommitMode(StrEnum):
    """How the job stands with a commit."""

    RUNNING = "running"
    DRAINING = "draining"
    DRAINED = "drained"
    SUSPENDED = "suspended"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Committable:
    """What a sink must publish once the step is committed. Publishing it again must change nothing.

    Attributes:
        stage: who publishes it: the name of the transform, which may run in any stage.
        payload: in a form that only the publisher reads.
    """

    stage: str
    payload: bytes = field(repr=False)
