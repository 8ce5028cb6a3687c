"""Where packages meet that must not know each other: small protocols.

Owns no behaviour. `store` implements what `engine` asks for; `harness` implements what workers ask for; `testing` has
some in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Protocol


class StateView(Protocol):
    """An ordered key-value space of one shard: a committed version, with the running micro-batch's changes on top.

    Keys are compared as unsigned bytes. What was put is read at once; nothing is durable before the micro-batch's
    commit.
    """

    @property
    def written(self) -> int:
        """Bytes of the keys and values that were put, and of the keys that were deleted: it grows with each of both."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none."""

    def put(self, key: bytes, value: bytes) -> None:
        """Sets a key's value."""

    def delete(self, key: bytes) -> None:
        """Removes a key; nothing happens if it is not there."""

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end, ascending; to the end of the space if `end` is None.

        Writes are allowed while it is iterated; whether it sees those ahead of it is not said.
        """


class OpenStage(Protocol):
    """A stage that is open in a worker, from task to task. What runs its user code may be another process."""

    @property
    def id(self) -> str:
        """Of the stage, in the plan."""

    def needs_teardown(self) -> bool:
        """Whether `close` calls a teardown of the user's."""

    def running_step(self, frame: FrameType | None = None) -> str:
        """The name of the transform that runs now; "" if unknown. Called from any thread.

        Args:
            frame: the innermost Python frame of the thread that runs the task's bundles; None if unknown.
        """

    def abandon(self) -> None:
        """Ends a task that has failed. The stage is not used again, but for `close`."""

    def shut_down(self) -> list[str]:
        """Calls `shutdown` where user code offers it; returns what went wrong, for people."""

    def close(self) -> list[str]:
        """Tears down, and returns what went wrong, for people. The stage is not used again."""
