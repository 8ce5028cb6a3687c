"""A job whose Spark master was restarted without recovery: it has no executors any more, and never gets one.

Its driver logs this, `arcbeam status` shows it, and a SIGTERM ends it in the documented time.

    python -m tests.chaos.test_no_executors
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyspark
import pytest

from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import read_newest
from arcbeam.store.manifest.values import Manifest, ManifestKind
from tests.chaos.test_kills import below, kill_all
from tests.waiting import until

_ROOT = Path(__file__).resolve().parents[2]
_SPARK = Path(pyspark.__file__).parent
_PATIENCE: Final = 300.0
SIGTERM_SECONDS: Final = 15.0
"""An option of the job. A supervisor kills it this many seconds later, as Kubernetes does with both sides' defaults:"""
KILLED_SECONDS: Final = 5.0


class Ended(NamedTuple):
    """How the job ended.

    Attributes:
        reported: seconds until its folder recorded that no task runs.
        status: what `arcbeam status` showed then.
        seconds: from the SIGTERM to the end of the process.
        code: exit code of the process.
    """

    reported: float
    status: dict[str, Any]
    seconds: float
    code: int


@contextlib.contextmanager
def _spark(folder: Path, what: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environ = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"}
    with open(folder / f"{what}.log", "ab") as log:
        process = subprocess.Popen(
            [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments],
            env={**os.environ, "SPARK_HOME": str(_SPARK), **environ},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for pid in below(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        kill_all(process.pid)
        process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def trial(folder: Path) -> Ended:
    """Run a job, restart its master, wait until the job reports the cause, and end it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url, state, out = f"spark://127.0.0.1:{port}", folder / "state", folder / "out"
    out.mkdir()
    master = ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")

    def committed() -> bool:
        with contextlib.suppress(FileNotFoundError):
            head = read_newest(FolderBlobs(state))
            return isinstance(head, Manifest) and head.kind is ManifestKind.MICRO_BATCH
        return False

    def status() -> dict[str, Any]:
        command = [sys.executable, "-c", "from arcbeam.cli.main import main; main()", "status", str(state), "--json"]
        found = subprocess.run(command, capture_output=True, check=True, cwd=_ROOT)
        record: dict[str, Any] = json.loads(found.stdout)
        return record

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        first.enter_context(_spark(folder, *master))
        until(lambda: _answers(port), seconds=_PATIENCE)
        where = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(folder / "work")]
        stack.enter_context(_spark(folder, "worker.Worker", *where, "--cores", "2", "--memory", "1g", url))
        with open(folder / "job.log", "wb") as log:
            job = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.chaos.pipeline", str(out), f"--checkpoint_dir={state}"),
                    *(f"--spark_master={url}", "--shards=2", "--spark_conf=spark.executor.memory=512m"),
                    *(f"--arcbeam_temp={folder / 'temp'}", f"--sigterm_seconds={SIGTERM_SECONDS:g}"),
                ],
                cwd=_ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        stack.callback(kill_all, job.pid)
        until(committed, seconds=_PATIENCE)
        first.close()
        stack.enter_context(_spark(folder, *master))
        began = time.monotonic()
        shown: list[dict[str, Any]] = []

        def is_reported() -> bool:
            shown.append(status())
            return bool((shown[-1]["driver"] or {}).get("trouble"))

        until(is_reported, seconds=_PATIENCE)
        reported = time.monotonic() - began
        os.kill(job.pid, signal.SIGTERM)
        began = time.monotonic()
        code = job.wait(_PATIENCE)
        return Ended(reported, shown[-1], time.monotonic() - began, code)


@pytest.mark.long
@pytest.mark.contract("OPS-02", "END-04")
def test_job_without_executors_reports_and_ends_in_time(tmp_path: Path) -> None:
    ended = trial(tmp_path)
    assert ended.status["causes"][0]["kind"] == "driver"
    assert ended.status["silent"] is None
    assert ended.seconds < SIGTERM_SECONDS + KILLED_SECONDS
    assert ended.code != 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        of = trial(Path(place))
        sys.stdout.write(
            f"reported after {of.reported:.0f} s: {of.status['driver']['trouble']}\n"
            f"ended {of.seconds:.1f} s after the SIGTERM, exit code {of.code}\n"
        )
