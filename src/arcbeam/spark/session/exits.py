"""How the workers of Spark's Python daemon end: noted beside the file that a worker has named.

Owns what the daemon does when a worker it has forked dies. Only a parent learns its child's exit code or signal, and
PySpark's daemon does not look at it. Must not know what else is in the worker's file.
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
_LONGEST = 4096

_children: dict[int, mmap.mmap] = {}
# How those ended that had ended before `fork` returned here.
_early: dict[int, int] = {}
# Of this worker: shared with the daemon that has forked it.
_shared: mmap.mmap | None = None


def name_file(path: str) -> None:
    """Tells the daemon which file this worker writes to; nothing if the daemon is not ours."""
    encoded = path.encode()
    if _shared is not None and len(encoded) < _LONGEST:
        _shared[: len(encoded) + 1] = encoded + b"\0"


def are_noted() -> bool:
    """Return whether the daemon notes how this worker ends."""
    return _shared is not None


class Signals:
    """The module `signal` as PySpark's daemon sees it: to ignore dead children means to note how they ended."""

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        """See `signal.signal`."""
        ignored = number == signal.SIGCHLD and handler == signal.SIG_IGN
        return signal.signal(number, _reap if ignored else handler)


def forking(fork: Callable[[], int]) -> Callable[[], int]:
    """Return `os.fork` for the daemon: it shares a page with each child."""

    def forked() -> int:
        global _shared
        page = mmap.mmap(-1, _LONGEST)
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
    page = _children.pop(pid)
    path = bytes(page).partition(b"\0")[0].decode()
    page.close()
    if status and path:
        # The job's location may be gone by now: the worker was idle.
        with contextlib.suppress(OSError), open(path + SUFFIX, "x", encoding="ascii") as file:
            file.write(str(os.waitstatus_to_exitcode(status)))
