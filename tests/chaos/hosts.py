"""Processes that run the tested jobs one after the other: a Spark session takes longer to start than a trial.

A host is killed together with its current driver; the next driver gets a new host. A module on the path of its
processes lets `tests.chaos.points` count (see `hook`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_LOOKS_SECONDS: Final = 0.02


class Driver:
    """One driver of a job, with a part of the interface of `subprocess.Popen`."""

    def __init__(self, host: subprocess.Popen[bytes], ended: Path) -> None:
        self._host, self._ended = host, ended
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return 0, or 1 if the job failed, or its host's exit code if the host ended; None while it runs."""
        if self.returncode is None:
            # In this order, because a host may be killed after it has reported the result.
            ended = self._host.poll()
            self.returncode = int(self._ended.read_text()) if self._ended.exists() else ended
        return self.returncode

    def wait(self, seconds: float) -> int:
        """Wait until it has ended.

        Raises:
            TimeoutExpired: it has not ended in time.
        """
        until = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("the driver", seconds)
            time.sleep(_LOOKS_SECONDS)
        return code


class Host:
    """Runs drivers with the same master.

    Args:
        folder: the host's folder.
        master: Spark's master.
        environ: variables of its processes in addition to those of this process.
    """

    def __init__(self, folder: Path, master: str, environ: Mapping[str, str] | None = None) -> None:
        folder.mkdir()
        self._environ = environ or {}
        self._now, self._log, self._master = folder / "now", folder / "log", master
        self._process: subprocess.Popen[bytes] | None = None
        self._drivers = 0

    def start(self, trial: Path, out: str, options: Sequence[str]) -> Driver:
        """Start a driver of the job of `tests.chaos.ends`.

        Args:
            trial: the trial's folder.
            out: the target of its part files.
            options: additional options of the pipeline.
        """
        partial = self._now.with_name("next")
        partial.symlink_to(trial)
        partial.replace(self._now)
        if self._process is None or self._process.poll() is not None:
            self._process = self._started()
        self._drivers += 1
        ended = self._now.with_name(f"ended-{self._drivers}")
        requested = [str(trial), str(ended), out, f"--spark_master={self._master}", *options]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(requested).encode() + b"\n")
        self._process.stdin.flush()
        return Driver(self._process, ended)

    def tail(self) -> str:
        """Return the end of its log."""
        return self._log.read_text(errors="replace")[-6000:]

    def signal(self, number: int) -> None:
        """Send a signal to it, and to all that it has started."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """End it, with all that it has started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(_ROOT / "tests" / "chaos" / "hook"), str(_ROOT)])
        trial = {"ARCBEAM_TRIAL": str(self._now), "ARCBEAM_TRIAL_ROOT": str(_ROOT), "PYTHONPATH": path}
        # It lives only for a short time, so compiling its code well does not pay.
        trial["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.ends"],
                cwd=_ROOT,
                env={**os.environ, **trial, **self._environ},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def serve(run: Callable[..., object]) -> None:
    """Run jobs on request in a host, until no more requests can arrive.

    Args:
        run: runs a job; called with its folder, the target of its files, and options.
    """
    import traceback

    for line in sys.stdin:
        trial, ended, out, *options = json.loads(line)
        try:
            sys.stderr.write(f"{run(Path(trial), out, *options)}\n")
            code = 0
        except Exception:
            traceback.print_exc()
            code = 1
        partial = Path(f"{ended}.partial")
        partial.write_text(str(code))
        partial.replace(ended)
