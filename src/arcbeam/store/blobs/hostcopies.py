"""Folders with copies on this host that several processes use, and the removal of folders that are long unused.

Owns the file `in-use` in such a folder. Each process that uses the folder holds a shared lock (flock) on it. Its time
says when a process last began to use the folder. A copy is never the original: a removed one is fetched again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from arcbeam.store.blobs.private import make_folder

_LOG = logging.getLogger("arcbeam.store")

IN_USE = "in-use"
UNUSED_SECONDS = 7 * 86_400.0
"""A folder that no process has used for this time is removed."""


class _InUse:
    """The folders that this process uses."""

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._forked)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Path, int] = {}

    def _forked(self) -> None:
        held = self._held
        self._start()
        for file in held.values():
            with contextlib.suppress(OSError):
                os.close(file)

    def hold(self, folder: Path) -> None:
        with self._lock:
            file = self._held.get(folder)
            if file is not None and _is(file, folder / IN_USE):
                return
            if file is not None:
                os.close(self._held.pop(folder))
            self._held[folder] = _locked(folder)

    def release(self, folder: Path) -> None:
        with self._lock:
            if (file := self._held.pop(folder, None)) is not None:
                os.close(file)


_in_use = _InUse()


def hold(folder: Path) -> None:
    """Create a folder if it is missing, and record that this process uses it, until `release` or the process's end.

    Raises:
        OSError: it cannot be created.
    """
    _in_use.hold(folder)


def release(folder: Path) -> None:
    """Record that this process no longer uses a folder."""
    _in_use.release(folder)


def _is(file: int, path: Path) -> bool:
    """Return whether an open file still has that name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def _locked(folder: Path) -> int:
    while True:
        make_folder(folder)
        try:
            file = os.open(folder / IN_USE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # the folder was removed just now
            continue
        try:
            # SUBTLE: it waits while another process removes the folder, and then has a file without a name.
            fcntl.flock(file, fcntl.LOCK_SH)
            os.utime(file)
        except BaseException:
            os.close(file)
            raise
        if _is(file, folder / IN_USE):
            return file
        os.close(file)


def sweep(root: Path, unused: float = UNUSED_SECONDS) -> list[Path]:
    """Remove this user's folders below `root` that no process uses or has used for long. Raises nothing.

    Args:
        root: may be missing.
        unused: minimal time without use, in seconds.

    Returns:
        The removed folders.
    """
    removed = []
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                ours = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if ours and time.time() - _last_used(Path(entry.path)) >= unused and _removed(Path(entry.path)):
                    removed.append(Path(entry.path))
    for folder in removed:
        _LOG.info("removed copies that were unused for long: %s", folder)
    return removed


def _last_used(folder: Path) -> float:
    """Return when a folder was last used, in seconds since 1970.

    If the process that made it was killed before it used it: the last change.
    """
    return max(path.lstat().st_mtime for path in _dated(folder))


def _dated(folder: Path) -> Iterator[Path]:
    if (folder / IN_USE).exists():
        yield folder / IN_USE
    else:
        yield from (folder, *folder.rglob("*"))


def _removed(folder: Path) -> bool:
    file = os.open(folder / IN_USE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    except BlockingIOError:
        return False
    finally:
        os.close(file)
