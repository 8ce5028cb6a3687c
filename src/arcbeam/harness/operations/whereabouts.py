"""The transform that a worker is running, recorded so that it can be read after the process has died.

Owns the note: its fields in a block of shared memory, and how it is read. A killed process leaves no exception and no
report, but what it has written to a mapped file stays. Must not know where that file is, nor which code reads it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

SIZE: Final = 4096
_NAME: Final = 240
"""Bytes of a name; a longer name is truncated."""
_PLACE, _SAMPLED, _SAMPLED_AT, _LEFT = (slice(at, at + _NAME) for at in range(0, 4 * _NAME, _NAME))
_FIGURES: Final = struct.Struct("<BiQQ")
_FIGURES_AT: Final = 4 * _NAME
_TASK: Final = slice(1024, SIZE)

NOWHERE: Final = b" " * _NAME


class NoteMemory(Protocol):
    """The memory for notes: an `mmap`, or a buffer of this process."""

    def __setitem__(self, where: slice, what: bytes) -> None:
        """Write bytes."""

    def __getitem__(self, where: slice) -> Any:
        """Read bytes."""


def place_of(name: str) -> bytes:
    """Return a name in the form that `Whereabouts.enter` takes."""
    encoded = name.encode("utf-8", "backslashreplace")
    if len(encoded) > _NAME:
        encoded = encoded[: _NAME - 3].decode("utf-8", "ignore").encode() + b"..."
    return encoded.ljust(_NAME)


@dataclass(frozen=True, slots=True)
class Found:
    """A note, in its state when its writer died.

    Attributes:
        running: whether a task was running.
        task: the description of the task.
        place: the transform that processed elements last; "" if none did.
        sampled: the transform that ran at the last sample, while the same one processed elements; "" if unknown.
        left: the transform that called `os._exit`; "" if none did.
        code: the argument of that call.
        memory: resident bytes at the last sample; 0: unknown.
    """

    running: bool
    task: Mapping[str, Any]
    place: str
    sampled: str
    left: str
    code: int
    memory: int


class Whereabouts:
    """The note of this process. Writing to it takes a fraction of a microsecond, so each block may do so.

    Attributes:
        careful: transforms run one by one, so that the note is exact. Set after a worker has died.
    """

    def __init__(self) -> None:
        self._memory: NoteMemory = bytearray(SIZE)
        self._at = NOWHERE
        self.careful = False

    def use(self, memory: NoteMemory) -> None:
        """Use this memory for the following notes."""
        self._memory, self._at = memory, NOWHERE

    def begin(self, task: Mapping[str, Any]) -> None:
        """Record the begin of a task; its description must be JSON."""
        encoded = json.dumps(task).encode()[: _TASK.stop - _TASK.start]
        memory = self._memory
        memory[_TASK] = encoded.ljust(_TASK.stop - _TASK.start)
        for field in (_PLACE, _SAMPLED, _SAMPLED_AT, _LEFT):
            memory[field] = NOWHERE
        self._at = NOWHERE
        self._figures(running=True)

    def end(self) -> None:
        """Record the end of the task, successful or not."""
        self._figures(running=False)

    def enter(self, place: bytes) -> bytes:
        """Record that a transform processes elements; return the previous place, to be restored afterwards."""
        before, self._at = self._at, place
        self._memory[_PLACE] = place
        return before

    def sample(self, step: str, memory: int) -> None:
        """Record a sample: the transform that ran, and resident bytes."""
        self._memory[_SAMPLED_AT] = self._at
        self._memory[_SAMPLED] = place_of(step)
        self._figures(running=True, memory=memory)

    def record_exit(self, step: str, code: int) -> None:
        """Record that user code ends the process."""
        self._memory[_LEFT] = place_of(step)
        memory = _FIGURES.unpack(self._memory[slice(_FIGURES_AT, _FIGURES_AT + _FIGURES.size)])[2]
        self._figures(running=True, code=code, memory=memory)

    def _figures(self, *, running: bool, code: int = 0, memory: int = 0) -> None:
        self._memory[slice(_FIGURES_AT, _FIGURES_AT + _FIGURES.size)] = _FIGURES.pack(running, code, memory, 0)


def read(note: bytes) -> Found | None:
    """Return the content of a note; None if it is invalid or empty."""
    if len(note) < SIZE:
        return None
    running, code, memory, _ = _FIGURES.unpack_from(note, _FIGURES_AT)
    try:
        task = json.loads(note[_TASK])
    except ValueError:
        return None
    place, sampled, sampled_at, left = (
        note[field].rstrip(b" \0").decode("utf-8", "replace") for field in (_PLACE, _SAMPLED, _SAMPLED_AT, _LEFT)
    )
    return Found(bool(running), task, place, sampled if sampled_at == place else "", left, code, memory)


here: Final = Whereabouts()
"""The note of this process."""
