"""An object store (S3 and compatible stores, GCS, Azure) or this process's memory as durable blobs.

Owns the translation of obstore's errors into determinate and indeterminate ones. Must not know what the bytes mean.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from typing_extensions import override

from arcbeam.store.blobs.durable import BlobInfo, ClearableBlobs, checked, missing
from arcbeam.store.blobs.errors import DeterminateError, IndeterminateError, MissingFileError

_REFUSED = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
)

_PART_BYTES = 8 << 20


class _Fork:
    """Whether obstore works here. SUBTLE: in a forked child of a process that has used it, every call waits forever."""

    def __init__(self) -> None:
        self._used = self._broken = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._broken = self._used

    def check(self, where: object) -> None:
        """Check before each use."""
        if self._broken:
            raise DeterminateError(
                f"'{where}' cannot be used in a process that was forked after an object store was used",
                "start processes by spawning them, or fork before an object store is used",
            )
        self._used = True


_fork = _Fork()


class ObjectBlobs(ClearableBlobs):
    """A prefix of an object store; see `DurableBlobs`.

    A write is durable when the store has answered. obstore repeats transient failures, within its `retry_config`.

    Args:
        store: an obstore store, whose prefix is the location.
        where: its name in errors.
    """

    def __init__(self, store: Any, where: str) -> None:
        self._store = store
        self._where = where

    def __str__(self) -> str:
        return self._where

    @override
    def get(self, name: str) -> bytes:
        with self._errors("read", name):
            return bytes(obstore.get(self._store, checked(name)).bytes())

    @override
    def get_range(self, name: str, start: int, length: int) -> bytes:
        if not length:
            return b""
        _fork.check(self)
        try:
            return bytes(obstore.get_range(self._store, checked(name), start=start, length=length))
        except Exception:
            # Stores answer differently to a range after the end; the size decides.
            with self._errors("read", name):
                size = obstore.head(self._store, name)["size"]
                if start >= size:
                    return b""
                return bytes(obstore.get_range(self._store, name, start=start, length=min(length, size - start)))

    @override
    def put(self, name: str, data: bytes) -> None:
        with self._errors("written", name):
            obstore.put(self._store, checked(name), data, use_multipart=False)

    def put_file(self, name: str, path: Path) -> None:
        """See `DurableBlobs`: a large file in parts, a few of which are in memory at once."""
        with self._errors("written", name):
            obstore.put(self._store, checked(name), path, chunk_size=_PART_BYTES, max_concurrency=2)

    def create(self, name: str, data: bytes) -> bool:
        """See `DurableBlobs`: the store's own conditional put."""
        with self._errors("written", name):
            try:
                obstore.put(self._store, checked(name), data, mode="create")
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
        return True

    @override
    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        with self._errors("listed", prefix):
            found = [
                BlobInfo(meta["path"], meta["size"])
                for chunk in obstore.list(self._store, prefix or None, offset=after or None)
                for meta in chunk
            ]
        # Not every store lists in order.
        yield from sorted((info for info in found if info.name > after), key=lambda info: info.name)

    @override
    def delete(self, name: str) -> None:
        with contextlib.suppress(MissingFileError), self._errors("deleted", name):
            obstore.delete(self._store, checked(name))

    @override
    def delete_each(self, names: Sequence[str]) -> None:
        _fork.check(self)
        try:
            if len(names) > 1:
                obstore.delete(self._store, [checked(name) for name in names])
                return
        except (exceptions.BaseError, OSError):
            # Not every store can do that, and not every store accepts a name that is gone. One by one, the error says
            # which name could not be deleted, and why.
            pass
        super().delete_each(names)

    def tidy(self) -> None:
        """See `DurableBlobs`: the store and its lifecycle rules remove parts of interrupted uploads."""

    def clear(self) -> None:
        """See `ClearableBlobs`: many names per request, if the store supports that."""
        names = [info.name for info in self.list("")]
        if names:
            with contextlib.suppress(MissingFileError), self._errors("deleted", f"{names[0]} and others"):
                obstore.delete(self._store, names)

    @contextlib.contextmanager
    def _errors(self, verb: str, name: str) -> Iterator[None]:
        _fork.check(self)
        try:
            yield
        except FileNotFoundError as e:
            raise missing(name, self) from e
        except _REFUSED as e:
            raise DeterminateError(
                f"'{name}' cannot be {verb} in '{self}': {_first_line(e)}",
                "check the location, and that its credentials allow reading, writing and deleting",
            ) from e
        except (exceptions.BaseError, OSError) as e:
            raise IndeterminateError(
                f"it is not known whether '{name}' was {verb} in '{self}': {_first_line(e)}",
                "check that the store can be reached; arcbeam reads again to find the outcome",
            ) from e


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
