"""Folders of this host that belong to a process for as long as it lives, and removing those whose process is dead.

Owns the lock file in such a folder. A process that is killed cannot remove its folder; the next one does.

The lock is the only evidence, and must be certain: the owner holds a lock (flock) for as long as it lives, and the file
names the boot of the kernel that knows of it. Another kernel's lock (a folder that several hosts share) may not be seen
from here, so its folder is left alone, and so is one without a lock file; age says nothing.
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
"""The lock file's name in a folder."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FolderClaim:
    """This process's claim on a folder, from now until `release` or its own end.

    Best effort: a folder that cannot be claimed (no boot id on this system, it cannot be written) is as good as one
    that can, but is never swept.

    Args:
        folder: is made if it is missing; no other process knows of it yet.
    """

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        boot = _boot()
        if not boot:
            return
        try:
            make_folder(folder)
            # SUBTLE: locked before it has its name, so that no other process finds it unlocked.
            unnamed = folder / f"{LOCK}-{uuid.uuid4().hex}"
            self._file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.write(self._file, boot)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(folder / LOCK)
        except OSError as e:
            _LOG.debug("%s is not locked: %s", folder, e)
            self.release()

    def release(self) -> None:
        """Gives the claim up. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def sweep(root: Path) -> list[Path]:
    """Removes the folders below `root` whose owners are dead; returns what it removed. Raises nothing."""
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
        _LOG.info("removed what a killed process left: %s", folder)
    return removed


def _remove_if_dead(folder: Path, boot: bytes) -> bool:
    """Removes the folder if its owner is certainly dead; FileNotFoundError if it has no lock file."""
    file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.read(file, len(boot) + 1) != boot:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # The lock is held meanwhile: one that sweeps at the same time stays away.
        _remove(folder)
        return not folder.exists()
    finally:
        os.close(file)


def _remove(folder: Path) -> None:
    """Removes a folder, the lock file last: if this is interrupted, the next sweep takes it up."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


class WorkFolder:
    """A new folder for files of this process, below this user's temporary folder. Those of dead processes are removed.

    Args:
        purpose: the first part of its name.

    Attributes:
        path: of the folder.

    Raises:
        StoreError: it cannot be made, or another user may have put there what is around it.
    """

    def __init__(self, purpose: str) -> None:
        root = own_folder("work")
        sweep(root)
        self._whole = root / f"{purpose}-{uuid.uuid4().hex}"
        self._claim = FolderClaim(self._whole)
        self.path = self._whole / "files"
        make_folder(self.path)

    def remove(self) -> None:
        """Removes it. Idempotent."""
        # SUBTLE: Spark kills its workers while they end, and thus in the middle of this.
        with contextlib.suppress(OSError):
            _remove(self._whole)
        self._claim.release()


@contextlib.contextmanager
def work_folder(purpose: str) -> Iterator[Path]:
    """A `WorkFolder` for the time of a block."""
    folder = WorkFolder(purpose)
    try:
        yield folder.path
    finally:
        folder.remove()


class ProcessFolder:
    """A work folder that is made when it is first needed, and that a process keeps; a fork makes its own.

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
        """Of the folder."""
        with self._lock:
            if self._made is None:
                self._made = WorkFolder(self._purpose)
            return self._made.path

    def remove(self) -> None:
        """To be called when the process ends, and nothing uses it any more. Idempotent."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.remove()


_process_folders: list[ProcessFolder] = []


def remove_all() -> None:
    """Removes this process's folders: to be called at the end of one that ends without Python's own clean-up."""
    for folder in _process_folders:
        folder.remove()


def _boot() -> bytes:
    """Which boot of which kernel this is; empty if the system does not say."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return b""
