"""A program that runs a command, and ends it with all its descendants when its own standard input ends.

The process that needs the command holds the other end of that pipe, so the command ends with it, however it is killed.
Started as a file, so it imports nothing but the standard library.

Usage: supervisor.py FOLDER COMMAND [ARGUMENT]…; FOLDER is removed at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

_STOP_SECONDS_MAX = 5.0
"""From the request to end until everything is killed."""
_PR_SET_PDEATHSIG = 1


def _end_with_supervisor() -> None:
    """Have Linux kill the command if this process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """Return the processes of a session. Boot programs give their workers groups of their own, in the same session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                found.append(int(stat.parent.name))
    return found


def _kill(leader: int) -> None:
    for pid in _session(leader):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def _end_with_input(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        pass
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_STOP_SECONDS_MAX)
    _kill(child.pid)


def main(folder: str, *command: str) -> int:
    """Run the command; return its status, or 128 and the number of the signal that ended it."""
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_supervisor
        )
    except OSError as e:
        sys.stdout.write(f"cannot start '{command[0]}': {e.strerror}\n")
        return 127
    threading.Thread(target=_end_with_input, args=(child,), daemon=True).start()
    try:
        status = child.wait()
    finally:
        _kill(child.pid)
        shutil.rmtree(folder, ignore_errors=True)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
