"""The connection of a Python worker with Spark on the same machine: neither side waits for the other's silence.

Owns the settings of its sockets. Spark writes a task's input in small pieces, and TCP holds a small piece back until
the one before is acknowledged; a reader that has nothing to say acknowledges 40 ms later. Each stage of a small
pipeline would wait that long.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")


def enable_quickack() -> None:
    """Acknowledges at once what has come over TCP from this machine.

    To be called by each task, before it reads: the setting does not last. Does nothing where it is not known how, and
    where new sockets have a timeout by default: looking at one would give it to Spark's.
    """
    if not hasattr(socket, "TCP_QUICKACK") or not _OPEN_FILES.is_dir() or socket.getdefaulttimeout() is not None:
        return
    for name in os.listdir(_OPEN_FILES):
        # One that has been closed meanwhile is none of ours.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _make_prompt(int(name))


def _make_prompt(descriptor: int) -> None:
    copied = os.dup(descriptor)
    try:
        copy = socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        raise
    with copy:
        if copy.type == socket.SOCK_STREAM and copy.family in (socket.AF_INET, socket.AF_INET6):
            host = copy.getpeername()[0]
            if host == "::1" or host.removeprefix("::ffff:").startswith("127."):
                copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
