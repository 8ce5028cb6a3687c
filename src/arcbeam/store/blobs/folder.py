"""A local folder as durable blobs.

Owns atomic and durable writing: scratch file, fsync, link or rename, fsync of the folder. Why not obstore's local
store? It does not sync: after a power cut a manifest might stand, and its files might not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from arcbeam.store.blobs.durable import BlobInfo, checked, missing
from arcbeam.store.blobs.errors import AwayError, DeterminateError, IndeterminateError, MissingFileError, StoreError
from arcbeam.store.blobs.localfile import read_range

_SCRATCH = ".scratch"


class FolderBlobs:
    """A folder that every process of the job sees under the same path; see `DurableBlobs`.

    Args:
        root: the folder; made when first written to.
        sync: whether what is written survives a power cut; without it, it survives the death of processes only.
        made: whether another process has made the folder, so that this one does not, wherever it has gone.
    """

    def __init__(self, root: Path | str, *, sync: bool = True, made: bool = False) -> None:
        self._root = Path(root).absolute()
        self._sync = sync
        # Goes along to tasks: who has seen it once does not make it anew where a mount has gone.
        self._there = made

    def __str__(self) -> str:
        return str(self._root)

    def get(self, name: str) -> bytes:
        """See `DurableBlobs`."""
        with self._reading(name):
            data = (self._root / checked(name)).read_bytes()
        self._there = True
        return data

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """See `DurableBlobs`."""
        with self._reading(name), open(self._root / checked(name), "rb", buffering=0) as file:
            return read_range(file.fileno(), start, length)

    def put(self, name: str, data: bytes) -> None:
        """See `DurableBlobs`."""
        with self._writing(name):
            scratch = self._written(data)
            self._publish(scratch, name)

    def put_file(self, name: str, path: Path) -> None:
        """See `DurableBlobs`: a link if that is possible, else a copy."""
        with self._writing(name):
            scratch = self._scratch()
            try:
                os.link(path, scratch)
            except OSError:
                shutil.copyfile(path, scratch)
            self._synced(scratch)
            self._publish(scratch, name)

    def create(self, name: str, data: bytes) -> bool:
        """See `DurableBlobs`: a hard link, which is refused where the name exists."""
        target = self._root / checked(name)
        with self._writing(name):
            if target.exists():
                return False
            scratch = self._written(data)
            try:
                self._made(target.parent)
                try:
                    os.link(scratch, target)
                except FileExistsError:
                    return False
            finally:
                _removed(scratch)
        self._sync_folder(target.parent, name)
        return True

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        """See `DurableBlobs`."""
        try:
            found = sorted(self._below(self._root / prefix if prefix else self._root), key=lambda info: info.name)
        except OSError as e:
            raise _refused("listed", prefix, self, e) from e
        yield from (info for info in found if info.name > after)

    def delete(self, name: str) -> None:
        """See `DurableBlobs`."""
        with self._writing(name, "deleted"):
            (self._root / checked(name)).unlink(missing_ok=True)

    def clear(self) -> None:
        """See `ClearableBlobs`: the folder goes, too."""
        for _ in range(3):  # a straggler may still add a file while the folder is walked
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
        folder = self._root / _SCRATCH
        self._there = self._there or self._root.is_dir()
        folder.mkdir(parents=not self._there, exist_ok=True)
        self._there = True
        return folder / uuid.uuid4().hex

    def _written(self, data: bytes) -> Path:
        scratch = self._scratch()
        with open(scratch, "xb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            if self._sync:
                os.fsync(file.fileno())
        return scratch

    def _publish(self, scratch: Path, name: str) -> None:
        """Gives a scratch file its name."""
        target = self._root / checked(name)
        try:
            self._made(target.parent)
            os.replace(scratch, target)
        finally:
            # SUBTLE: renaming a link onto a link of the same file does nothing, and leaves both.
            _removed(scratch)
        self._sync_folder(target.parent, name)

    def _made(self, folder: Path) -> None:
        """Makes a folder, and sees that its name is durable, too."""
        if folder.is_dir():
            return
        if folder == self._root:
            # It was there a moment ago.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        self._made(folder.parent)
        folder.mkdir(exist_ok=True)
        self._synced(folder.parent)

    def _sync_folder(self, folder: Path, name: str) -> None:
        try:
            self._synced(folder)
        except OSError as e:
            raise IndeterminateError(
                f"'{name}' in '{self}' may not be durable: {e}", "see that the disk is well, and start again"
            ) from e

    def _synced(self, path: Path) -> None:
        if self._sync:
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as e:
            raise (missing(name, self) if self._root.is_dir() else _away(name, self)) from e
        except OSError as e:
            raise _refused("read", name, self, e) from e

    @contextlib.contextmanager
    def _writing(self, name: str, verb: str = "written") -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise _refused(verb, name, self, e) from e


def _away(name: str, where: object) -> MissingFileError:
    return AwayError(
        f"'{name}' is missing in '{where}', which is not there itself",
        "see that the path is right, and its disk mounted: on all hosts, if there are several",
    )


def _removed(scratch: Path) -> None:
    """Removes a scratch file, best effort.

    SUBTLE: the name may stand already, so an error of this must not be told as one of the write, which did nothing.
    """
    with contextlib.suppress(OSError):
        scratch.unlink(missing_ok=True)


_TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN})
"""What network mounts say when they do not know."""


def _refused(verb: str, name: str, where: object, error: OSError) -> StoreError:
    kind = IndeterminateError if error.errno in _TRANSIENT else DeterminateError
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        remedy = "name a folder: it, or what it is in, is a file"
    elif error.errno == errno.ENOENT:
        remedy = "see that the path is right, and its disk mounted: on all hosts, if there are several"
    elif verb == "written":
        remedy = "see that the folder can be written, that its file system has hard links, and that there is room"
    else:
        remedy = f"see that the folder is there, and that what is in it may be {verb}"
    return kind(f"'{name}' cannot be {verb} in '{where}': {error}", remedy)
