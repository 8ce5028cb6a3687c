"""Part files on a file system of this host, or one that is mounted: staged, synced, renamed.

Owns the order in which things become durable: the file before its committable is, its name before it is published.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from arcbeam.io.parts.naming import STAGING
from arcbeam.io.parts.staging import Leftover, Staged, Staging, Writing, staged_name, told_by
from arcbeam.model.attempts import Attempt

_BUFFER: Final = 1 << 20
"""Bytes of a file that are written at once."""


class LocalStaging(Staging):
    """See `Staging`."""

    def begin(self, attempt: Attempt, name: str = "") -> Writing:
        """See `Staging`."""
        return self._begun(staged_name(attempt))

    def _begun(self, staged: str) -> Writing:
        full = self.full(staged)
        while True:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            # A sweep removes a folder that is empty, perhaps between these two.
            with contextlib.suppress(FileNotFoundError):
                return _Local(full, staged)

    def publish(self, files: Sequence[Staged]) -> None:
        """See `Staging`."""
        folders: set[str] = set()
        for file in files:
            target, staged = self.full(file.name), self.full(file.staged)
            folder = os.path.dirname(target)
            _make_durable(folder, folders)
            try:
                os.replace(staged, target)
            except FileNotFoundError:
                if not os.path.exists(target):
                    self.missing(staged, target)
        # One that was published before, by who died then, may not be durable yet either.
        for folder in sorted(folders):
            _sync(folder)

    def put(self, name: str, data: bytes, staged: str) -> None:
        """See `Staging`."""
        writing = self._begun(staged)
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
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.full(name))

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

    def sweep(self, job: str, step: int) -> None:
        """See `Staging`."""
        super().sweep(job, step)
        self._tidy([job])

    def _tidy(self, jobs: Iterable[str]) -> None:
        """Removes folders that are empty."""
        for folder in (*(f"{STAGING}/{job}" for job in sorted(jobs) if job), STAGING):
            with contextlib.suppress(OSError):
                os.rmdir(self.full(folder))


class _Local(Writing):
    held = _BUFFER

    def __init__(self, full: str, staged: str) -> None:
        self._full, self._staged = full, staged
        self._file = open(full, "wb", buffering=_BUFFER)  # noqa: SIM115  # closed when it is staged

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def finish(self) -> Staged:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        _sync(os.path.dirname(self._full))
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


def _make_durable(folder: str, synced: set[str]) -> None:
    """Makes a folder, and notes it and those that have become new as to be synced."""
    if folder in synced:
        return
    above = folder
    while not os.path.isdir(above):
        synced.add(above)
        above = os.path.dirname(above) or "."
    synced.update((above, folder))
    os.makedirs(folder, exist_ok=True)


def _sync(folder: str) -> None:
    """What was renamed into a folder stays there, whatever happens to the host."""
    number = os.open(folder or ".", os.O_RDONLY)
    try:
        # Some network file systems know no fsync of folders.
        with contextlib.suppress(OSError):
            os.fsync(number)
    finally:
        os.close(number)
