"""The connection of a Python worker with Spark on the same machine: no delayed acknowledgements.

Owns the settings of its sockets. Spark writes a task's input in small pieces, and TCP holds a small piece back until
the one before is acknowledged. A reader that has nothing to send acknowledges only after 40 ms. Each stage of a small
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
    """Acknowledge immediately what has come over TCP from this machine.

    Each task must call this before it reads, because the setting does not last. Does nothing on systems without this
    setting. It also does nothing if new sockets have a default timeout, because inspecting Spark's socket would set
    that timeout on it.
    """
    if not hasattr(socket, "TCP_QUICKACK") or not _OPEN_FILES.is_dir() or socket.getdefaulttimeout() is not None:
        return
    for name in os.listdir(_OPEN_FILES):
        # A descriptor may have been closed since it was listed.
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
