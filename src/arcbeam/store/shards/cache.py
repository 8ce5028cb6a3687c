"""This host's copies of shards, each at a committed micro-batch, in LMDB; shared by all processes of a user on the
host.

Owns bringing a copy to a version: its own entries and the deltas it lacks, else everything from files. Must not know
what entries mean. A copy is never the truth: any of it may be removed at any time no process uses it.

    <root>/arcbeam-copies-<boot>/<job>/<level>-<shard>/
        data.mdb, lock.mdb    the entries (`space`), and the micro-batch they are of
        bring.lock            held by the process that changes them
        ../in-use             held by all processes that use copies of the job (`hostcopies`)
        kept/                 deltas written here, that need not be fetched again

Nothing is synced to the disk: after a crash of the host (not of a process) the files may be broken. So they are below
the name of the boot of the kernel that wrote them, and those of other boots are removed. The root may be any folder,
and hold anything: nothing in it is touched but folders of exactly that name.
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
from arcbeam.store.shards.overlay import EmptyBase, Overlay
from arcbeam.store.shards.shardfile import Block, ShardFileReader, in_blocks, local_reader

_STATE = space.META + b"state"
_STATE_FORM = struct.Struct("<IqB")
"""Format, micro-batch, `_CHANGING` or 0. The token of the opening of the driver that committed the micro-batch
follows."""
_FORMAT = 2
_CHANGING = 1
"""The entries are between two micro-batches: a process died while it changed them, if none does."""

_FIRST_MAP_BYTES = threshold(256 << 20, 1 << 16)
_BATCH_BYTES = threshold(4 << 20)
_BATCH_CHANGES = threshold(8_192)
"""Each of them may change a page of its own, which stays in memory until the transaction ends."""
_OPEN_SHARDS = cache_size(256)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OF_A_BOOT = re.compile(r"arcbeam-copies-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The folders that this module makes, and so may remove."""


class HostCache:
    """The copies below one folder.

    Args:
        root: a folder on a disk of this host, used by no other host; made when first needed. What else is in it stays.
        map_bytes: the size of a new database's map; it grows as need be.
    """

    def __init__(self, root: Path | str, *, map_bytes: int = _FIRST_MAP_BYTES) -> None:
        self._root = Path(root).absolute()
        self._map_bytes = map_bytes
        self._copies = self._root / f"arcbeam-copies-{_boot()}"

    def view(self, blobs: DurableBlobs, version: ShardVersion) -> Overlay:
        """A shard's state at a version, for one micro-batch. To be closed before the shard's next one is made.

        Raises:
            DecidedCommitError: the copy is at a later micro-batch: whoever asks comes too late.
            StoreError: a file cannot be read; the copy cannot be written.
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
                "see that the disk has room; the folder may be removed while no process of the job runs",
            ) from e

    def publish(
        self, blobs: DurableBlobs, version: ShardVersion, written: Written, view: Overlay, micro_batch: int
    ) -> ShardFile | None:
        """Writes a micro-batch's changes as a delta, and keeps it here for when it is real. None if nothing was
        changed.

        Args:
            blobs: the job's folder.
            version: what the view was made from.
            written: the name of the delta.
            view: has the changes.
            micro_batch: the micro-batch that is running.
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
            raise StoreError(f"'{folder}' cannot be written: {e}", "see that the disk has room") from e
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
        """Removes all copies of a job. Best effort."""
        self.leave(job)
        shutil.rmtree(self._copies / _folder_name(job), ignore_errors=True)

    def leave(self, job: str) -> None:
        """Closes all copies of a job in this process. They stay for who resumes it, until `sweep` removes them."""
        folder = self._copies / _folder_name(job)
        _databases.close_below(folder)
        hostcopies.leave(folder)

    def sweep(self) -> None:
        """Removes the copies of jobs that no process uses, and none has used for long. Raises nothing."""
        hostcopies.sweep(self._copies)

    def _folder(self, version: ShardVersion) -> Path:
        return self._copies / _folder_name(version.job) / f"{version.level}-{version.shard}"

    def _private(self, folder: Path) -> None:
        """Makes a folder; the root is refused if it is another user's, since temporary folders are shared."""
        if not folder.is_dir():
            self._check_root()
        hostcopies.hold(folder.parent)
        make_folder(folder)

    def _check_root(self) -> None:
        """Makes the root if it is missing, and removes the copies of other boots."""
        try:
            make_folder(self._root)
            check_ours(self._root)
        except NotOursError as e:
            raise StoreError(
                f"copies of state cannot be kept in '{self._root}': {e.strerror}",
                "remove it, or give the workers another temporary folder (TMPDIR)",
            ) from e
        if _OF_A_BOOT.fullmatch(self._copies.name):  # else this system does not tell its boots
            for other in self._root.iterdir():
                if other != self._copies and _OF_A_BOOT.fullmatch(other.name):
                    shutil.rmtree(other, ignore_errors=True)

    def _bring(self, database: _Database, folder: Path, blobs: DurableBlobs, version: ShardVersion) -> None:
        """Brings a copy to a version. The caller holds the lock."""
        while True:
            files, anew = lacking(version, database.copy_of())
            if not files and not anew:
                return
            kept = [path for file in files if (path := _kept(folder, file.name)).is_file()]
            try:
                # SUBTLE: a delta of several micro-batches may begin before the copy's micro-batch: what it says of
                # those is what the copy has, or what a later micro-batch of it has made of that.
                readers = [_reader(blobs, folder, file) for file in files]
                database.apply(readers, version, anew=anew)
            except (LostFileError, NewerFormatError, OSError):
                if not kept:
                    raise
                # What was kept here is worth no more than the copy: the store has it. If a file there was at fault, it
                # is so again. What was applied before is thrown away by the next round.
                for path in kept:
                    path.unlink(missing_ok=True)
            else:
                shutil.rmtree(folder / "kept", ignore_errors=True)
                return


class CopyOf(NamedTuple):
    """What a copy of a shard is a copy of.

    Attributes:
        micro_batch: that was committed last.
        driver: token of the opening of the driver that committed it; "" if that was not known.
    """

    micro_batch: int
    driver: str


def lacking(version: ShardVersion, copy: CopyOf | None) -> tuple[tuple[ShardFile, ...], bool]:
    """What a copy of a shard needs to come to a version.

    A copy that another driver has brought to its micro-batch does not count: that driver runs a copy of the job's
    folder, or the folder as it was before it was restored, or it has taken the job over. If this driver is fenced out,
    it learns that when it commits.

    Args:
        version: where it is to be.
        copy: what there is; None: nothing that can be used.

    Returns:
        The files that it lacks, the oldest first; and whether what it has is to be thrown away before.

    Raises:
        DecidedCommitError: the same driver has committed a later micro-batch: the task's attempt is out of date.
    """
    if copy is None or copy.driver != version.driver_of(copy.micro_batch):
        return version.files, True
    at = copy.micro_batch
    if at > version.micro_batch:
        raise DecidedCommitError(
            f"shard {version.shard} of level {version.level} is at micro-batch {at} here, micro-batch "
            f"{version.micro_batch} was asked for",
            "nothing to do: another attempt has done the work",
        )
    files = tuple(file for file in version.files if file.last_micro_batch > at)
    # Where no file is as old as the copy, the shard had none for a while, and what the copy has is of before that.
    stands = version.contains(at) and any(file.first_micro_batch <= at for file in version.files)
    if not stands or any(file.kind == FileKind.SNAPSHOT for file in files):
        return version.files, True
    return files, False


def _reader(blobs: DurableBlobs, folder: Path, file: ShardFile) -> ShardFileReader:
    """The reader of a file: of the copy that was kept, if it was written here."""
    path = _kept(folder, file.name)
    if path.is_file():
        return ShardFileReader(local_reader(path), file.size, file.crc, str(path), folder)
    return opened(blobs, file)


def _kept(folder: Path, name: str) -> Path:
    """Where a file of that name is kept."""
    return folder / "kept" / name.rpartition("/")[2]


class _CachedBase:
    """A committed version, for as long as its transaction is open; see `overlay.Base`."""

    def __init__(self, database: _Database) -> None:
        self._database = database
        self._txn = database.begin_reading()
        self._txn_get = cast("Callable[[bytes], bytes | None]", self._txn.get)

    def get(self, key: bytes) -> bytes | None:
        """See `Base`.

        Raises:
            StoreError: the copy was forgotten meanwhile.
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
            StoreError: the copy was forgotten meanwhile.
        """
        try:
            yield from space.scan(self._txn, start, end)
        except lmdb.Error as e:
            raise _forgotten(e) from e

    def close(self) -> None:
        """See `Base`."""
        self._database.end_reading(self._txn)


def _forgotten(error: lmdb.Error) -> StoreError:
    return StoreError(
        f"a copy of state cannot be read any more: {error}",
        "if it was forgotten while a task reads it, run the task again; else see that its disk works",
    )


class _Database:
    """One LMDB environment. Opened once in a process, and not used across a fork: LMDB's rules."""

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
        """How large the file must be to hold all that it says it has."""
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
        """What the entries are a copy of; None if there are none, or they cannot be used."""
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

    def apply(self, readers: list[ShardFileReader], version: ShardVersion, *, anew: bool) -> None:
        """Applies files, the oldest first, to the entries there are, or to none.

        SUBTLE: in several transactions, so that a large file takes little memory; between them the entries are of no
        micro-batch, and are thrown away if this ends early.
        """
        self._write(lambda txn: self._begin(txn, version.micro_batch, anew=anew))
        of_files = [reader.blocks() for reader in readers]
        # What stands for itself is merged before: entries that are appended leave full pages, and cost less than those
        # that are put between others.
        for blocks in [merged(of_files, bottom=True)] if anew else of_files:
            for batch in _batches(blocks, append=anew):
                self._write(lambda txn, batch=batch: _put(txn, batch, append=anew))  # type: ignore[misc]
        driver = (version.driver_of(version.micro_batch) or "").encode()
        self._write(lambda txn: txn.put(_STATE, _STATE_FORM.pack(_FORMAT, version.micro_batch, 0) + driver))

    def _begin(self, txn: lmdb.Transaction, micro_batch: int, *, anew: bool) -> None:
        if anew:
            txn.drop(self._env.open_db(None, txn), delete=False)
        txn.put(_STATE, _STATE_FORM.pack(_FORMAT, micro_batch, _CHANGING))

    def _write(self, write: Callable[[lmdb.Transaction], object]) -> None:
        """Runs `write` in a transaction; again, with a larger map, if the map is full."""
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
    """Opens a copy. One that was cut off, or is no copy at all, is thrown away: the store has what it had.

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
    """Blocks for one transaction each, which takes little memory; see `space.write` for `append`."""
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
    """What this process has open: the last recently used, and those that are read."""

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._forked)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, _Database] = OrderedDict()

    def _forked(self) -> None:
        # LMDB counts what the parent had open as open here: let go of it before anything is opened.
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
    """A name for the boot of this kernel; of this process, if the system does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"process-{os.getpid()}"
