"""Where the files of an unbounded job live: immutable named bytes that outlive every process and host of the job.

Owns the protocol and the rules for names. Backends: `folder` (a local folder), `objects` (object stores, through
obstore), `hadoop` (HDFS, through pyarrow); `backends` chooses by URL. Must not know what the bytes mean.

On these stand the temporary files of bounded jobs (`filesystems`), which are local files, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arcbeam.sizes import threshold
from arcbeam.store.blobs.errors import MissingFileError


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A name, and the number of its bytes."""

    name: str
    size: int


class DurableBlobs(Protocol):
    """Named bytes. A name is a relative path with `/`, none of whose parts starts with a dot.

    What a call that returned has written is durable, and seen by every reader. Readers see all bytes of a name or none.
    `str()` of it is the location, without secrets. Safe among threads.

    Raises:
        IndeterminateError: by all methods: no clear answer.
        DeterminateError: by all methods: refused, nothing happened.
        MissingFileError: by `get` and `get_range`.
    """

    def get(self, name: str) -> bytes:
        """All bytes of a name."""
        ...

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """The bytes from `start`, `length` of them; fewer, or none, if the bytes end before."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Gives a name its bytes, whatever it had."""
        ...

    def put_file(self, name: str, path: Path) -> None:
        """The same with the bytes of a complete local file, streamed. The file stays, and must not change any more."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Gives a name its bytes if it has none: True if this call did, False if the name has bytes.

        SUBTLE: False does not say whose: a request that is sent twice on its way finds what it wrote itself. Who must
        know puts a token into the bytes, and reads them.
        """
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        """The names below the folder `prefix` that are greater than `after`, ascending.

        Stores promise little here: what was just written may be missing, what was just deleted may be there.
        """
        ...

    def delete(self, name: str) -> None:
        """Takes a name's bytes away; nothing happens if it has none."""
        ...

    def tidy(self) -> None:
        """Removes what killed writers left under no name, where a store has such. Never what a live writer needs.

        Best effort: it raises nothing.
        """
        return


class ClearableBlobs(DurableBlobs, Protocol):
    """Durable blobs that may all go: of a job that needs none of them any more."""

    def clear(self) -> None:
        """Takes away the bytes of all names. What is written meanwhile may stay."""
        ...


def checked(name: str) -> str:
    """The name, if it is one. A guard against mistakes of ours."""
    if not name or any(not part or part.startswith(".") for part in name.split("/")):
        raise ValueError(f"not a name in a store: {name!r}")
    return name


_PART_BYTES = threshold(8 << 20, 1 << 16)


def pieces(blobs: DurableBlobs, name: str, size: int) -> Iterator[bytes]:
    """The bytes of a name that should have so many, piece by piece; not more than some beyond.

    SUBTLE: it asks for one byte more than there should be. Who counts what comes finds that a longer one is another.
    """
    at = 0
    while at <= size:
        asked = min(_PART_BYTES, size - at + 1)
        data = blobs.get_range(name, at, asked)
        if data:
            yield data
        if len(data) < asked:
            return
        at += asked


def missing(name: str, where: object) -> MissingFileError:
    """The error for a name without bytes."""
    return MissingFileError(
        f"'{name}' is missing in '{where}'",
        "if files were deleted or moved by hand, bring them back; else resume from a savepoint",
    )
