"""Part files on Beam's other file systems: HDFS, and the object stores of Google and Azure.

Owns a protocol that needs only Beam's FileSystem: a staged file, and a rename. A rename on HDFS is atomic, but fails if
the target exists. So an existing file is first moved aside, and for a moment the target is missing. On an object store
a rename is a copy inside of the store, which replaces the target, followed by removing the source.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from apache_beam.io.filesystem import CompressionTypes, FileSystem
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from typing_extensions import override

from arcbeam.io.parts.naming import STAGING
from arcbeam.io.parts.staging import Leftover, Staged, Staging, Writing, origin_of, staged_name
from arcbeam.model.attempts import Attempt

_REPLACING: Final = frozenset({"gs", "azfs"})
"""Schemes of stores on which a rename replaces its target.

SUBTLE: there, no target is removed before the rename, which is a copy and then a removal. Two processes may publish the
same file concurrently. Removing the old target might then remove the file that the other process has just copied.
"""
_ASIDE: Final = "-aside"
"""Suffix of a staged file's name. Under this name the old target is kept while it is replaced."""
_BUFFER: Final = 1 << 20
"""Bytes of a file that a client buffers, approximately; clients do not report it."""
_PLAIN = {"mime_type": "application/octet-stream", "compression_type": CompressionTypes.UNCOMPRESSED}


class FileSystemStaging(Staging):
    """Stages files with Beam's FileSystem; see `Staging`.

    Args:
        path: with a scheme.
        options: options of Beam's file systems.

    Raises:
        ValueError: Beam has no file system for the scheme, or a dependency of it is missing.
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._files = _filesystem(path, options)

    @override
    def begin(self, attempt: Attempt, name: str = "") -> Writing:
        return self._begun(staged_name(attempt))

    def _begun(self, staged: str) -> Writing:
        self._folder_of(self.full(staged))
        return _Remote(self._files, self.full(staged), staged)

    @override
    def publish(self, files: Sequence[Staged]) -> None:
        for file in files:
            staged, target = self.full(file.staged), self.full(file.name)
            aside = staged + _ASIDE
            # SUBTLE: in this order. If another process renames the staged file meanwhile, the target exists.
            if not self._files.exists(staged):
                if not self._files.exists(target):
                    if self._files.exists(aside):
                        self._files.rename([aside], [target])
                    else:
                        self.missing(staged, target)
                continue
            self._folder_of(target)
            if self._files.scheme() in _REPLACING or not self._files.exists(target):
                self._files.rename([staged], [target])
            else:
                self._replace(staged, target, aside)

    def _replace(self, staged: str, target: str, aside: str) -> None:
        """Rename to a name that exists.

        SUBTLE: the old target is moved aside, not removed: another process may have published it since. There is one
        such name, and a rename to an existing name fails. So only one of two processes has moved a file there.
        """
        self._files.rename([target], [aside])
        try:
            self._files.rename([staged], [target])
        except Exception:
            if not self._files.exists(target):
                self._files.rename([aside], [target])
            raise
        self._files.delete([aside])

    @override
    def put(self, name: str, data: bytes, staged: str) -> None:
        # SUBTLE: a file of its own. Another process may write the same file, also after this one has renamed it.
        writing = self._begun(f"{staged}-{uuid.uuid4().hex}")
        writing.write(data)
        made, target = self.full(writing.finish().staged), self.full(name)
        self._folder_of(target)
        if self._files.scheme() in _REPLACING:
            self._files.rename([made], [target])
            return
        # SUBTLE: in this order. Files that are aside now are older than the one that is moved aside next. Between the
        # two renames `get` finds a file aside, so a process that dies in between loses nothing.
        old = [each.path for each in self._aside(name)]
        if self._files.exists(target):
            aside = self.full(f"{_aside(name)}{uuid.uuid4().hex}")
            self._files.rename([target], [aside])
            old.append(aside)
        self._files.rename([made], [target])
        for each in filter(self._files.exists, old):
            self._files.delete([each])

    @override
    def get(self, name: str) -> bytes | None:
        target = self.full(name)
        if not self._files.exists(target):
            aside = max(self._aside(name), key=lambda each: each.last_updated_in_seconds, default=None)
            # Otherwise the target may have been renamed meanwhile.
            if aside is not None:
                target = aside.path
            elif not self._files.exists(target):
                return None
        with self._files.open(target, **_PLAIN) as file:
            data: bytes = file.read()
        return data

    def _aside(self, name: str) -> list[Any]:
        """Return where a small file may be while another one replaces it."""
        if self._files.scheme() in _REPLACING:
            return []
        (found,) = self._files.match([self.full(f"{_aside(name)}*")])
        return list(found.metadata_list)

    @override
    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            if self._files.exists(self.full(name)):
                self._files.delete([self.full(name)])

    @override
    def leftovers(self, job: str = "") -> Iterator[Leftover]:
        now = time.time()
        (found,) = self._files.match([self.full(f"{STAGING}/{job or '*'}/*")])
        for each in found.metadata_list:
            staged = STAGING + each.path.rpartition("/" + STAGING)[2]
            origin = origin_of(staged)
            if origin is not None:
                age = max(0.0, now - each.last_updated_in_seconds) if each.last_updated_in_seconds else 0.0
                yield Leftover(*origin, staged, each.size_in_bytes, age)

    @override
    def remove(self, leftovers: Iterable[Leftover]) -> None:
        self.delete([each.staged for each in leftovers])

    def _folder_of(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        # Object stores have no folders.
        with contextlib.suppress(OSError, NotImplementedError):
            if not self._files.exists(folder):
                self._files.mkdirs(folder)


def _aside(name: str) -> str:
    """Return the prefix of names under which a small file is moved aside."""
    return f"{STAGING}/aside-{hashlib.sha256(name.encode()).hexdigest()[:16]}-"


def _filesystem(path: str, options: Mapping[str, Any]) -> Any:
    """Return a new file system with these options. The process-wide options may be another job's, or none."""
    scheme = FileSystems.get_scheme(path)
    match [kind for kind in FileSystem.get_all_subclasses() if kind.scheme() == scheme]:
        case [kind]:
            return kind(pipeline_options=PipelineOptions.from_dictionary(dict(options)))
    return FileSystems.get_filesystem(path)  # raises an error that explains the problem


class _Remote(Writing):
    held = _BUFFER

    def __init__(self, files: Any, full: str, staged: str) -> None:
        self._files, self._full, self._staged = files, full, staged
        self._file = files.create(full, **_PLAIN)

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def finish(self) -> Staged:
        self._file.close()
        return Staged(self._staged, self.size)

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(Exception):
            self._files.delete([self._full])
