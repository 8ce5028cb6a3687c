"""Durable files of a streaming job: immutable named bytes that outlive every process and host of the job.

Owns the protocol and the rules for names. Backends: `folder` (a local folder), `objects` (object stores, through
obstore), `hadoop` (HDFS, through pyarrow); `backends` chooses by URL. Must not know what the bytes mean.

The temporary files of batch jobs (`filesystems`) build on these; they are local files, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arcbeam.sizes import threshold
from arcbeam.store.blobs.errors import MissingFileError


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A name, and the size of its bytes."""

    name: str
    size: int


class DurableBlobs(Protocol):
    """Named bytes. A name is a relative path with `/`; none of its parts starts with a dot.

    When a call returns, its writes are durable and visible to every reader. Readers see all bytes of a name or none.
    `str()` gives the location, without secrets. Thread-safe.

    Raises:
        IndeterminateError: by all methods: the outcome is unknown.
        DeterminateError: by all methods: refused, nothing happened.
        MissingFileError: by `get` and `get_range`.
    """

    def get(self, name: str) -> bytes:
        """Return all bytes of a name."""
        ...

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`; fewer, or none, if the bytes end before."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write the bytes of a name, and replace existing ones."""
        ...

    def put_file(self, name: str, path: Path) -> None:
        """Do the same with the bytes of a complete local file, streamed. The file stays, and must not change."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write the bytes of a name that has none. Return True if this call wrote them, False if the name has bytes.

        SUBTLE: False does not say who wrote them: a request that the network repeats finds its own bytes. A caller that
        must know puts a token into the bytes, and reads them.
        """
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        """Yield the names below the folder `prefix` that are greater than `after`, ascending.

        Stores promise little here: a name just written may be missing, and one just deleted may be listed.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete a name's bytes, if it has any."""
        ...

    def delete_each(self, names: Sequence[str]) -> None:
        """Delete the bytes of several names, in any order; with fewer requests, if the store supports that."""
        for name in names:
            self.delete(name)

    def tidy(self) -> None:
        """Remove unnamed leftovers of killed writers, if the store has such. Never removes what a live writer needs.

        Best effort: raises nothing.
        """
        return


class ClearableBlobs(DurableBlobs, Protocol):
    """Durable blobs that can all be removed: of a job that no longer needs them."""

    def clear(self) -> None:
        """Delete the bytes of all names. Bytes that are written meanwhile may stay."""
        ...


def checked(name: str) -> str:
    """Return the name if it is valid: a check for bugs in arcbeam."""
    if not name or any(not part or part.startswith(".") for part in name.split("/")):
        raise ValueError(f"not a name in a store: {name!r}")
    return name


_PART_BYTES = threshold(8 << 20, 1 << 16)


def pieces(blobs: DurableBlobs, name: str, size: int) -> Iterator[bytes]:
    """Yield the bytes of a name, which should have `size` bytes, in pieces.

    SUBTLE: it requests one byte more than that. A caller that counts the bytes detects a longer, wrong file.
    """
    at = 0
    while at <= size:
        length = min(_PART_BYTES, size - at + 1)
        data = blobs.get_range(name, at, length)
        if data:
            yield data
        if len(data) < length:
            return
        at += length


def missing(name: str, where: object) -> MissingFileError:
    """Return the error for a name without bytes."""
    return MissingFileError(
        f"'{name}' is missing in '{where}'",
        "if files were deleted or moved by hand, restore them; else resume from a savepoint",
    )
