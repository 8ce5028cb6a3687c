"""A file system of a few megabytes, for jobs in separate processes.

It is mounted directly if this process may mount. Otherwise it is mounted in a separate namespace: processes enter it to
use the disk, and its files are reached through a process that stays there.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_STAYS = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec sleep infinity'


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A disk that fills up quickly.

    Attributes:
        folder: its path for processes on it.
        here: its path for this process.
        enter: prefix of commands that run on it.
    """

    folder: Path
    here: Path
    enter: tuple[str, ...] = ()

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Leave no room while the block runs."""
        ballast = self.here / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        try:
            yield
        finally:
            ballast.unlink()


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "4m") -> Iterator[SmallDisk]:
    """Make one at a folder; skip the test if mounting is not permitted."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if not mounted.returncode:
        try:
            yield SmallDisk(folder, folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
        return
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _STAYS, "sh", size, str(folder)]
    try:
        stays = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        pytest.skip("cannot mount a small file system: not root, and unshare is missing")
    with stays:
        try:
            assert stays.stdout is not None
            if stays.stdout.readline() != "mounted\n":
                pytest.skip("cannot mount a small file system: not root, and no namespace is permitted")
            enter = ("nsenter", f"--target={stays.pid}", "--user", "--mount", "--preserve-credentials")
            yield SmallDisk(folder, Path(f"/proc/{stays.pid}/root{folder}"), enter)
        finally:
            stays.kill()
