"""Small protocols between packages that must not know each other.

Owns no behaviour. `store` implements the protocols that `engine` uses; `harness` implements those that workers use;
`testing` has some implementations in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Protocol


class StateView(Protocol):
    """An ordered key-value space of one shard: a committed version, with the running micro-batch's changes on top.

    Keys are compared as unsigned bytes. A write is visible at once, but durable only after the micro-batch's commit.
    """

    @property
    def written(self) -> int:
        """The bytes of all keys and values that were put, and of all keys that were deleted; it only grows."""

    @property
    def empty(self) -> bool:
        """Whether it has no entry. Cheap if the shard was empty before the micro-batch."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key's value."""

    def delete(self, key: bytes) -> None:
        """Delete a key, if it exists."""

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries with start <= key < end, ascending; to the end of the space if `end` is None.

        Writes are allowed during the iteration; it is unspecified whether it sees those ahead of it.
        """


class OpenStage(Protocol):
    """A stage that is open in a worker, across tasks. Its user code may run in another process."""

    @property
    def id(self) -> str:
        """The id of the stage in the plan."""

    def needs_teardown(self) -> bool:
        """Return whether `close` calls a teardown of the user's."""

    def running_step(self, frame: FrameType | None = None) -> str:
        """Return the name of the transform that runs now; "" if unknown. Any thread may call this.

        Args:
            frame: the innermost Python frame of the thread that runs the task's bundles; None if unknown.
        """

    def abandon(self) -> None:
        """End a failed task. Afterwards only `close` may be called."""

    def shut_down(self) -> list[str]:
        """Call `shutdown` of user code that has it; return the errors, for people."""

    def close(self) -> list[str]:
        """Tear down; return the errors, for people. Afterwards the stage must not be used."""
