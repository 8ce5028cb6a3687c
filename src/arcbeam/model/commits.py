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
    """What a sink must publish once the micro-batch is committed. Publishing it again must change nothing.

    Attributes:
        stage: who publishes it: the name of the transform, which may run in any stage.
        payload: in a form that only the publisher reads.
    """

    stage: str
    payload: bytes = field(repr=False)


def deletion(name: str) -> str:
    """What gives a savepoint's name up, where a name is asked for."""
    return f"delete {name}"


def renaming(name: str, new: str) -> str:
    """What gives a savepoint another name, where a name is asked for."""
    return f"rename {name} {new}"


def name_change(wish: str) -> tuple[str, str]:
    """What becomes of names by what is asked of a commit: a name for its micro-batch, a `deletion` or a `renaming`.

    Returns:
        The name that is given up, and the one that a micro-batch gets; "" for none.
    """
    # Names have no spaces. So whoever has a micro-batch made for the sake of a name, and does not care which, has them
    # all.
    match wish.split(" "):
        case ["delete", name]:
            return name, ""
        case ["rename", name, new]:
            return name, new
    return "", wish
