"""This host's copies of shards, each at a committed micro-batch, in LMDB; shared by all processes of a user.

Owns bringing a copy to a version: its own entries and missing deltas, else everything from files. Must not know the
meaning of entries. A copy is never the original: it may be removed at any time when no process uses it.

    <root>/arcbeam-copies-<boot>/<job>/<level>-<shard>/
        data.mdb, lock.mdb    the entries (`space`), and their micro-batch
        bring.lock            held by the process that changes them
        ../in-use             held by all processes that use copies of the job (`hostcopies`)
        kept/                 deltas that were written here, and need not be fetched

Nothing is synced to the disk: after a crash of the host (not of a process) the files may be broken. So they are in a
folder with the boot id of the kernel that wrote them, and those of other boots are removed. The root may be any folder
with any content: only folders of exactly that name are touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import re
import shutil
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

import lmdb
from typing_extensions import override

from arcbeam.model.files import FileKind, ShardFile
from arcbeam.sizes import cache_size, threshold
from arcbeam.store.blobs import hostcopies
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import DecidedCommitError, LostFileError, NewerFormatError, StoreError
from arcbeam.store.blobs.private import NotOursError, check_ours, make_folder, make_one_folder, open_lock
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import ShardVersion
from arcbeam.store.shards import space
from arcbeam.store.shards.compaction import merged, opened, publish
from arcbeam.store.shards.overlay import Base, EmptyBase, Overlay
from arcbeam.store.shards.shardfile import Block, ShardFileReader, in_blocks, local_reader

_STATE = space.META + b"state"
_STATE_FORM = struct.Struct("<IqB")
"""Format, micro-batch, `_CHANGING` or 0. The opening token of the driver that committed the micro-batch follows."""
_FORMAT = 1
_CHANGING = 1
"""The entries are between two micro-batches: a process is changing them, or died while it did."""

_FIRST_MAP_BYTES = threshold(256 << 20, 1 << 16)
_BATCH_BYTES = threshold(4 << 20)
_BATCH_CHANGES = threshold(8_192)
"""Each change may touch a separate page, which stays in memory until the transaction ends."""
_OPEN_SHARDS = cache_size(256)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OF_A_BOOT = re.compile(r"arcbeam-copies-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The folders that this module creates, and so may remove."""


class HostCache:
    """The copies below one folder.

    Args:
        root: a folder on a disk of this host, used by no other host; created at the first use. Other content stays.
        map_bytes: the size of a new database's map; it grows as needed.
    """

    def __init__(self, root: Path | str, *, map_bytes: int = _FIRST_MAP_BYTES) -> None:
        self._root = Path(root).absolute()
        self._map_bytes = map_bytes
        self._copies = self._root / f"arcbeam-copies-{_boot()}"

    def view(self, blobs: DurableBlobs, version: ShardVersion) -> Overlay:
        """Return a shard's state at a version, for one micro-batch. Close it before the next one of the shard.

        Raises:
            DecidedCommitError: the copy is at a later micro-batch: the caller is too late.
            StoreError: a file cannot be read, or the copy cannot be written.
        """
        if not version.files:
            return Overlay(EmptyBase())
        folder = self._folder(version)
        try:
            self._private(folder)
            with _lock(folder / "bring.lock"):
                database = _databases.get(folder / "data.mdb", self._map_bytes)
                self._bring(database, folder, blobs, version)
                return Overlay(_CachedBase(database))
        except (lmdb.Error, OSError) as e:
            raise StoreError(
                f"the copy of shard {version.shard} of level {version.level} in '{folder}' cannot be used: {e}",
                "check that the disk has free space; the folder may be removed while no process of the job runs",
            ) from e

    def publish(
        self, blobs: DurableBlobs, version: ShardVersion, written: Written, view: Overlay, micro_batch: int
    ) -> ShardFile | None:
        """Write a micro-batch's changes as a delta; keep it here for the next micro-batch. None without changes.

        Args:
            blobs: the job's folder.
            version: what the view was made from.
            written: the name of the delta.
            view: contains the changes.
            micro_batch: the running micro-batch.
        """
        entries = view.changes()
        first = next(entries, None)
        if first is None:
            return None
        folder = self._folder(version)
        try:
            self._private(folder)
            kept = _kept(folder, written_name(written))
            make_one_folder(kept.parent)
        except OSError as e:
            raise StoreError(f"'{folder}' cannot be written: {e}", "check that the disk has free space") from e
        return publish(
            blobs,
            folder / "scratch",
            written,
            in_blocks(chain((first,), entries)),
            first_micro_batch=micro_batch,
            last_micro_batch=micro_batch,
            keep=kept,
        )

    def forget(self, job: str) -> None:
        """Remove all copies of a job. Best effort."""
        self.release(job)
        shutil.rmtree(self._copies / _folder_name(job), ignore_errors=True)

    def release(self, job: str) -> None:
        """Close all copies of a job in this process. They stay for a resume, until `sweep` removes them."""
        folder = self._copies / _folder_name(job)
        _databases.close_below(folder)
        hostcopies.release(folder)

    def sweep(self) -> None:
        """Remove the copies of jobs that no process uses or has used for long. Raises nothing."""
        hostcopies.sweep(self._copies)

    def _folder(self, version: ShardVersion) -> Path:
        return self._copies / _folder_name(version.job) / f"{version.level}-{version.shard}"

    def _private(self, folder: Path) -> None:
        """Create a folder. Refuse another user's root, because temporary folders are shared."""
        if not folder.is_dir():
            self._check_root()
        hostcopies.hold(folder.parent)
        make_folder(folder)

    def _check_root(self) -> None:
        """Create the root if it is missing, and remove the copies of other boots."""
        try:
            make_folder(self._root)
            check_ours(self._root)
        except NotOursError as e:
            raise StoreError(
                f"copies of state cannot be kept in '{self._root}': {e.strerror}",
                "remove it, or give the workers another temporary folder (TMPDIR)",
            ) from e
        if _OF_A_BOOT.fullmatch(self._copies.name):  # else this system has no boot id
            for other in self._root.iterdir():
                if other != self._copies and _OF_A_BOOT.fullmatch(other.name):
                    shutil.rmtree(other, ignore_errors=True)

    def _bring(self, database: _Database, folder: Path, blobs: DurableBlobs, version: ShardVersion) -> None:
        """Bring a copy to a version. The caller holds the lock."""
        while True:
            files, rebuild = lacking(version, database.copy_of())
            if not files and not rebuild:
                return
            kept = [path for file in files if (path := _kept(folder, file.name)).is_file()]
            try:
                # SUBTLE: a delta of several micro-batches may begin before the copy's micro-batch. Its older entries
                # are in the copy, or were overwritten by a later micro-batch of the delta.
                readers = [_reader(blobs, folder, file) for file in files]
                database.apply(readers, version, rebuild=rebuild)
            except (LostFileError, NewerFormatError, OSError):
                if not kept:
                    raise
                # Local deltas are only copies: the store has them. If the fault was in one, the next round uses the
                # store's. It discards what was applied before.
                for path in kept:
                    path.unlink(missing_ok=True)
            else:
                shutil.rmtree(folder / "kept", ignore_errors=True)
                return


class CopyOf(NamedTuple):
    """The version of a shard that a copy has.

    Attributes:
        micro_batch: the last committed one.
        driver: opening token of the driver that committed it; "" if unknown.
    """

    micro_batch: int
    driver: str


def lacking(version: ShardVersion, copy: CopyOf | None) -> tuple[tuple[ShardFile, ...], bool]:
    """Return what a copy of a shard needs to reach a version.

    A copy that another driver brought to its micro-batch does not count. That driver runs a copy of the job's folder,
    or ran the folder before it was restored, or has taken over the job. If this driver is fenced, it learns that at its
    commit.

    Args:
        version: to reach.
        copy: the present copy; None: nothing usable.

    Returns:
        The missing files, the oldest first; and whether the present entries must be discarded first.

    Raises:
        DecidedCommitError: the same driver has committed a later micro-batch: the task's attempt is out of date.
    """
    if copy is None or copy.driver != version.driver_of(copy.micro_batch):
        return version.files, True
    at = copy.micro_batch
    if at > version.micro_batch:
        raise DecidedCommitError(
            f"shard {version.shard} of level {version.level} is at micro-batch {at} here, but micro-batch "
            f"{version.micro_batch} was requested",
            "there is nothing to do: another attempt has done the work",
        )
    files = tuple(file for file in version.files if file.last_micro_batch > at)
    # If no file is as old as the copy, the shard had no files for a while, and the copy is of the time before.
    valid = version.contains(at) and any(file.first_micro_batch <= at for file in version.files)
    if not valid or any(file.kind == FileKind.SNAPSHOT for file in files):
        return version.files, True
    return files, False


def _reader(blobs: DurableBlobs, folder: Path, file: ShardFile) -> ShardFileReader:
    """Return the reader of a file: of the local delta, if it was written here."""
    path = _kept(folder, file.name)
    if path.is_file():
        return ShardFileReader(local_reader(path), file.size, file.crc, str(path), folder)
    return opened(blobs, file)


def _kept(folder: Path, name: str) -> Path:
    """Return the path of a local delta."""
    return folder / "kept" / name.rpartition("/")[2]


class _CachedBase(Base):
    """A committed version, while its transaction is open; see `overlay.Base`."""

    def __init__(self, database: _Database) -> None:
        self._database = database
        self._txn = database.begin_reading()
        self._txn_get = cast("Callable[[bytes], bytes | None]", self._txn.get)

    def get(self, key: bytes) -> bytes | None:
        """See `Base`.

        Raises:
            StoreError: the copy was removed meanwhile.
        """
        try:
            if len(key) <= space.CUT:
                return self._txn_get(space.MAIN + key)
            return space.get(self._txn, key)
        except lmdb.Error as e:
            raise _forgotten(e) from e

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """See `Base`.

        Raises:
            StoreError: the copy was removed meanwhile.
        """
        try:
            yield from space.scan(self._txn, start, end)
        except lmdb.Error as e:
            raise _forgotten(e) from e

    @override
    def close(self) -> None:
        self._database.end_reading(self._txn)


def _forgotten(error: lmdb.Error) -> StoreError:
    return StoreError(
        f"a copy of state can no longer be read: {error}",
        "if it was removed while a task read it, run the task again; else check its disk",
    )


class _Database:
    """One LMDB environment. Opened once in a process, and not used across a fork, as LMDB requires."""

    def __init__(self, path: Path, map_bytes: int) -> None:
        self._env = lmdb.open(
            str(path.parent),
            map_size=map_bytes,
            sync=False,
            metasync=False,
            meminit=False,
            readahead=False,
            max_readers=1024,
            mode=0o600,
        )
        self.readers = 0

    def bytes_needed(self) -> int:
        """Return the size that the file must have to contain all its pages."""
        return int((self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"])

    def begin_reading(self) -> lmdb.Transaction:
        try:
            txn = self._env.begin()
        except lmdb.MapResizedError:  # by another process
            self._env.set_mapsize(0)
            txn = self._env.begin()
        self.readers += 1
        return txn

    def end_reading(self, txn: lmdb.Transaction) -> None:
        txn.abort()
        self.readers -= 1

    def copy_of(self) -> CopyOf | None:
        """Return the version of the entries; None if there are none, or they cannot be used."""
        txn = self.begin_reading()
        try:
            state = cast("bytes | None", txn.get(_STATE))
        finally:
            self.end_reading(txn)
        if state is None or len(state) < _STATE_FORM.size:
            return None
        form, micro_batch, changing = _STATE_FORM.unpack_from(state)
        if form != _FORMAT or changing:
            return None
        return CopyOf(micro_batch, bytes(state[_STATE_FORM.size :]).decode())

    def apply(self, readers: list[ShardFileReader], version: ShardVersion, *, rebuild: bool) -> None:
        """Apply files, the oldest first, to the present entries, or to none.

        SUBTLE: in several transactions, so that a large file needs little memory. Between them the entries belong to no
        micro-batch, and are discarded if this ends early.
        """
        self._write(lambda txn: self._begin(txn, version.micro_batch, rebuild=rebuild))
        of_files = [reader.blocks() for reader in readers]
        # A complete set of files is merged first: appended entries fill their pages, and cost less than inserted ones.
        for blocks in [merged(of_files, bottom=True)] if rebuild else of_files:
            for batch in _batches(blocks, append=rebuild):
                self._write(lambda txn, batch=batch: _put(txn, batch, append=rebuild))  # type: ignore[misc]
        driver = (version.driver_of(version.micro_batch) or "").encode()
        self._write(lambda txn: txn.put(_STATE, _STATE_FORM.pack(_FORMAT, version.micro_batch, 0) + driver))

    def _begin(self, txn: lmdb.Transaction, micro_batch: int, *, rebuild: bool) -> None:
        if rebuild:
            txn.drop(self._env.open_db(None, txn), delete=False)
        txn.put(_STATE, _STATE_FORM.pack(_FORMAT, micro_batch, _CHANGING))

    def _write(self, write: Callable[[lmdb.Transaction], object]) -> None:
        """Run `write` in a transaction; repeat it with a larger map if the map is full."""
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    write(txn)
            except lmdb.MapFullError:
                if self.readers:
                    raise StoreError("a shard's view is still open while the shard is brought to a version") from None
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)
            else:
                return

    def close(self) -> None:
        self._env.close()


def _sound(path: Path, map_bytes: int) -> _Database:
    """Open a copy. If it was cut off, or is not a copy, it is discarded: the store has its content.

    SUBTLE: LMDB maps the file, and reading past its end kills the process.
    """
    if path.is_file() and path.stat().st_size >= 2 * mmap.PAGESIZE:
        with contextlib.suppress(lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError):
            found = _Database(path, map_bytes)
            if found.bytes_needed() <= path.stat().st_size:
                return found
            found.close()
    for name in (path, path.with_name("lock.mdb")):
        name.unlink(missing_ok=True)
    return _Database(path, map_bytes)


def _put(txn: lmdb.Transaction, batch: list[Block], *, append: bool) -> None:
    for keys, values in batch:
        space.write(txn, keys, values, append=append)


def _batches(blocks: Iterable[Block], *, append: bool) -> Iterator[list[Block]]:
    """Group blocks into small transactions, which need little memory; see `space.write` for `append`."""
    batch: list[Block] = []
    size = changes = 0
    for block in blocks:
        batch.append(block)
        size += sum(len(value) for value in block[1] if value is not None) + 32 * len(block[0])
        changes += 0 if append else len(block[0])
        if size >= _BATCH_BYTES or changes >= _BATCH_CHANGES:
            yield batch
            batch, size, changes = [], 0, 0
    if batch:
        yield batch


class _Databases:
    """The open databases of this process: the last recently used ones, and those being read."""

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._forked)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, _Database] = OrderedDict()

    def _forked(self) -> None:
        # LMDB counts the parent's open databases as open here: close them before others are opened.
        for database in self._open.values():
            database.close()
        self._start()

    def get(self, path: Path, map_bytes: int) -> _Database:
        with self._lock:
            found = self._open.get(path)
            if found is not None and not path.is_file():  # removed by another process
                found.close()
                found = None
            if found is None:
                found = self._open[path] = _sound(path, map_bytes)
            self._open.move_to_end(path)
            for other, database in list(self._open.items())[:-_OPEN_SHARDS]:
                if not database.readers:
                    del self._open[other]
                    database.close()
            return found

    def close_below(self, folder: Path) -> None:
        with self._lock:
            for path in [path for path in self._open if folder in path.parents]:
                self._open.pop(path).close()


_databases = _Databases()


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with open_lock(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _folder_name(job: str) -> str:
    return hashlib.sha256(job.encode()).hexdigest()[:20]


def _boot() -> str:
    """Return a name for this boot of the kernel; for this process, if the system has no boot id."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"process-{os.getpid()}"
