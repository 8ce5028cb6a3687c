"""Folders of this host that belong to a process while it lives, and the removal of folders of dead processes.

Owns the lock file in such a folder. A killed process cannot remove its folder; the next process does.

Only the lock decides, because the evidence must be certain: the owner holds a lock (flock) while it lives, and the file
names the boot of the kernel that knows the lock. The lock of another kernel (a folder shared by hosts) may be invisible
here. So its folder stays, and so does a folder without a lock file. The age of a folder is no evidence.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from arcbeam.store.blobs.private import make_folder, own_folder

_LOG = logging.getLogger("arcbeam.store")

LOCK = ".driver"
"""Name of the lock file in a folder."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FolderClaim:
    """This process's claim on a folder, until `release` or the end of the process.

    Best effort: a folder that cannot be claimed (no boot id on this system, no write access) can be used in the same
    way, but is never swept.

    Args:
        folder: is created if it is missing; no other process knows it yet.
    """

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        boot = _boot()
        if not boot:
            return
        try:
            make_folder(folder)
            # SUBTLE: locked before it gets its name, so that no other process finds it unlocked.
            unnamed = folder / f"{LOCK}-{uuid.uuid4().hex}"
            self._file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.write(self._file, boot)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(folder / LOCK)
        except OSError as e:
            _LOG.debug("%s is not locked: %s", folder, e)
            self.release()

    def release(self) -> None:
        """Release the claim. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def sweep(root: Path) -> list[Path]:
    """Remove the folders below `root` whose owners are dead; return the removed ones. Raises nothing."""
    boot, removed = _boot(), []
    if not boot:
        return []
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                ours = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if ours and _remove_if_dead(Path(entry.path), boot):
                    removed.append(Path(entry.path))
    for folder in removed:
        _LOG.info("removed a folder of a killed process: %s", folder)
    return removed


def _remove_if_dead(folder: Path, boot: bytes) -> bool:
    """Remove the folder if its owner is certainly dead; FileNotFoundError if it has no lock file."""
    file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.read(file, len(boot) + 1) != boot:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # The lock is held meanwhile, so that a concurrent sweep skips the folder.
        _remove(folder)
        return not folder.exists()
    finally:
        os.close(file)


def _remove(folder: Path) -> None:
    """Remove a folder, the lock file last: after an interruption the next sweep continues."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


class WorkFolder:
    """A new folder for files of this process, below this user's temporary folder. Removes those of dead processes.

    Args:
        purpose: the first part of its name.

    Attributes:
        path: of the folder.

    Raises:
        StoreError: it cannot be created, or another user may have created its parent.
    """

    def __init__(self, purpose: str) -> None:
        root = own_folder("work")
        sweep(root)
        self._whole = root / f"{purpose}-{uuid.uuid4().hex}"
        self._claim = FolderClaim(self._whole)
        self.path = self._whole / "files"
        make_folder(self.path)

    def remove(self) -> None:
        """Remove it. Idempotent."""
        # SUBTLE: Spark kills ending workers, possibly in the middle of this.
        with contextlib.suppress(OSError):
            _remove(self._whole)
        self._claim.release()


@contextlib.contextmanager
def work_folder(purpose: str) -> Iterator[Path]:
    """Create a `WorkFolder` for the duration of a block."""
    folder = WorkFolder(purpose)
    try:
        yield folder.path
    finally:
        folder.remove()


class ProcessFolder:
    """A work folder that a process creates at its first use and keeps; a forked child creates another one.

    Args:
        purpose: see `WorkFolder`.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._start()
        os.register_at_fork(after_in_child=self._start)

        _process_folders.append(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._made: WorkFolder | None = None

    def path(self) -> Path:
        """Return the path of the folder."""
        with self._lock:
            if self._made is None:
                self._made = WorkFolder(self._purpose)
            return self._made.path

    def remove(self) -> None:
        """Remove it at the end of the process, when nothing uses it. Idempotent."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.remove()


_process_folders: list[ProcessFolder] = []


def remove_all() -> None:
    """Remove this process's folders. For processes that end without Python's own clean-up."""
    for folder in _process_folders:
        folder.remove()


def _boot() -> bytes:
    """Return the id of this boot of the kernel; empty if the system has none."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return b""
