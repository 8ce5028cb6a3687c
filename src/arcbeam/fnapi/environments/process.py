"""Workers of a PROCESS environment: a command of this machine, such as the boot program of an SDK.

Owns the process, its output, and its end with this process (`supervisor`). Must not know what the worker runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from arcbeam.fnapi.environments import supervisor
from arcbeam.fnapi.environments.output import OutputTail
from arcbeam.fnapi.lost import ProcessEnd
from arcbeam.secrets import redacted

_LOG = logging.getLogger("arcbeam.sdk")
_STOP_SECONDS_MAX: Final = 10.0
"""For the end of a process after the request, before it is killed. Its supervisor needs a part of it."""


def worker_arguments(worker: str, address: str) -> list[str]:
    """Return the arguments that the boot programs of Beam's SDKs take."""
    services = ("provision", "control", "logging", "artifact")
    return [f"--id={worker}", *(f"--{service}_endpoint={address}" for service in services)]


def _how(status: int) -> str:
    """Return the meaning of a supervisor's status."""
    number = -status if status < 0 else status - 128
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"exit status {status}"


class WorkerProcess:
    """A running process of a worker. It runs in a folder of its own, which is removed at its end.

    Args:
        command: the command with its arguments; an argument "{folder}" becomes the process's own folder.
        environment: variables, in addition to those of this process.
        ended: is called when the process has ended.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], ended: Callable[[ProcessEnd], None]
    ) -> None:
        self._command, self._ended = command[0], ended
        self._folder = folder = tempfile.mkdtemp(prefix="arcbeam-sdk-worker-")
        program = os.path.abspath(command[0]) if os.sep in command[0] else command[0]
        whole = [each.replace("{folder}", folder) for each in (program, *command[1:])]
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), folder, *whole],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            # SUBTLE: Beam's boot programs write files with fixed names, which workers of other jobs would read.
            cwd=folder,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._tail = OutputTail()
        self._reader = threading.Thread(target=self._read, name="sdk-worker-output", daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, name="sdk-worker-end", daemon=True).start()

    def _read(self) -> None:
        assert self._supervisor.stdout is not None
        for line in self._supervisor.stdout:
            text = redacted(line.rstrip())  # boot programs write the pipeline's options
            self._tail.add(text)
            _LOG.info("%s", text)

    def _wait(self) -> None:
        status = self._supervisor.wait()
        shutil.rmtree(self._folder, ignore_errors=True)  # by the supervisor already, unless it was killed
        self._reader.join(1.0)  # a process that is not killed may still hold the pipe
        self._ended(ProcessEnd(f"its process '{self._command}' has ended with status {status}", _how(status)))

    def last_lines(self) -> tuple[str, ...]:
        """Return the lines of its output that may say why it ended."""
        return self._tail.lines()

    def stop(self) -> None:
        """End the process with all its descendants."""
        assert self._supervisor.stdin is not None
        with contextlib.suppress(OSError):
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
