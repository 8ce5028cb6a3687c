"""Side inputs as immutable files: the tasks that produce them write them, all tasks that use them read them.

Owns the files' names, the assignment of keys to files, and the number of files that a process keeps open. `chunkfile`
and `keyfile` own the layouts. Windows, keys and values are bytes here.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

import lmdb
from typing_extensions import override

from arcbeam.model.files import SideFile
from arcbeam.model.rows import SideStore, key_hash
from arcbeam.sizes import cache_size
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.jobtemp.chunkfile import ChunkFile, ChunkFileWriter
from arcbeam.store.jobtemp.keyfile import KeyFile, KeyFileWriter, building_path
from arcbeam.store.jobtemp.location import JobLocation

_OPEN_CHUNK_FILES = cache_size(256)
_OPEN_KEY_FILES = cache_size(64)


class IterableWriter:
    """Writes one file of an iterable side input. Nothing is created before the first `append`.

    If it is dropped without `close`, no file is left.

    Args:
        location: where the file is published.
        channel: the side channel.
        attempt: of the task; part of the file's name, for people.

    Attributes:
        last: whether only the last firing of a window counts. Here all do.
    """

    last: Final = False

    def __init__(self, location: JobLocation, channel: int, attempt: str) -> None:
        self._location, self._channel = location, channel
        self._name = _name(channel, attempt, "chunks")
        self._writer: ChunkFileWriter | None = None

    def append(self, window: bytes, chunk: bytes) -> None:
        """Add whole encoded elements to a window."""
        try:
            if self._writer is None:
                self._path = self._location.scratch_file()
                self._finalizer = weakref.finalize(self, _remove, self._path)
                self._finalizer.atexit = False
                self._writer = ChunkFileWriter(self._path)
            self._writer.append(window, chunk)
        except OSError as e:
            raise _unwritten(self._name, e) from e

    def close(self) -> SideFile | None:
        """Publish the file; None if nothing was appended. Call it once."""
        if self._writer is None:
            return None
        try:
            size = self._writer.finish()
        except OSError as e:
            raise _unwritten(self._name, e) from e
        if size:
            self._location.put_file(self._path, self._name)
        self._finalizer()
        return SideFile(self._channel, -1, self._name, size) if size else None


class MultimapWriter:
    """Writes the file of one shard of a multimap side input. Nothing is created before the first `put`.

    If it is dropped without `close`, no file is left.

    Args:
        location: where the file is published.
        channel: the side channel.
        shard: `key_hash(key) % shards` of all keys that will be put.
        attempt: of the task; part of the file's name, for people.
    """

    def __init__(self, location: JobLocation, channel: int, shard: int, attempt: str) -> None:
        self._location, self._channel, self._shard = location, channel, shard
        self._name = _name(channel, attempt, "keys")
        self._writer: KeyFileWriter | None = None

    def put(self, window: bytes, key: bytes, values: bytes) -> None:
        """Add whole encoded values to a key; consecutive calls for a key are cheapest."""
        try:
            if self._writer is None:
                self._path = self._location.scratch_file()
                self._finalizer = weakref.finalize(self, _remove, self._path, building_path(self._path))
                self._finalizer.atexit = False
                self._writer = KeyFileWriter(self._path)
            self._writer.put(window, key, values)
        except (OSError, lmdb.Error) as e:
            raise _unwritten(self._name, e) from e

    def close(self) -> SideFile | None:
        """Publish the file; None if nothing was put. Call it once."""
        if self._writer is None:
            return None
        try:
            size = self._writer.finish()
        except (OSError, lmdb.Error) as e:
            raise _unwritten(self._name, e) from e
        self._location.put_file(self._path, self._name)
        self._finalizer()
        return SideFile(self._channel, self._shard, self._name, size)


def _name(channel: int, attempt: str, kind: str) -> str:
    # SUBTLE: two writers of one task may write the same channel (a Flatten): the attempt alone is not unique.
    return f"side/{channel}/{attempt}-{uuid.uuid4().hex[:12]}.{kind}"


def _unwritten(name: str, error: Exception) -> StoreError:
    return StoreError(f"side-input file '{name}' cannot be written: {error}", "check that the disk has free space")


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


class SideReader(SideStore):
    """Reads the side inputs of a stage; an `arcbeam.model.rows.SideStore`.

    Files are opened at their first use and shared by all readers of the process. Memory: one chunk per iterator.

    Args:
        location: where the files are.
        files: all files of each channel; an empty side input has an entry without files.
        shards: number of shards of the exchanges that wrote multimaps.

    Raises:
        StoreError: by the constructor for a file of an impossible shard; by all methods, also during iteration, for a
            missing, damaged or too new file.
    """

    def __init__(self, location: JobLocation, files: Mapping[int, tuple[SideFile, ...]], shards: int) -> None:
        self._location = location
        self._shards = shards
        # Sorted by name, so that all tasks read the elements in the same order.
        self._files = {channel: sorted(of, key=lambda file: file.name) for channel, of in files.items()}
        self._by_shard: dict[tuple[int, int], list[SideFile]] = {}
        for channel, of in self._files.items():
            for file in of:
                if file.shard >= shards:
                    raise StoreError(f"side-input file '{file.name}' is of shard {file.shard}; there are {shards}")
                self._by_shard.setdefault((channel, file.shard), []).append(file)

    @override
    def chunks(self, channel: int, window: bytes) -> Iterator[bytes]:
        for file in self._of(channel):
            yield from _chunk_files.get(self._location, file).chunks(window)

    @override
    def values(self, channel: int, window: bytes, key: bytes) -> Iterator[bytes]:
        files = self._by_shard.get((channel, key_hash(key) % self._shards))
        if files is None:
            self._of(channel)
            return iter(())
        if len(files) == 1:
            return self._opened(files[0]).values(window, key)
        return (chunk for file in files for chunk in self._opened(file).values(window, key))

    @override
    def keys(self, channel: int, window: bytes) -> Iterator[bytes]:
        for file in self._of(channel):
            yield from self._opened(file).keys(window)

    def _opened(self, file: SideFile) -> KeyFile:
        """Return a file of a multimap. SUBTLE: with a wrong shard, its keys would seem to have no values."""
        opened = _key_files.get(self._location, file)
        if opened.sample % self._shards != file.shard:
            raise StoreError(
                f"side-input file '{file.name}' should have the keys of shard {file.shard}, "
                f"but has one of shard {opened.sample % self._shards} of {self._shards}"
            )
        return opened

    def _of(self, channel: int) -> list[SideFile]:
        files = self._files.get(channel)
        if files is None:
            raise StoreError(f"channel {channel} is not a side input of this stage")
        return files


class _Closable(Protocol):
    def close(self) -> None: ...


_F = TypeVar("_F", bound=_Closable)


class _OpenFiles(Generic[_F]):
    """Open files of this process: the last recently used ones, and those that an iterator still reads.

    Invariant: a file is open at most once in a process, as LMDB requires; and never used across a fork.
    """

    def __init__(self, opener: Callable[[Path, str, int], _F], limit: int) -> None:
        self._opener, self._limit = opener, limit
        self._start()
        os.register_at_fork(after_in_child=self._forked)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._recent: OrderedDict[tuple[str, str], _F] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[tuple[str, str], _F] = weakref.WeakValueDictionary()

    def _forked(self) -> None:
        # LMDB counts the parent's open files as open here: close them before others are opened.
        for file in list(self._alive.values()):
            file.close()
        self._start()

    def get(self, location: JobLocation, file: SideFile) -> _F:
        """Return the file, opened if it is not."""
        key = (location.url, file.name)
        with self._lock:
            found = self._recent.get(key)
            if found is not None:
                self._recent.move_to_end(key)
                return found
            found = self._alive.get(key)
            if found is None:
                found = self._opener(location.local_copy(file.name), file.name, file.size)
                self._alive[key] = found
                # Another job's files may be deleted by now. While they are open, they use space on the disk.
                for other in [other for other in self._recent if other[0] != location.url]:
                    del self._recent[other]
            self._recent[key] = found
            while len(self._recent) > self._limit:
                self._recent.popitem(last=False)
            return found


_chunk_files = _OpenFiles(ChunkFile, _OPEN_CHUNK_FILES)
_key_files = _OpenFiles(KeyFile, _OPEN_KEY_FILES)
