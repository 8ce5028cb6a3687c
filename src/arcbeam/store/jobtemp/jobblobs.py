"""The files of one batch job: blobs that are removed with the job, and local files with the same bytes.

Owns what this adds to `durable`: moving files into the store, copies of remote ones on this host, reading as a stream.
Must not know what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from arcbeam.sizes import threshold
from arcbeam.store.blobs import hostcopies
from arcbeam.store.blobs.durable import ClearableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.blobs.fragments import SCRATCH
from arcbeam.store.blobs.private import (
    check_ours,
    make_as_new,
    make_folder,
    make_own_folder,
    open_lock,
    open_new,
    user_folder,
)

_PART_BYTES = threshold(8 << 20, 1 << 16)


class JobBlobs(Protocol):
    """Immutable named bytes; names as in `durable`.

    Raises:
        MissingFileError: there is no such name.
        StoreError, OSError: the operation failed.
    """

    def take_file(self, path: Path, name: str) -> None:
        """Publish a complete local file and move it: `path` is gone afterwards. Readers see all of it or nothing."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Publish bytes. Readers see all of them or nothing."""
        ...

    def get(self, name: str) -> bytes:
        """Return all bytes of a name."""
        ...

    def open(self, name: str) -> Any:
        """Return a stream that reads a name from its beginning: it has `read(bytes)`, and is a context manager."""
        ...

    def local_copy(self, name: str) -> Path:
        """Return a local file with the bytes of a name, valid until `delete_all`."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether the name has bytes."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Return all names that start with `prefix` (any text), sorted."""
        ...

    def delete_all(self) -> None:
        """Remove everything, and this host's copies."""
        ...

    def scratch(self) -> Path:
        """Return a local folder from which `take_file` is cheapest; `delete_all` removes it."""
        ...


class LocalBlobs(FolderBlobs, JobBlobs):
    """A folder that every reader sees under the same path; see `JobBlobs`.

    SUBTLE: nothing is synced to the disk: these files need not survive the host.

    Args:
        root: the folder; created at the first use.
    """

    # Its scratch folder also has files of tasks, which are not locked.
    _of_others = False

    def __init__(self, root: Path) -> None:
        super().__init__(root, sync=False)
        self._folder = root
        self._ours = False

    def take_file(self, path: Path, name: str) -> None:
        """See `JobBlobs`: a rename; from another file system the file is copied."""
        self._check()
        target = self._folder / name
        make_folder(target.parent)
        try:
            make_as_new(path, target.parent)
            os.replace(path, target)
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            self.put_file(name, path)
            path.unlink()

    @override
    def get(self, name: str) -> bytes:
        self._check()
        return super().get(name)

    @override
    def put(self, name: str, data: bytes) -> None:
        self._check()
        super().put(name, data)

    @override
    def open(self, name: str) -> Any:
        return open(self.local_copy(name), "rb")

    def local_copy(self, name: str) -> Path:
        """See `JobBlobs`: the file itself."""
        self._check()
        path = self._folder / name
        if not path.is_file():
            self.get_range(name, 0, 0)  # raises
        return path

    @override
    def exists(self, name: str) -> bool:
        return (self._folder / name).is_file()

    @override
    def names(self, prefix: str) -> list[str]:
        return _names(self, prefix)

    @override
    def delete_all(self) -> None:
        self.clear()

    @override
    def scratch(self) -> Path:
        self._check()
        folder = self._folder / SCRATCH
        make_folder(folder)
        return folder

    def _check(self) -> None:
        """Refuse a folder that may be another user's: its content is unpickled."""
        if not self._ours:
            with contextlib.suppress(FileNotFoundError):
                check_ours(self._folder)
                self._ours = True


class RemoteBlobs(JobBlobs):
    """Blobs on another machine; see `JobBlobs`. All processes of this user share a local copy.

    Args:
        blobs: the blobs.
        cache: local folder for copies; created at the first use, for this user only.
    """

    def __init__(self, blobs: ClearableBlobs, cache: Path) -> None:
        self._blobs = blobs
        self._cache = cache
        self._held = False

    @override
    def take_file(self, path: Path, name: str) -> None:
        self._blobs.put_file(name, path)
        path.unlink()

    @override
    def put(self, name: str, data: bytes) -> None:
        self._blobs.put(name, data)

    @override
    def get(self, name: str) -> bytes:
        return self._blobs.get(name)

    def open(self, name: str) -> Any:
        """See `JobBlobs`: nothing is kept on this host."""
        return _Parts(self._blobs, name)

    @override
    def local_copy(self, name: str) -> Path:
        path = self._cache / "files" / name
        if path.exists():
            return path
        make_folder(self._private().joinpath("files", name).parent)
        with open_lock(path.with_name(f"{path.name}.lock")) as lock:
            # The lock only saves work: the rename alone prevents that readers see half a file.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self._download(name, path)
        return path

    def _download(self, name: str, path: Path) -> None:
        temporary = self.scratch() / uuid.uuid4().hex
        try:
            with self.open(name) as source, open_new(temporary) as copy:
                shutil.copyfileobj(source, copy, _PART_BYTES)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @override
    def exists(self, name: str) -> bool:
        try:
            self._blobs.get_range(name, 0, 1)
        except MissingFileError:
            return False
        return True

    @override
    def names(self, prefix: str) -> list[str]:
        return _names(self._blobs, prefix)

    @override
    def delete_all(self) -> None:
        hostcopies.release(self._cache)
        shutil.rmtree(self._cache, ignore_errors=True)
        self._blobs.clear()

    @override
    def scratch(self) -> Path:
        folder = self._private() / "scratch"
        make_folder(folder)
        return folder

    def _private(self) -> Path:
        """Return the cache's folder; create it if needed. Refuse another user's: temporary folders are shared."""
        make_own_folder(self._cache.parent)
        if not self._held:
            hostcopies.sweep(self._cache.parent)
            self._held = True
        hostcopies.hold(self._cache)
        make_own_folder(self._cache)
        return self._cache


def cache_folder(url: str, root: str = "") -> Path:
    """Return the folder for copies of a URL's files on this host: below a folder of this user."""
    return user_folder(root) / "cache" / hashlib.sha256(url.encode()).hexdigest()[:20]


class _Parts(contextlib.AbstractContextManager["_Parts"]):
    """Reads a blob from its beginning, in parts of some megabytes: the bytes of a name never change."""

    def __init__(self, blobs: ClearableBlobs, name: str) -> None:
        self._parts = _parts(blobs, name)
        self._left = memoryview(next(self._parts))

    def read(self, size: int) -> bytes:
        """Return this many bytes; fewer only at the end."""
        found: list[memoryview] = []
        while size and self._left:
            found.append(self._left[:size])
            size -= len(found[-1])
            self._left = self._left[len(found[-1]) :] or memoryview(next(self._parts, b""))
        return b"".join(found)

    def __exit__(self, *raised: object) -> None:
        self._left = memoryview(b"")
        self._parts.close()


def _parts(blobs: ClearableBlobs, name: str) -> Any:
    at = 0
    while True:
        part = blobs.get_range(name, at, _PART_BYTES)
        yield part
        at += len(part)
        if len(part) < _PART_BYTES:
            return


def _names(blobs: ClearableBlobs, prefix: str) -> list[str]:
    listed: Iterator[str] = (info.name for info in blobs.list(os.path.dirname(prefix)))
    return [name for name in listed if name.startswith(prefix)]
