"""A file system of a few megabytes, for jobs that run in processes of their own.

Whoever may mount one does so. Everybody else has it in a namespace of their own: processes enter it to use the disk,
and its files are reached through one that stays there.
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
    """A disk that is soon full.

    Attributes:
        folder: where it is, to those who run on it.
        here: the same, to this process.
        enter: what a command begins with that runs on it.
    """

    folder: Path
    here: Path
    enter: tuple[str, ...] = ()

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """While the block runs there is no room."""
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
    """Makes one at a folder; the test is skipped where nobody lets us."""
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
        pytest.skip("there is no unshare, and nobody but root can mount a small file system")
    with stays:
        try:
            assert stays.stdout is not None
            if stays.stdout.readline() != "mounted\n":
                pytest.skip("neither root nor a namespace of our own: a small file system cannot be mounted")
            enter = ("nsenter", f"--target={stays.pid}", "--user", "--mount", "--preserve-credentials")
            yield SmallDisk(folder, Path(f"/proc/{stays.pid}/root{folder}"), enter)
        finally:
            stays.kill()
