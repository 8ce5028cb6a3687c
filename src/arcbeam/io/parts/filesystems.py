"""Part files on whatever else Beam has a file system for: HDFS, Google's and Azure's stores.

Owns no more than Beam's FileSystem can: a staged file, and a rename. HDFS renames at once, but to no name that is
taken: that file is put aside first, so for a moment there is none. Of an object store it is a copy inside of the store,
which replaces what is there, and the staged object is removed.
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

from arcbeam.io.parts.naming import STAGING
from arcbeam.io.parts.staging import Leftover, Staged, Staging, Writing, staged_name, told_by
from arcbeam.model.attempts import Attempt

_REPLACING: Final = frozenset({"gs", "azfs"})
"""Schemes of stores whose rename replaces what is there.

SUBTLE: nothing is removed before it there. It is a copy, and then a removal: two may publish the same file beside each
other, and what is removed in the name of what was there before may be what the other has just copied.
"""
_ASIDE: Final = "-aside"
"""What is behind the name of what is staged, where the file is for a moment that is there in its place."""
_BUFFER: Final = 1 << 20
"""Bytes of a file that a client holds, about; it tells nobody."""
_PLAIN = {"mime_type": "application/octet-stream", "compression_type": CompressionTypes.UNCOMPRESSED}


class FileSystemStaging(Staging):
    """See `Staging`.

    Args:
        path: with a scheme.
        options: of Beam's file systems.

    Raises:
        ValueError: Beam has none for the scheme, or not what it needs.
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._files = _filesystem(path, options)

    def begin(self, attempt: Attempt, name: str = "") -> Writing:
        """See `Staging`."""
        return self._begun(staged_name(attempt))

    def _begun(self, staged: str) -> Writing:
        self._folder_of(self.full(staged))
        return _Remote(self._files, self.full(staged), staged)

    def publish(self, files: Sequence[Staged]) -> None:
        """See `Staging`."""
        for file in files:
            staged, target = self.full(file.staged), self.full(file.name)
            aside = staged + _ASIDE
            # SUBTLE: in this order. Who renames what is staged meanwhile has made the target.
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
        """Renames to a name that is taken.

        SUBTLE: what is there is put aside, not removed: another one may have published since, and it is that one's.
        There is one such name, and no rename to a name that is taken, so only one of two has something there.
        """
        self._files.rename([target], [aside])
        try:
            self._files.rename([staged], [target])
        except Exception:
            if not self._files.exists(target):
                self._files.rename([aside], [target])
            raise
        self._files.delete([aside])

    def put(self, name: str, data: bytes, staged: str) -> None:
        """See `Staging`."""
        # SUBTLE: a file of its own. Another process may be at the same one, and write into what this one has renamed.
        writing = self._begun(f"{staged}-{uuid.uuid4().hex}")
        writing.write(data)
        made, target = self.full(writing.finish().staged), self.full(name)
        self._folder_of(target)
        if self._files.scheme() in _REPLACING:
            self._files.rename([made], [target])
            return
        # SUBTLE: in this order. What is aside by now is older than what has the name after that; and from the first
        # rename to the second `get` finds what is aside, so whoever dies in between loses nothing.
        old = [each.path for each in self._aside(name)]
        if self._files.exists(target):
            aside = self.full(f"{_aside(name)}{uuid.uuid4().hex}")
            self._files.rename([target], [aside])
            old.append(aside)
        self._files.rename([made], [target])
        for each in filter(self._files.exists, old):
            self._files.delete([each])

    def get(self, name: str) -> bytes | None:
        """See `Staging`."""
        target = self.full(name)
        if not self._files.exists(target):
            aside = max(self._aside(name), key=lambda each: each.last_updated_in_seconds, default=None)
            # Else it may have got its name meanwhile.
            if aside is not None:
                target = aside.path
            elif not self._files.exists(target):
                return None
        with self._files.open(target, **_PLAIN) as file:
            data: bytes = file.read()
        return data

    def _aside(self, name: str) -> list[Any]:
        """Where a small file may be while another one takes its name."""
        if self._files.scheme() in _REPLACING:
            return []
        (found,) = self._files.match([self.full(f"{_aside(name)}*")])
        return list(found.metadata_list)

    def delete(self, names: Iterable[str]) -> None:
        """See `Staging`."""
        for name in names:
            if self._files.exists(self.full(name)):
                self._files.delete([self.full(name)])

    def leftovers(self, job: str = "") -> Iterator[Leftover]:
        """See `Staging`."""
        now = time.time()
        (found,) = self._files.match([self.full(f"{STAGING}/{job or '*'}/*")])
        for each in found.metadata_list:
            staged = STAGING + each.path.rpartition("/" + STAGING)[2]
            told = told_by(staged)
            if told is not None:
                age = max(0.0, now - each.last_updated_in_seconds) if each.last_updated_in_seconds else 0.0
                yield Leftover(*told, staged, each.size_in_bytes, age)

    def remove(self, leftovers: Iterable[Leftover]) -> None:
        """See `Staging`."""
        self.delete([each.staged for each in leftovers])

    def _folder_of(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        # Object stores have none.
        with contextlib.suppress(OSError, NotImplementedError):
            if not self._files.exists(folder):
                self._files.mkdirs(folder)


def _aside(name: str) -> str:
    """How the names begin of what is put aside for a small file."""
    return f"{STAGING}/aside-{hashlib.sha256(name.encode()).hexdigest()[:16]}-"


def _filesystem(path: str, options: Mapping[str, Any]) -> Any:
    """A file system of its own, told of these options: what its process was told may be of another job, or of none."""
    scheme = FileSystems.get_scheme(path)
    match [kind for kind in FileSystem.get_all_subclasses() if kind.scheme() == scheme]:
        case [kind]:
            return kind(pipeline_options=PipelineOptions.from_dictionary(dict(options)))
    return FileSystems.get_filesystem(path)  # which says what is wrong


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
