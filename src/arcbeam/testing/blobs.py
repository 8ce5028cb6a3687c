"""Durable blobs in memory.

Owns nothing durable: it replaces a store that has no faults. Must not know what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from arcbeam.store.blobs.durable import BlobInfo, DurableBlobs, checked, missing


class MemoryBlobs(DurableBlobs):
    """`DurableBlobs` in a dictionary.

    Attributes:
        data: the bytes by name, for tests that check them.
    """

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def __str__(self) -> str:
        return "memory"

    def get(self, name: str) -> bytes:
        """See `DurableBlobs`."""
        try:
            return self.data[name]
        except KeyError:
            raise missing(name, self) from None

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """See `DurableBlobs`."""
        return self.get(name)[start : start + length]

    def put(self, name: str, data: bytes) -> None:
        """See `DurableBlobs`."""
        self.data[checked(name)] = data

    def put_file(self, name: str, path: Path) -> None:
        """See `DurableBlobs`."""
        self.put(name, path.read_bytes())

    def create(self, name: str, data: bytes) -> bool:
        """See `DurableBlobs`."""
        if checked(name) in self.data:
            return False
        self.data[name] = data
        return True

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        """See `DurableBlobs`."""
        start = f"{prefix}/"
        names = sorted(name for name in self.data if name.startswith(start) and name > after)
        return iter([BlobInfo(name, len(self.data[name])) for name in names])

    def delete(self, name: str) -> None:
        """See `DurableBlobs`."""
        self.data.pop(name, None)
