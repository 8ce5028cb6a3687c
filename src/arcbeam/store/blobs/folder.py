"""A local folder as durable blobs.

Owns atomic and durable writing: scratch file, fsync, link or rename, fsync of the folder. obstore's local store does
not sync: after a power failure a manifest might exist without its files. New files are private (`private`); other
processes remove the scratch files of killed writers (`fragments`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from typing_extensions import override

from arcbeam.model.disk.durable import NotSyncedError, forget, make_durable, rename, sync_folder
from arcbeam.sizes import threshold
from arcbeam.store.blobs.durable import BlobInfo, ClearableBlobs, checked, missing
from arcbeam.store.blobs.errors import AwayError, DeterminateError, IndeterminateError, MissingFileError, StoreError
from arcbeam.store.blobs.fragments import SCRATCH, Fragment, tidy
from arcbeam.store.blobs.localfile import read_range
from arcbeam.store.blobs.private import group_rights, make_folder, make_one_folder

_PART_BYTES = threshold(1 << 20, 64)


class FolderBlobs(ClearableBlobs):
    """A folder that every process of the job sees under the same path; see `DurableBlobs`.

    `private` decides which of its files other users can read.

    Args:
        root: the folder; created at the first write.
        sync: whether writes survive a power failure; without it, they only survive the death of processes.
        made: whether another process has created the folder. Then this one does not, also if the folder is missing.
    """

    _of_others = True
    """Whether old fragments of other hosts' writers are removed, too."""

    def __init__(self, root: Path | str, *, sync: bool = True, made: bool = False) -> None:
        self._root = Path(root).absolute()
        self._sync = sync
        # Is sent to tasks: a process that has seen the folder does not create it again when a mount is lost.
        self._there = made

    def __str__(self) -> str:
        return str(self._root)

    @override
    def get(self, name: str) -> bytes:
        with self._reading(name):
            data = (self._root / checked(name)).read_bytes()
        self._there = True
        return data

    @override
    def get_range(self, name: str, start: int, length: int) -> bytes:
        with self._reading(name), open(self._root / checked(name), "rb", buffering=0) as file:
            return read_range(file.fileno(), start, length)

    @override
    def put(self, name: str, data: bytes) -> None:
        with self._writing(checked(name), size=len(data)):
            self._publish(self._written(data), name)

    def put_file(self, name: str, path: Path) -> None:
        """See `DurableBlobs`: a link if possible, else a copy."""
        with _read_errors(checked(name), path, self):
            size = path.stat().st_size
        with self._writing(name, size=size):
            self._publish(self._linked(path) or self._copied(name, path), name)

    def create(self, name: str, data: bytes) -> bool:
        """See `DurableBlobs`: a hard link, which is refused where the name exists."""
        target = self._root / checked(name)
        with self._writing(name, size=len(data)):
            created = not target.exists() and self._link(self._written(data), target)
        # SUBTLE: also if the name exists. Its writer may have died, or failed, before the name was durable; and what
        # depends on the name may be durable sooner.
        self._sync_folder(target.parent, name)
        return created

    def _link(self, scratch: Fragment, target: Path) -> bool:
        """Give a scratch file a name if the name is free; return whether it was."""
        try:
            self._made(target.parent)
            try:
                os.link(scratch.path, target)
            except FileExistsError:
                return False
        finally:
            scratch.remove()
            scratch.close()
        return True

    @override
    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        try:
            found = sorted(self._below(self._root / prefix if prefix else self._root), key=lambda info: info.name)
        except OSError as e:
            raise _refused("listed", prefix, self, e) from e
        yield from (info for info in found if info.name > after)

    @override
    def delete(self, name: str) -> None:
        with self._writing(name, "deleted"):
            (self._root / checked(name)).unlink(missing_ok=True)

    @override
    def tidy(self) -> None:
        tidy(self._root / SCRATCH, of_others=self._of_others)

    def clear(self) -> None:
        """See `ClearableBlobs`: the folder is removed, too."""
        for _ in range(3):  # a late writer may add a file during the removal
            shutil.rmtree(self._root, ignore_errors=True)
            self._there = False
            if not self._root.exists():
                return
        left = OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(self._root))
        raise _refused("deleted", ".", self, left)

    def _below(self, folder: Path) -> Iterator[BlobInfo]:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                path = Path(entry.path)
                if entry.is_dir():
                    yield from self._below(path)
                else:
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        yield BlobInfo(path.relative_to(self._root).as_posix(), entry.stat().st_size)

    def _scratch(self) -> Path:
        folder = self._root / SCRATCH
        self._there = self._there or self._root.is_dir()
        if not self._there:
            forget(self._root)
        (make_one_folder if self._there else make_folder)(folder)
        self._there = True
        return folder

    def _written(self, data: bytes) -> Fragment:
        def write(file: int) -> None:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]

        return self._filled(write)

    def _copied(self, name: str, path: Path) -> Fragment:
        def copy(file: int) -> None:
            with _read_errors(name, path, self):
                source = open(path, "rb", buffering=0)  # noqa: SIM115  # its errors are not those of the copy
            with source:
                while True:
                    with _read_errors(name, path, self):
                        part = memoryview(source.read(_PART_BYTES))
                    if not part:
                        return
                    while part:
                        part = part[os.write(file, part) :]

        return self._filled(copy)

    def _linked(self, path: Path) -> Fragment | None:
        """Return a link of a local file; None if there can be none.

        A link has the mode of the file. If a new file would have another mode, a copy is needed.
        """
        folder = self._scratch()
        if group_rights(folder) or path.stat().st_mode & 0o077:
            return None
        try:
            scratch = Fragment(folder, path)
        except OSError:
            return None
        return self._durable(scratch)

    def _filled(self, write: Callable[[int], None]) -> Fragment:
        """Return a scratch file that `write` has filled. If `write` fails, the file is removed.

        If the disk is full, leftovers of killed writers are removed, and the write is tried once more.
        """
        folder = self._scratch()
        for last in (False, True):
            scratch = Fragment(folder)
            try:
                write(scratch.descriptor)
                return self._durable(scratch)
            except BaseException as e:
                scratch.remove()
                scratch.close()
                full = isinstance(e, OSError) and e.errno in _FULL
                if last or not full or not tidy(folder, of_others=self._of_others):
                    raise
        raise AssertionError("the second try has returned or raised")

    def _durable(self, scratch: Fragment) -> Fragment:
        if self._sync:
            try:
                os.fsync(scratch.descriptor)
            except BaseException:
                scratch.remove()
                scratch.close()
                raise
        return scratch

    def _publish(self, scratch: Fragment, name: str) -> None:
        """Give a scratch file its name."""
        target = self._root / name
        try:
            self._made(target.parent)
            if self._sync:
                rename([(scratch.path, target)])
            else:
                os.replace(scratch.path, target)
        except NotSyncedError as e:
            raise self._not_durable(name, e) from e
        finally:
            # SUBTLE: renaming a link onto a link of the same file does nothing, and leaves both.
            scratch.remove()
            scratch.close()

    def _made(self, folder: Path) -> None:
        """Create a folder, and make its name durable, also if another process created it."""
        if not folder.is_dir():
            if folder == self._root:
                # It existed a moment ago.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
            self._made(folder.parent)
            forget(folder)
            make_one_folder(folder)
        if self._sync:
            make_durable(folder)

    def _sync_folder(self, folder: Path, name: str) -> None:
        try:
            if self._sync:
                sync_folder(folder)
        except OSError as e:
            raise self._not_durable(name, e) from e

    def _not_durable(self, name: str, error: OSError) -> StoreError:
        return IndeterminateError(
            f"'{name}' in '{self}' is perhaps not durable: {error}", "check the disk, and start again"
        )

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as e:
            raise (missing(name, self) if self._root.is_dir() else _away(name, self)) from e
        except OSError as e:
            raise _refused("read", name, self, e) from e

    @contextlib.contextmanager
    def _writing(self, name: str, verb: str = "written", size: int | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise _refused(verb, name, self, e, size) from e


def _away(name: str, where: object) -> MissingFileError:
    return AwayError(
        f"'{name}' is missing in '{where}', and the folder itself is missing",
        "check the path, and that its disk is mounted: on all hosts, if there are several",
    )


@contextlib.contextmanager
def _read_errors(name: str, path: Path, where: object) -> Iterator[None]:
    """Distinguish errors of reading the source from errors of writing its copy."""
    try:
        yield
    except OSError as e:
        raise DeterminateError(
            f"'{name}' cannot be written in '{where}': its source '{path}' cannot be read: {e.strerror or e}",
            f"check the disk of '{path}' on this host",
        ) from e


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN})
"""Errors of network mounts whose outcome is unknown."""


def _refused(verb: str, name: str, where: object, error: OSError, size: int | None = None) -> StoreError:
    kind = IndeterminateError if error.errno in _TRANSIENT else DeterminateError
    if error.errno in _FULL and verb == "written":
        what = f"'{name}'" if size is None else f"'{name}' ({size:,} bytes)"
        return kind(
            f"{what} cannot be written in '{where}': {os.strerror(error.errno or 0)}{_room(str(where))}",
            f"make room on the file system of '{where}', or raise its quota",
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        remedy = "give a folder: this path, or a part of it, is a file"
    elif error.errno == errno.ENOENT:
        remedy = "check the path, and that its disk is mounted: on all hosts, if there are several"
    elif verb == "written":
        remedy = "check that the folder is writable, that its file system has hard links, and that it has free space"
    else:
        remedy = f"check that the folder exists, and that its permissions allow '{name}' to be {verb}"
    return kind(f"'{name}' cannot be {verb} in '{where}': {error}", remedy)


def _room(folder: str) -> str:
    """Return the free space of a folder's file system, for people."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return ""
    return f" (without the file, {usage.free:,} of {usage.total:,} bytes are free there)"
