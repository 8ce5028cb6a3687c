"""Names of files and folders that survive a power failure: renames, and fsync of folders.

Owns when the name of a file or folder is on the disk. A file is safe when it was synced itself (`os.fsync`), its folder
was synced (`sync_folder`), and so were the names of that folder and of those above it (`make_durable`). Must not know
the files' content.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of network file systems that have no fsync of folders, because their servers sync them anyway."""

_durable: set[tuple[str, int, int]] = set()
"""Folders (path, device, inode) whose names this process has synced, up to the root of their file system."""


class NotSyncedError(OSError):
    """Names were changed, but a power failure may revert them."""


def rename(moves: Iterable[tuple[Path | str, Path | str]], *, repeated: bool = False) -> None:
    """Rename files, and sync the new names. An existing file with the new name is replaced.

    Args:
        moves: pairs of a file, which was synced, and its new name, in a folder that exists.
        repeated: whether another process may have renamed some of them: then a missing file whose new name exists was
            renamed. Its name is synced as well, because that process may have died before it did.

    Raises:
        NotSyncedError: all files have their new names, but the disk failed.
        OSError: a file cannot be renamed, for example because it is missing; those before it may have been renamed.
    """
    folders: dict[str, None] = {}
    for source, target in moves:
        try:
            os.replace(source, target)
        except FileNotFoundError:
            if not (repeated and os.path.exists(target)):
                raise
        folders[os.path.dirname(target)] = None
    try:
        for folder in folders:
            sync_folder(folder)
            make_durable(folder)
    except OSError as e:
        raise NotSyncedError(e.errno, e.strerror, e.filename) from e


def sync_folder(folder: Path | str) -> None:
    """Sync the names in a folder: what was created, renamed or removed there is durable.

    Raises:
        OSError: the folder is missing, or the disk failed.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError as e:
        if e.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(number)


def make_durable(folder: Path | str) -> None:
    """Sync the name of a folder, and of those above it, up to the root of the file system; once in a process.

    The process that made the folder may have died before it synced its name, or may be about to. Folders above it that
    this user cannot read were not made by us, and are skipped.

    Raises:
        OSError: the folder is missing, or the disk failed.
    """
    path, made = os.path.realpath(folder), []
    found = os.stat(path)
    while (key := (path, found.st_dev, found.st_ino)) not in _durable:
        made.append(key)
        above = os.path.dirname(path)
        around = os.stat(above)
        if above == path or around.st_dev != found.st_dev:
            break
        try:
            sync_folder(above)
        except PermissionError:
            break
        path, found = above, around
    _durable.update(made)


def forget(folder: Path | str) -> None:
    """Forget that the name of a folder was synced: it is about to be created again, perhaps with its old inode."""
    path = os.path.realpath(folder)
    for key in [key for key in _durable if key[0] == path or key[0].startswith(path + os.sep)]:
        _durable.discard(key)
