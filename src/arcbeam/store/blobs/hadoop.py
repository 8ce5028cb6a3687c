"""HDFS as durable blobs, through pyarrow.

Owns create-once on a file system without conditional create. HDFS renames a file only to a free name, and does so
atomically. Each write first goes to a unique scratch name. The scratch name then shows whether the rename was ours: it
is gone if and only if its file moved.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import override

from arcbeam.store.blobs.durable import BlobInfo, ClearableBlobs, checked, missing
from arcbeam.store.blobs.errors import IndeterminateError, MissingFileError

_OLD_SECONDS = 86_400.0
_SCRATCH = re.compile(r"\..+\.[0-9a-f]{32}")


class HadoopBlobs(ClearableBlobs):
    """A folder of a file system whose rename refuses an existing name; see `DurableBlobs`.

    SUBTLE: most other file systems of pyarrow replace the existing file: they must not be used here.

    Args:
        filesystem: a `pyarrow.fs.FileSystem` on HDFS.
        root: the folder in it.
        where: its name in errors.
    """

    def __init__(self, filesystem: Any, root: str, where: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._where = where
        self._tidied = -_OLD_SECONDS

    def __str__(self) -> str:
        return self._where

    @override
    def get(self, name: str) -> bytes:
        with self._errors("read", name), self._fs.open_input_stream(self._path(name)) as stream:
            return bytes(stream.read())

    @override
    def get_range(self, name: str, start: int, length: int) -> bytes:
        with self._errors("read", name), self._fs.open_input_file(self._path(name)) as file:
            length = min(length, file.size() - start)
            return bytes(file.read_at(length, start)) if length > 0 else b""

    @override
    def put(self, name: str, data: bytes) -> None:
        self._replace(name, lambda stream: stream.write(data))

    @override
    def put_file(self, name: str, path: Path) -> None:
        with open(path, "rb") as source:
            self._replace(name, lambda stream: shutil.copyfileobj(source, stream, 1 << 20))

    def create(self, name: str, data: bytes) -> bool:
        """See `DurableBlobs`: writes under a scratch name, renames, and checks."""
        target = self._path(name)
        with self._errors("written", name):
            if self._there(target):
                return False
            scratch = self._written(target, lambda stream: stream.write(data))
            try:
                self._fs.move(scratch, target)
            except OSError:
                # Refused, or done without an answer.
                if self._there(scratch):
                    self._remove(scratch)
                    if self._there(target):
                        return False
                    raise
                if not self._there(target):
                    raise
            if self._there(scratch):
                self._remove(scratch)
                return False
            return True

    def _replace(self, name: str, write: Any) -> None:
        target = self._path(name)
        with self._errors("written", name):
            scratch = self._written(target, write)
            try:
                if self._there(target):
                    self._fs.delete_file(target)
                self._fs.move(scratch, target)
            except OSError:
                self._remove(scratch)
                raise

    def _written(self, target: str, write: Any) -> str:
        folder, _, file = target.rpartition("/")
        self._fs.create_dir(folder, recursive=True)
        scratch = f"{folder}/.{file}.{uuid.uuid4().hex}"
        try:
            with self._fs.open_output_stream(scratch) as stream:
                write(stream)
        except BaseException:
            self._remove(scratch)
            raise
        return scratch

    @override
    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        from pyarrow import fs

        with self._errors("listed", prefix):
            folder = f"{self._root}/{prefix}" if prefix else self._root
            selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
            found = [
                BlobInfo(info.path[len(self._root) + 1 :], info.size)
                for info in self._fs.get_file_info(selector)
                if info.is_file
            ]
        yield from sorted((i for i in found if i.name > after and "/." not in f"/{i.name}"), key=lambda i: i.name)

    @override
    def delete(self, name: str) -> None:
        with contextlib.suppress(MissingFileError), self._errors("deleted", name):
            if self._there(self._path(name)):
                self._fs.delete_file(self._path(name))

    def tidy(self) -> None:
        """See `DurableBlobs`. HDFS has no locks, so this removes, once a day, files without a write for a day.

        SUBTLE: a writer whose scratch file is removed cannot give it a name, so its write fails.
        """
        from pyarrow import fs

        if time.monotonic() - self._tidied < _OLD_SECONDS:
            return
        self._tidied = time.monotonic()
        with contextlib.suppress(OSError):
            for info in self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True, recursive=True)):
                old = info.mtime is not None and time.time() - info.mtime.timestamp() > _OLD_SECONDS
                if old and info.is_file and _SCRATCH.fullmatch(info.base_name):
                    self._remove(info.path)

    def clear(self) -> None:
        """See `ClearableBlobs`: the folder is removed, too."""
        with contextlib.suppress(MissingFileError), self._errors("deleted", "."):
            self._fs.delete_dir(self._root)

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked(name)}"

    def _there(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).is_file)

    def _remove(self, path: str) -> None:
        """Remove a scratch file, best effort: it is neither read nor listed."""
        with contextlib.suppress(OSError):
            self._fs.delete_file(path)

    @contextlib.contextmanager
    def _errors(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as e:
            raise missing(name, self) from e
        except OSError as e:  # HDFS does not say which errors precede any effect
            raise IndeterminateError(
                f"it is not known whether '{name}' was {verb} in '{self}': {e}",
                "check that the file system can be reached and has free space; arcbeam reads again to find the outcome",
            ) from e
