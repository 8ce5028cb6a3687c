"""Side inputs of a streaming job: what a task writes to them, and what it reads of the head's.

Owns the files on a host: written files before they are published, and copies of files that are read. Windows, keys and
values are bytes here. Must not know which window is ready: that is the engine's decision.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import lmdb
from typing_extensions import override

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.files import SideFile
from arcbeam.model.rows import PublishedSides
from arcbeam.model.timestamps import Timestamp
from arcbeam.sizes import memo
from arcbeam.store.blobs.durable import DurableBlobs, pieces
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.private import make_folder, open_new
from arcbeam.store.jobtemp.chunkfile import ChunkFile, ChunkFileWriter
from arcbeam.store.jobtemp.keyfile import KeyFile, KeyFileWriter, building_path
from arcbeam.streaming.interfaces import SideData

_F = TypeVar("_F")


class _Writer(Protocol):
    def finish(self) -> int: ...


class SideFileWriter:
    """Writes a task's output to one side input; no file is made before the first output.

    Args:
        scratch: a local folder.
        number: the number of the side input.
        port: the output of the stage that writes it.
        last: see below.

    Attributes:
        last: whether only the last firing counts in a window; see `firing`.
        windows: the windows with output.

    Raises:
        StoreError: by all methods: the folder cannot be written.
    """

    def __init__(self, scratch: Path, number: int, port: Port, *, last: bool = False) -> None:
        self.last = last
        self._path = scratch / f"side-{uuid.uuid4().hex}"
        self._number, self._port = number, port
        self._chunks: ChunkFileWriter | None = None
        self._keys: KeyFileWriter | None = None
        self.windows: set[bytes] = set()
        self._finalizer = weakref.finalize(self, _remove, self._path, building_path(self._path))

    def append(self, window: bytes, chunk: bytes) -> None:
        """Add whole encoded elements to a window."""
        with _writing(self._path):
            if self._chunks is None:
                make_folder(self._path.parent)
                self._chunks = ChunkFileWriter(self._path)
            self.windows.add(window)
            self._chunks.append(window, chunk)

    def put(self, window: bytes, key: bytes, values: bytes) -> None:
        """Add whole encoded values to a key."""
        with _writing(self._path):
            if self._keys is None:
                make_folder(self._path.parent)
                self._keys = KeyFileWriter(self._path)
            self.windows.add(window)
            self._keys.put(window, key, values)

    def firing(self, window: bytes) -> None:
        """Begin another firing: earlier contents of the window do not count any more."""
        if self._chunks is not None:
            self._chunks.forget(window)

    def close(self) -> None:
        """All output is written; see `data`. (Called by write operations that do not publish files themselves.)"""

    def data(self, shard: int, until: Timestamp | None) -> SideData | None:
        """Return the output; None if there is none. Call it once.

        Args:
            shard: the shard of the task.
            until: see `SideFile`.
        """
        writer: _Writer | None = self._chunks or self._keys
        with _writing(self._path):
            if writer is None or not writer.finish():
                return None
        return SideData(self._number, shard, self._path, until, self._port)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, lmdb.Error) as e:
        raise StoreError(f"cannot write '{path.parent}': {e}", "check that the disk has free space") from e


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


class SideFileReader(PublishedSides):
    """The side inputs at a micro-batch's head; an `arcbeam.model.rows.SideStore`. Files are fetched when first needed.

    Args:
        blobs: the job's folder.
        folder: for copies of files on this host.
        files: the head's files.
        parts: the numbers of the outputs in each channel.
        copies: the open copies of this process; files that the head does not have any more are closed.
        newest: the channels in whose windows only the content from the newest micro-batch is read.
    """

    def __init__(
        self,
        blobs: DurableBlobs,
        folder: Path,
        files: Iterable[SideFile],
        parts: Mapping[int, tuple[int, ...]],
        copies: SideCopies,
        newest: Collection[int] = (),
    ) -> None:
        self._blobs, self._folder, self._copies, self._newest = blobs, folder, copies, newest
        # All tasks read elements in the same order, so a reader that keeps the last value of a key keeps the newest.
        # SUBTLE: the newest of each producer. A merged file counts as its last micro-batch, so its older values may
        # come after newer ones of another producer. Beam leaves open which of several values of a key a dict keeps.
        ordered = in_order(files)
        self._by_channel: Mapping[int, list[SideFile]] = {
            channel: [file for file in ordered if file.channel in numbers] for channel, numbers in parts.items()
        }
        # For channels in `newest`: by window, the files that are read.
        self._read: dict[tuple[int, bytes], list[SideFile]] = memo()

    @override
    def chunks(self, channel: int, window: bytes) -> Iterator[bytes]:
        for file in self._files(channel, window, self._has_chunks):
            yield from self._opened(ChunkFile, file).chunks(window)

    @override
    def values(self, channel: int, window: bytes, key: bytes) -> Iterator[bytes]:
        for file in self._files(channel, window, self._has_keys):
            yield from self._opened(KeyFile, file).values(window, key)

    @override
    def keys(self, channel: int, window: bytes) -> Iterator[bytes]:
        seen: set[bytes] = set()
        for file in self._files(channel, window, self._has_keys):
            for key in self._opened(KeyFile, file).keys(window):
                if key not in seen:
                    seen.add(key)
                    yield key

    def _files(self, channel: int, window: bytes, has: Callable[[SideFile, bytes], bool]) -> Iterable[SideFile]:
        """Return the files in which a window is read."""
        files = self._by_channel.get(channel, ())
        if channel not in self._newest:
            return files
        found = self._read.get((channel, window))
        if found is None:
            # The newest micro-batch of each writer.
            last: dict[int, int] = {}
            for file in reversed(files):
                if file.channel not in last and has(file, window):
                    last[file.channel] = file.micro_batch
            found = self._read[channel, window] = [file for file in files if file.micro_batch == last.get(file.channel)]
        return found

    def _has_chunks(self, file: SideFile, window: bytes) -> bool:
        return next(self._opened(ChunkFile, file).chunks(window), None) is not None

    def _has_keys(self, file: SideFile, window: bytes) -> bool:
        return next(self._opened(KeyFile, file).keys(window), None) is not None

    def _opened(self, kind: Callable[[Path, str, int], _F], file: SideFile) -> _F:
        return self._copies.get(kind, self._blobs, self._folder, file)

    def has_chunks(self, channel: int, window: bytes) -> bool:
        """Return whether an iterable has anything in a window."""
        return next(self.chunks(channel, window), None) is not None

    def has_keys(self, channel: int, window: bytes) -> bool:
        """Return whether a multimap has anything in a window."""
        return next(self.keys(channel, window), None) is not None


class SideCopies:
    """The files of side inputs that this process has open.

    Invariant: they belong to the newest head of any task so far; they are never used across a fork.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._open: dict[str, Any] = {}

    def keep(self, names: set[str]) -> None:
        """Release all files but these."""
        if self._pid != os.getpid():
            # LMDB counts the parent's open files as open here: release them before opening any.
            names, self._pid = set(), os.getpid()
        # They are not closed: user code may still read them. No other code opens these copies.
        for name in self._open.keys() - names:
            del self._open[name]

    def get(self, kind: Callable[[Path, str, int], _F], blobs: DurableBlobs, folder: Path, file: SideFile) -> _F:
        """Return a file, opening it with `kind` if it is not open."""
        found: _F | None = self._open.get(file.name)
        if found is None:
            with fetched(blobs, folder, file) as path:
                found = self._open[file.name] = kind(path, file.name, file.size)
        return found


@contextlib.contextmanager
def fetched(blobs: DurableBlobs, folder: Path, file: SideFile) -> Iterator[Path]:
    """Yield a copy of a file, to be opened: then it is removed from its folder, and exists while it is open."""
    path = folder / f"copy-{uuid.uuid4().hex}"
    try:
        with _writing(path):
            make_folder(path.parent)
            with open_new(path) as copy:
                for data in pieces(blobs, file.name, file.size):
                    copy.write(data)
        yield path
    finally:
        path.unlink(missing_ok=True)


def in_order(files: Iterable[SideFile]) -> list[SideFile]:
    """Return files in the order in which they are read: by micro-batch."""
    return sorted(files, key=lambda file: (file.micro_batch, file.channel, file.shard, file.name))
