"""Which local folders of jobs belong to a driver that lives, and removing those whose driver is dead.

Owns the lock file in a job's folder. A driver that is killed cannot remove its folder; the next one does.

The lock is the only evidence, and must be certain: the driver holds a lock (flock) for as long as it lives, and the
file names the boot of the kernel that knows of it. Another kernel's lock (a folder that several hosts share) may not be
seen from here, so its folder is left alone, and so is one without a lock file; age says nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import uuid
from pathlib import Path

from arcbeam.store.blobs.private import make_folder
from arcbeam.store.jobtemp.location import JobLocation

_LOG = logging.getLogger("arcbeam.store")

LOCK = ".driver"
"""The lock file's name in the folder of a job."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Claim:
    """A driver's claim on the temporary location of its job, from now until `release` or its own end.

    Best effort: a location that cannot be claimed (an object store, no boot id on this system, a folder that cannot be
    written) is as good as one that can, but for never being swept.

    Args:
        location: of the job; the driver alone knows of it yet.
    """

    def __init__(self, location: JobLocation) -> None:
        self._file: int | None = None
        folder, boot = location.folder, _boot()
        if folder is None or not boot:
            return
        try:
            make_folder(folder)
            # SUBTLE: locked before it has its name, so that nobody finds it unlocked.
            unnamed = folder / f"{LOCK}-{uuid.uuid4().hex}"
            self._file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.write(self._file, boot)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(folder / LOCK)
        except OSError as e:
            _LOG.debug("%s is not locked: %s", location, e)
            self.release()

    def release(self) -> None:
        """Gives the claim up. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def sweep(root: Path) -> list[Path]:
    """Removes the folders of jobs below `root` whose drivers are dead; returns what it removed. Raises nothing."""
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
        _LOG.info("removed what a killed driver left: %s", folder)
    return removed


def _remove_if_dead(folder: Path, boot: bytes) -> bool:
    """Removes the folder if its driver is certainly dead; FileNotFoundError if it has no lock file."""
    file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.read(file, len(boot) + 1) != boot:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # The lock is held meanwhile: one that sweeps at the same time stays away. The lock file goes last, so that a
        # sweep that is interrupted is taken up by the next.
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                path.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    finally:
        os.close(file)


def _boot() -> bytes:
    """Which boot of which kernel this is; empty if the system does not say."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return b""
