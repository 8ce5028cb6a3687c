"""A Spark Connect server in its own process, at a fixed address, that can be killed and restarted."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.waiting import until

_SPARK = Path(pyspark.__file__).parent
_ROOT = Path(__file__).resolve().parents[3]
_SECONDS = 120.0


class ConnectServer:
    """The server.

    Args:
        folder: the folder for its log.

    Attributes:
        url: its address.
    """

    def __init__(self, folder: Path) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port = found.getsockname()[1]
        self.url = f"sc://127.0.0.1:{self._port}"
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        conf = {
            "spark.connect.grpc.binding.port": self._port,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
        }
        options = [f"--conf={name}={value}" for name, value in conf.items()]
        environ = {
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}",
            "SPARK_HOME": str(_SPARK),
        }
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [
                    str(_SPARK / "bin" / "spark-submit"),
                    *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                    *("--master", "local[2]", *options, "spark-internal"),
                ],
                env={**os.environ, **environ},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._accepts, self.tail, seconds=_SECONDS, process=self._process)

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
            return True
        return False

    def kill(self) -> None:
        """Kill it, with its workers."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def tail(self) -> str:
        """Return the end of its log."""
        return self._log.read_text(errors="replace")[-3000:]
