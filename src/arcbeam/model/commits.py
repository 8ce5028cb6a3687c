"""Values of a commit that the engine decides and the store keeps.

Owns their shapes. Must not know how the engine decides on a commit, nor how the store makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class CommitMode(StrEnum):
    """The state of the job after a commit."""

    RUNNING = "running"
    DRAINING = "draining"
    DRAINED = "drained"
    SUSPENDED = "suspended"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Committable:
    """Output that a sink must publish once the micro-batch is committed. Publishing it must be idempotent.

    Attributes:
        stage: the publisher: the name of the transform, which may run in any stage.
        payload: in a format that only the publisher reads.
    """

    stage: str
    payload: bytes = field(repr=False)


def deletion(name: str) -> str:
    """Return the request that deletes a savepoint, in place of a name."""
    return f"delete {name}"


def renaming(name: str, new: str) -> str:
    """Return the request that renames a savepoint, in place of a name."""
    return f"rename {name} {new}"


def name_change(change: str) -> tuple[str, str]:
    """Return the change of names that a request means: a name for a micro-batch, a `deletion` or a `renaming`.

    Returns:
        The deleted name, and the name that a micro-batch gets; "" for none.
    """
    # Names have no spaces. So code that only passes names on to a commit handles all three.
    match change.split(" "):
        case ["delete", name]:
            return name, ""
        case ["rename", name, new]:
            return name, new
    return "", change
