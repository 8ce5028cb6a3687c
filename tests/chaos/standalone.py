"""Spark's own cluster: a master, and hosts that are added and lost while jobs run. Each has another address."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from tests.chaos.test_kills import below, kill_all
from tests.waiting import until

_ROOT: Final = Path(__file__).resolve().parents[2]
_SPARK: Final = Path(pyspark.__file__).parent
_SECONDS: Final = 240.0


class _Host(NamedTuple):
    process: subprocess.Popen[bytes]
    folder: Path


class Standalone:
    """A cluster, as a context manager. Its processes end with it.

    Args:
        folder: for its files.
        cores: slots of each host.
        environ: variables of its processes in addition to those of this process.

    Attributes:
        url: the master's URL.
    """

    def __init__(self, folder: Path, cores: int, environ: Mapping[str, str] | None = None) -> None:
        self._folder, self._cores, self._environ = folder, cores, environ or {}
        self._stack = contextlib.ExitStack()
        self._hosts: dict[str, _Host] = {}
        self._added = 0

    def __enter__(self) -> Standalone:
        """Start the master."""
        log = self._folder / "master.log"
        arguments = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        process = self._start(log, "master.Master", arguments, {})
        self._stack.callback(_kill, process)
        self.url = _reported(log, r"Starting Spark master at (spark://\S+)")
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes."""
        for address in list(self._hosts):
            self.lose(address)
        self._stack.close()

    @property
    def hosts(self) -> list[str]:
        """The addresses of its hosts, the oldest first."""
        return list(self._hosts)

    def add(self) -> str:
        """Add a host with an empty disk; return its address. Its executor starts later."""
        self._added += 1
        address = f"127.0.1.{self._added}"
        folder, log = self._folder / address, self._folder / f"{address}.log"
        folder.mkdir()
        where = ("--host", address, "--webui-port", "0", "--work-dir", str(folder / "work"))
        arguments = (*where, "--cores", str(self._cores), "--memory", "1g", self.url)
        process = self._start(log, "worker.Worker", arguments, {"TMPDIR": str(folder)})
        self._hosts[address] = _Host(process, folder)
        return address

    def lose(self, address: str) -> None:
        """Lose a host: all its processes, and its disk."""
        host = self._hosts.pop(address)
        _kill(host.process)
        shutil.rmtree(host.folder, ignore_errors=True)

    def wait(self) -> None:
        """Wait until the newest host is part of the cluster."""
        _reported(self._folder / f"{list(self._hosts)[-1]}.log", r"(Successfully registered)")

    def _start(
        self, log: Path, what: str, arguments: tuple[str, ...], environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        path = f"{_ROOT / 'src'}:{_ROOT}"
        ours = {"SPARK_HOME": str(_SPARK), "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", "PYTHONPATH": path}
        with open(log, "wb") as reported:
            return subprocess.Popen(
                [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments],
                env={**os.environ, **ours, **self._environ, **environ},
                stdout=reported,
                stderr=reported,
                start_new_session=True,
            )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all below it: Python's daemons have process groups of their own."""
    for pid in below(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    kill_all(process.pid)
    process.wait()


def _reported(log: Path, what: str) -> str:
    def text() -> str:
        return log.read_text(errors="replace")

    return until(lambda: re.search(what, text()), lambda: text()[-2000:], seconds=_SECONDS)[1]


@contextlib.contextmanager
def standalone(folder: Path, hosts: int, cores: int, environ: Mapping[str, str] | None = None) -> Iterator[Standalone]:
    """Start a cluster with some hosts; see `Standalone`."""
    with Standalone(folder, cores, environ) as cluster:
        for _ in range(hosts):
            cluster.add()
            cluster.wait()
        yield cluster
