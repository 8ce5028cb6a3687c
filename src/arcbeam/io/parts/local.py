"""Part files on a local or mounted file system: staged, synced, renamed.

Owns the order of syncs: a file is durable before its committable is, and its name before it counts as published.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from typing_extensions import override

from arcbeam.io.parts.naming import STAGING
from arcbeam.io.parts.staging import Leftover, Staged, Staging, Writing, origin_of, staged_name
from arcbeam.model.attempts import Attempt
from arcbeam.model.disk.durable import make_durable, rename, sync_folder

_BUFFER: Final = 1 << 20
"""Bytes that are written to a file in one call."""


class LocalStaging(Staging):
    """See `Staging`."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        # The attempt for which the folder of its files was made durable. Its file keeps sweeps from removing the folder
        # until the attempt has ended.
        self._durable_for: Attempt | None = None

    @override
    def begin(self, attempt: Attempt, name: str = "") -> Writing:
        return self._begun(staged_name(attempt), attempt)

    def _begun(self, staged: str, attempt: Attempt | None = None) -> _Local:
        full = self.full(staged)
        while True:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            # A sweep removes empty folders, perhaps between these two calls.
            with contextlib.suppress(FileNotFoundError):
                return _Local(self, full, staged, attempt)

    def make_durable(self, folder: str, attempt: Attempt) -> None:
        """Make the name of a file that an attempt has staged durable, and the name of its folder."""
        sync_folder(folder)
        if self._durable_for != attempt:
            # SUBTLE: also if the folder existed. The process that created it may have died before syncing it.
            sync_folder(os.path.dirname(folder))
            sync_folder(self.path)
            make_durable(self.path)
            self._durable_for = attempt

    @override
    def publish(self, files: Sequence[Staged]) -> None:
        folders = {os.path.dirname(self.full(file.name)) for file in files}
        for folder in sorted(folders):
            os.makedirs(folder, exist_ok=True)
        try:
            rename(((self.full(file.staged), self.full(file.name)) for file in files), repeated=True)
        except FileNotFoundError as e:
            self.missing(e.filename, e.filename2)

    @override
    def put(self, name: str, data: bytes, staged: str) -> None:
        # SUBTLE: a file of its own. Another process may write the same file, also after this one has renamed it.
        writing = self._begun(f"{staged}-{uuid.uuid4().hex}")
        writing.write(data)
        self.publish([replace(writing.finish(), name=name)])

    @override
    def get(self, name: str) -> bytes | None:
        try:
            with open(self.full(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    @override
    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.full(name))
            folders.add(os.path.dirname(self.full(name)))
        # The caller forgets the files after this call, so their removal must be durable.
        for folder in sorted(folders):
            with contextlib.suppress(FileNotFoundError):
                sync_folder(folder)

    @override
    def leftovers(self, job: str = "") -> Iterator[Leftover]:
        now = time.time()
        for folder in [job] if job else _listed(self.full(STAGING)):
            for name in _listed(self.full(f"{STAGING}/{folder}")):
                staged = f"{STAGING}/{folder}/{name}"
                origin = origin_of(staged)
                if origin is not None:
                    with contextlib.suppress(FileNotFoundError):
                        found = os.stat(self.full(staged))
                        yield Leftover(*origin, staged, found.st_size, max(0.0, now - found.st_mtime))

    @override
    def remove(self, leftovers: Iterable[Leftover]) -> None:
        jobs = set()
        for each in leftovers:
            jobs.add(each.job)
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.full(each.staged))
        self._tidy(jobs)

    @override
    def sweep(self, job: str, micro_batch: int) -> None:
        super().sweep(job, micro_batch)
        self._tidy([job])

    def _tidy(self, jobs: Iterable[str]) -> None:
        """Remove empty folders."""
        for folder in (*(f"{STAGING}/{job}" for job in sorted(jobs) if job), STAGING):
            with contextlib.suppress(OSError):
                os.rmdir(self.full(folder))


class _Local(Writing):
    """A staged file of an attempt; without an attempt, a small file that is renamed at once."""

    held = _BUFFER

    def __init__(self, place: LocalStaging, full: str, staged: str, attempt: Attempt | None) -> None:
        self._place, self._full, self._staged, self._attempt = place, full, staged, attempt
        self._file = open(full, "wb", buffering=_BUFFER)  # noqa: SIM115  # closed when it is staged

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def finish(self) -> Staged:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._attempt is not None:
            self._place.make_durable(os.path.dirname(self._full), self._attempt)
        return Staged(self._staged, self.size)

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.remove(self._full)


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
