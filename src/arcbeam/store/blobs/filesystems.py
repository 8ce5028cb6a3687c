"""Where bytes live: a local folder, or any file system that pyarrow can reach, behind one small protocol.

Owns atomic publication and the copies of remote files on this host. Knows nothing of what the bytes mean. Raises plain
`OSError`s (FileNotFoundError, …); `arcbeam.store.jobtemp.location` turns them into errors of ours.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

_OBJECT_STORES = ("s3", "gcs", "abfs")
"""File systems (pyarrow's names) where a file appears whole, at its own name, when its writer closes it."""


class Blobs(Protocol):
    """Immutable named bytes. Names are relative paths with `/`; parts that start with a dot are never listed."""

    def put_file(self, path: Path, name: str) -> None:
        """Publishes a complete local file and takes it: `path` is gone afterwards. All or nothing for readers."""
        ...

    def put_bytes(self, name: str, data: bytes) -> None:
        """Publishes bytes; all or nothing for readers."""
        ...

    def get_bytes(self, name: str) -> bytes:
        """All bytes of a name; FileNotFoundError if there is none."""
        ...

    def open(self, name: str) -> tuple[Any, int]:
        """A stream to read a name from its beginning, and its size in bytes; FileNotFoundError if there is none.

        The stream has `read(bytes)` and is a context manager.
        """
        ...

    def local_copy(self, name: str) -> Path:
        """A local file with the bytes of a name, valid until `delete_all`; FileNotFoundError if there is none."""
        ...

    def exists(self, name: str) -> bool:
        """Whether the name has bytes."""
        ...

    def list(self, prefix: str) -> list[str]:
        """All names that start with `prefix` (any text), sorted."""
        ...

    def delete_all(self) -> None:
        """Removes everything, and this host's copies."""
        ...

    def scratch(self) -> Path:
        """A local folder, on the file system from which `put_file` is cheapest; removed by `delete_all`."""
        ...


class LocalBlobs:
    """A folder that every reader sees under the same path.

    Publication is a rename. SUBTLE: nothing is synced to the disk: what lies here need not outlive the host.

    Args:
        root: the folder; made when first needed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put_file(self, path: Path, name: str) -> None:
        """See `Blobs`. From another file system the file is copied first, then renamed."""
        try:
            self._rename(path, name)
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            temporary = self.scratch() / uuid.uuid4().hex
            shutil.copyfile(path, temporary)
            self._rename(temporary, name)
            path.unlink()

    def put_bytes(self, name: str, data: bytes) -> None:
        """See `Blobs`."""
        temporary = self.scratch() / uuid.uuid4().hex
        temporary.write_bytes(data)
        self._rename(temporary, name)

    def _rename(self, temporary: Path, name: str) -> None:
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, target)

    def get_bytes(self, name: str) -> bytes:
        """See `Blobs`."""
        return (self._root / name).read_bytes()

    def open(self, name: str) -> tuple[Any, int]:
        """See `Blobs`."""
        stream = open(self._root / name, "rb")  # noqa: SIM115 - the caller's
        return stream, os.fstat(stream.fileno()).st_size

    def local_copy(self, name: str) -> Path:
        """See `Blobs`: the file itself."""
        path = self._root / name
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return path

    def exists(self, name: str) -> bool:
        """See `Blobs`."""
        return (self._root / name).is_file()

    def list(self, prefix: str) -> list[str]:
        """See `Blobs`."""
        return sorted(name for name in self._names(self._root / os.path.dirname(prefix)) if name.startswith(prefix))

    def _names(self, folder: Path) -> Iterator[str]:
        for base, folders, files in os.walk(folder):
            folders[:] = [f for f in folders if not f.startswith(".")]
            for file in files:
                if not file.startswith("."):
                    yield (Path(base) / file).relative_to(self._root).as_posix()

    def delete_all(self) -> None:
        """See `Blobs`."""
        for _ in range(3):  # a straggling task may still add a file while the folder is walked
            shutil.rmtree(self._root, ignore_errors=True)
            if not self._root.exists():
                return
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(self._root))

    def scratch(self) -> Path:
        """See `Blobs`."""
        folder = self._root / ".scratch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class ArrowBlobs:
    """A folder of a pyarrow file system: an object store, HDFS, or a mount that pyarrow writes to.

    Args:
        filesystem: a `pyarrow.fs.FileSystem`.
        root: the folder in it.
        cache: local folder for copies of remote files; made when first needed, used by this user only.
    """

    def __init__(self, filesystem: Any, root: str, cache: Path) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._cache = cache

    @classmethod
    def from_url(cls, url: str, cache: str = "") -> ArrowBlobs:
        """Opens the file system that a URL names.

        Args:
            url: as `pyarrow.fs.FileSystem.from_uri` takes it.
            cache: local folder below which copies are kept; the system's temporary folder if empty.

        Raises:
            ValueError: no file system is known for the URL.
            OSError: it is known, but cannot be reached.
        """
        from pyarrow import fs

        filesystem, root = fs.FileSystem.from_uri(url)
        digest = hashlib.sha256(url.encode()).hexdigest()[:20]
        return cls(filesystem, root, Path(cache or tempfile.gettempdir()) / f"arcbeam-{os.getuid()}" / digest)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def put_file(self, path: Path, name: str) -> None:
        """See `Blobs`. One write of the whole, mapped file: pyarrow publishes what it has when a writer fails."""
        import pyarrow as pa

        if path.stat().st_size:
            with pa.memory_map(str(path)) as source:
                self._put(name, source.read_buffer())
        else:
            self._put(name, b"")
        path.unlink()

    def put_bytes(self, name: str, data: bytes) -> None:
        """See `Blobs`."""
        self._put(name, data)

    def _put(self, name: str, data: Any) -> None:
        target = self._path(name)
        written = target
        if self._fs.type_name not in _OBJECT_STORES:
            folder, _, file = target.rpartition("/")
            self._fs.create_dir(folder, recursive=True)
            written = f"{folder}/.{file}.{uuid.uuid4().hex}"
        with self._fs.open_output_stream(written) as stream:
            stream.write(data)
        if written != target:
            self._fs.move(written, target)
        size = self._fs.get_file_info(target).size
        if size != len(data):
            raise OSError(errno.EIO, f"{len(data)} bytes were written, {size} are there", target)

    def get_bytes(self, name: str) -> bytes:
        """See `Blobs`."""
        with self._fs.open_input_stream(self._path(name)) as stream:
            return bytes(stream.read())

    def open(self, name: str) -> tuple[Any, int]:
        """See `Blobs`: nothing is kept on this host."""
        path = self._path(name)
        return self._fs.open_input_stream(path), self._fs.get_file_info(path).size

    def local_copy(self, name: str) -> Path:
        """See `Blobs`: downloaded once for all processes of this user on this host."""
        path = self._cache / "files" / name
        if path.exists():
            return path
        self._private().joinpath("files", name).parent.mkdir(parents=True, exist_ok=True)
        with open(f"{path}.lock", "wb") as lock:
            # The lock saves work only: the rename alone keeps readers from seeing half a file.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self._download(name, path)
        return path

    def _download(self, name: str, path: Path) -> None:
        temporary = self.scratch() / uuid.uuid4().hex
        try:
            with self._fs.open_input_stream(self._path(name)) as source, open(temporary, "wb") as copy:
                shutil.copyfileobj(source, copy, 8 << 20)
            size, found = self._fs.get_file_info(self._path(name)).size, temporary.stat().st_size
            if size != found:
                raise OSError(errno.EIO, f"{found} of {size} bytes arrived", self._path(name))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """See `Blobs`."""
        return bool(self._fs.get_file_info(self._path(name)).is_file)

    def list(self, prefix: str) -> list[str]:
        """See `Blobs`."""
        from pyarrow import fs

        folder = os.path.dirname(prefix)
        selector = fs.FileSelector(self._path(folder) if folder else self._root, allow_not_found=True, recursive=True)
        names = (i.path[len(self._root) + 1 :] for i in self._fs.get_file_info(selector) if i.is_file)
        return sorted(n for n in names if n.startswith(prefix) and "/." not in f"/{n}")

    def delete_all(self) -> None:
        """See `Blobs`."""
        shutil.rmtree(self._cache, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(self._root)

    def scratch(self) -> Path:
        """See `Blobs`."""
        folder = self._private() / "scratch"
        folder.mkdir(exist_ok=True)
        return folder

    def _private(self) -> Path:
        """The cache's folder, made if need be; refused if it is another user's: temporary folders are shared."""
        self._cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._cache.mkdir(mode=0o700, exist_ok=True)
        if self._cache.parent.stat().st_uid != os.getuid() or self._cache.stat().st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "another user owns the cache folder", str(self._cache))
        return self._cache
