"""The two job servers, each a process of its own: Prism, built from the Go module of the tests, and `arcbeam serve`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench.peers import CORES

MODULE = Path(__file__).resolve().parents[3] / "tests" / "sdks" / "go"
_PRISM = "github.com/apache/beam/sdks/v2/go/cmd/prism"
_PROGRAMS = "./programs"
_START_SECONDS = 120.0


def missing() -> str:
    """Return why Prism and the Go programs cannot be built; empty if they can."""
    if shutil.which("go") is None:
        return "there is no `go` on this machine"
    known = subprocess.run(["go", "list", "-deps", _PRISM, _PROGRAMS], cwd=MODULE, capture_output=True, text=True)
    if known.returncode:
        return f"the Go module is not available: {known.stderr.strip().splitlines()[-1]}"
    return ""


def built(package: str, path: Path) -> Path:
    """Build a program of the Go module at `path`."""
    subprocess.run(["go", "build", "-buildvcs=false", "-o", str(path), package], cwd=MODULE, check=True)
    return path


@dataclass(slots=True)
class Server:
    """A job server; a context manager stops it.

    Attributes:
        name: of the runner.
        endpoint: where jobs are submitted.
        process: the server.
    """

    name: str
    endpoint: str
    process: subprocess.Popen[bytes]

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def prism(folder: Path) -> Server:
    """Build and start Prism."""
    binary, port = built(_PRISM, folder / "prism-server"), _free_port()
    return _started("Prism", port, [str(binary), f"-job_port={port}", "-serve_http=false", "-log_level=error"], folder)


def arcbeam(folder: Path) -> Server:
    """Start `arcbeam serve` on `local[2]`."""
    port = _free_port()
    command = [str(Path(sys.executable).with_name("arcbeam")), "serve", f"--port={port}", f"--folder={folder / 'jobs'}"]
    return _started("arcbeam", port, [*command, "--", f"--spark_master=local[{CORES}]"], folder)


def programs(folder: Path) -> Path:
    """Build the Go programs of the tests."""
    return built(_PROGRAMS, folder / "programs")


def _started(name: str, port: int, command: Sequence[str], folder: Path) -> Server:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return Server(name, f"localhost:{port}", process)
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"{name} did not start: {log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
