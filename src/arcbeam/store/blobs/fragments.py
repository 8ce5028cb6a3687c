"""Files that are being written and have no final name yet, and the removal of those whose writers are dead.

Owns a fragment's name and lock. A killed writer cannot remove its fragment; later writers do.

The name begins with the boot of the writer's kernel, and the writer holds a lock (flock) while it lives. On the same
kernel the lock is certain evidence, also among containers, where process ids are not. The lock of another kernel's
writer may be invisible: such a fragment is removed after a day without a write, by the clock of the disk. That is safe,
too: a writer whose fragment is removed cannot give it a name, so its write fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from arcbeam.store.blobs.private import new_file

SCRATCH = ".scratch"
"""The folder of fragments, inside the folder of the final names."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FRAGMENT = re.compile(r"(?:([0-9a-f]{32})-)?[0-9a-f]{32}")
"""Without a boot: on a system that has no boot id."""
_OLD_SECONDS = 86_400.0


class Fragment:
    """A new file in a folder, locked by this process until `close`.

    Args:
        folder: exists.
        source: a local file, of which the fragment becomes a hard link; None: the fragment is empty.

    Attributes:
        path: of the file.
        descriptor: to write to; for a link only to lock.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, folder: Path, source: Path | None = None) -> None:
        while True:
            self.path = folder / "-".join(filter(None, (_boot(), uuid.uuid4().hex)))
            if source is None:
                self.descriptor = new_file(self.path)
            else:
                os.link(source, self.path)
                self.descriptor = _opened_link(self.path)
            # SUBTLE: another process may have removed it before it was locked.
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self.descriptor, fcntl.LOCK_SH)
            if self.path.exists():
                return
            self.close()

    def remove(self) -> None:
        """Remove the file, best effort. The final name may exist already: an error here is no error of the write."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        file, self.descriptor = self.descriptor, -1
        if file >= 0:
            with contextlib.suppress(OSError):
                os.close(file)


def _opened_link(path: Path) -> int:
    """Return the descriptor of a new link; without one, the link is removed."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def tidy(folder: Path, *, of_others: bool = True) -> list[Path]:
    """Remove the fragments in a folder whose writers are dead; return the removed ones. Raises nothing.

    Args:
        folder: may be missing.
        of_others: also old fragments of other hosts.
    """
    removed: list[Path] = []
    unknown: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _FRAGMENT.fullmatch(entry.name)
            if match is None or entry.is_symlink():
                continue
            with contextlib.suppress(OSError):
                known = bool(match[1]) and match[1] == _boot()
                if known and (dead := _removed_if_unlocked(Path(entry.path))) is not None:
                    removed += [Path(entry.path)] if dead else []
                else:
                    unknown.append(Path(entry.path))
    if unknown and of_others:
        removed += _removed_old(folder, unknown)
    return removed


def _removed_if_unlocked(path: Path) -> bool | None:
    """Remove a fragment without a lock; return whether it did. None: this file system has no locks."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except BlockingIOError:
        return False
    except OSError:
        return None
    finally:
        os.close(file)
    return True


def _removed_old(folder: Path, paths: list[Path]) -> Iterator[Path]:
    # By the clock of the disk, because the clocks of hosts differ.
    probe = folder / f".now-{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):
        try:
            os.close(new_file(probe))
            now = probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)
        for path in paths:
            with contextlib.suppress(OSError):
                if now - path.lstat().st_mtime > _OLD_SECONDS:
                    path.unlink()
                    yield path


def _boot() -> str:
    """Return the id of this boot of the kernel, 32 digits; empty if the system has none."""
    global _known
    if _known is None:
        try:
            _known = _BOOT_ID.read_text(encoding="ascii").strip().replace("-", "")
        except OSError:
            _known = ""
    return _known


_known: str | None = None
