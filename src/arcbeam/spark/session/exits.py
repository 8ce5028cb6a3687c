"""How the workers of Spark's Python daemon end: noted in a file next to the one that a worker has named.

Owns what the daemon does when a worker that it forked dies. Only a parent learns its child's exit code or signal, and
PySpark's daemon ignores it. Must not know what else is in the worker's file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

SUFFIX = ".exit"
_SUFFIX = SUFFIX.encode()
_PATH_BYTES_MAX = 4096

_children: dict[int, mmap.mmap] = {}
# Statuses of children that ended before `fork` returned in the daemon.
_early: dict[int, int] = {}
# This worker's page, shared with the daemon that forked it.
_shared: mmap.mmap | None = None


def name_file(path: str) -> None:
    """Pass the name of this worker's file to the daemon; do nothing if the daemon is not arcbeam's."""
    encoded = path.encode()
    if _shared is not None and len(encoded) < _PATH_BYTES_MAX:
        _shared[: len(encoded) + 1] = encoded + b"\0"


def are_noted() -> bool:
    """Return whether the daemon notes how this worker ends."""
    return _shared is not None


class Signals:
    """The module `signal` for PySpark's daemon: instead of ignoring dead children, it notes how they ended."""

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        """Sets a handler, as `signal.signal` does; but children are reaped where they would be ignored."""
        ignored = number == signal.SIGCHLD and handler == signal.SIG_IGN
        return signal.signal(number, _reap if ignored else handler)


def forking(fork: Callable[[], int]) -> Callable[[], int]:
    """Return a replacement of `os.fork` for the daemon, which shares a page with each child."""

    def forked() -> int:
        global _shared
        page = mmap.mmap(-1, _PATH_BYTES_MAX)
        pid = fork()
        if pid:
            _children[pid] = page
            if pid in _early:
                _note(pid, _early.pop(pid))
        else:
            os.fork = fork
            _children.clear()
            _shared = page
        return pid

    return forked


def _reap(number: int, frame: FrameType | None) -> None:
    """Note how children ended. A handler of SIGCHLD.

    SUBTLE: the next signal can interrupt this handler between any two instructions, and run it once more. So it, and
    all that it calls, takes no lock, imports nothing and buffers nothing. A codec's first use is an import.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid in _children:
                _note(pid, status)
            else:
                _early[pid] = status


def _note(pid: int, status: int) -> None:
    """Write a child's exit code or signal beside its file, if it has named one. Called by the handler."""
    page = _children.pop(pid)
    path = bytes(page).partition(b"\0")[0]
    page.close()
    if status and path:
        # The job's location may have been removed: the worker was idle.
        with contextlib.suppress(OSError):
            file = os.open(path + _SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, b"%d" % os.waitstatus_to_exitcode(status))
            finally:
                os.close(file)
