"""Durable blobs in memory.

Owns nothing durable: it replaces a store that has no faults. Must not know what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from typing_extensions import override

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

    @override
    def get(self, name: str) -> bytes:
        try:
            return self.data[name]
        except KeyError:
            raise missing(name, self) from None

    @override
    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self.get(name)[start : start + length]

    @override
    def put(self, name: str, data: bytes) -> None:
        self.data[checked(name)] = data

    @override
    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes())

    @override
    def create(self, name: str, data: bytes) -> bool:
        if checked(name) in self.data:
            return False
        self.data[name] = data
        return True

    @override
    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        start = f"{prefix}/"
        names = sorted(name for name in self.data if name.startswith(start) and name > after)
        return iter([BlobInfo(name, len(self.data[name])) for name in names])

    @override
    def delete(self, name: str) -> None:
        self.data.pop(name, None)
