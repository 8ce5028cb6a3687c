"""Worker pools of the Python SDK, as programs of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
"""With the `python` that SDKs' programs start."""
_SECONDS = 120.0


class Pool:
    """A worker pool of the SDK, with the processes that it starts.

    Args:
        log: for its output.
        options: more of them.
        environment: more variables.
    """

    def __init__(self, log: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        self._log, self._options, self._environment = log, options, environment or {}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The options of its environment."""
        return "--environment_type=EXTERNAL", f"--environment_config=localhost:{self._port}"

    def start(self) -> None:
        """Start it, always at the same port."""
        command = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main"]
        command += [f"--service_port={self._port}", *self._options]
        environ = {**os.environ, "PATH": PATH, "PYTHONPATH": str(ROOT), **self._environment}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environ, cwd=self._log.parent, start_new_session=True
            )
        until(self._listens)

    def _listens(self) -> bool:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self._port)):
            return True
        return False

    def kill(self) -> None:
        """Kill it with all its processes, as a container is killed."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
