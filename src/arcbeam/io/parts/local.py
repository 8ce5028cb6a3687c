"""Part files on a file system of this host, or one that is mounted: staged, synced, renamed.

Owns the order in which things become durable: the file before its committable is, its name before it is published.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from arcbeam.io.parts.naming import STAGING
from arcbeam.io.parts.staging import Leftover, Staged, Staging, Writing, staged_name, told_by
from arcbeam.model.attempts import Attempt
from arcbeam.model.disk.durable import make_durable, rename, sync_folder

_BUFFER: Final = 1 << 20
"""Bytes of a file that are written at once."""


class LocalStaging(Staging):
    """See `Staging`."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        # The attempt in whose time the folder of its files was made durable. Such a file keeps sweeps from removing the
        # folder, until the attempt is over.
        self._durable_for: Attempt | None = None

    def begin(self, attempt: Attempt, name: str = "") -> Writing:
        """See `Staging`."""
        return self._begun(staged_name(attempt), attempt)

    def _begun(self, staged: str, attempt: Attempt | None = None) -> _Local:
        full = self.full(staged)
        while True:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            # A sweep removes a folder that is empty, perhaps between these two.
            with contextlib.suppress(FileNotFoundError):
                return _Local(self, full, staged, attempt)

    def make_durable(self, folder: str, attempt: Attempt) -> None:
        """Makes the names in a folder durable in which an attempt has staged a file, and that of the folder."""
        sync_folder(folder)
        if self._durable_for != attempt:
            # SUBTLE: also if it was there before. Whoever made it may have died, or not be that far.
            sync_folder(os.path.dirname(folder))
            sync_folder(self.path)
            make_durable(self.path)
            self._durable_for = attempt

    def publish(self, files: Sequence[Staged]) -> None:
        """See `Staging`."""
        folders = {os.path.dirname(self.full(file.name)) for file in files}
        for folder in sorted(folders):
            os.makedirs(folder, exist_ok=True)
        try:
            rename(((self.full(file.staged), self.full(file.name)) for file in files), repeated=True)
        except FileNotFoundError as e:
            self.missing(e.filename, e.filename2)

    def put(self, name: str, data: bytes, staged: str) -> None:
        """See `Staging`."""
        # SUBTLE: a file of its own. Another process may be at the same one, and write into what this one has renamed.
        writing = self._begun(f"{staged}-{uuid.uuid4().hex}")
        writing.write(data)
        self.publish([replace(writing.finish(), name=name)])

    def get(self, name: str) -> bytes | None:
        """See `Staging`."""
        try:
            with open(self.full(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def delete(self, names: Iterable[str]) -> None:
        """See `Staging`."""
        folders = set()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.full(name))
            folders.add(os.path.dirname(self.full(name)))
        # Whoever has them deleted forgets them then.
        for folder in sorted(folders):
            with contextlib.suppress(FileNotFoundError):
                sync_folder(folder)

    def leftovers(self, job: str = "") -> Iterator[Leftover]:
        """See `Staging`."""
        now = time.time()
        for folder in [job] if job else _listed(self.full(STAGING)):
            for name in _listed(self.full(f"{STAGING}/{folder}")):
                staged = f"{STAGING}/{folder}/{name}"
                told = told_by(staged)
                if told is not None:
                    with contextlib.suppress(FileNotFoundError):
                        found = os.stat(self.full(staged))
                        yield Leftover(*told, staged, found.st_size, max(0.0, now - found.st_mtime))

    def remove(self, leftovers: Iterable[Leftover]) -> None:
        """See `Staging`."""
        jobs = set()
        for each in leftovers:
            jobs.add(each.job)
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.full(each.staged))
        self._tidy(jobs)

    def sweep(self, job: str, micro_batch: int) -> None:
        """See `Staging`."""
        super().sweep(job, micro_batch)
        self._tidy([job])

    def _tidy(self, jobs: Iterable[str]) -> None:
        """Removes folders that are empty."""
        for folder in (*(f"{STAGING}/{job}" for job in sorted(jobs) if job), STAGING):
            with contextlib.suppress(OSError):
                os.rmdir(self.full(folder))


class _Local(Writing):
    """A file that is being staged; of an attempt, or (None) on its way to its name."""

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
