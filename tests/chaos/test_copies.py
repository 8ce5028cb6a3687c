"""Tasks that Spark runs twice concurrently, because one takes long: the output is that of one attempt.

Spark runs a copy only on another host, and all executors of its `local-cluster` are one host. So this is a cluster of
processes with two addresses of this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.chaos.copies import met, wrong_bounded
from tests.chaos.pipeline import wrong
from tests.chaos.test_kills import kill_all
from tests.waiting import until

_ROOT = Path(__file__).resolve().parents[2]
_SPARK = Path(pyspark.__file__).parent
_SECONDS = 60.0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
_CONF = {
    "spark.speculation": "true",
    # A task of a small stage is copied after this time, whatever the others take.
    "spark.speculation.task.duration.threshold": "500ms",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
}


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start Spark's own cluster: a master, and workers of two slots at two addresses; yield the master's URL."""
    with contextlib.ExitStack() as stack:

        def start(log: Path, what: str, *arguments: str) -> None:
            environ = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", "PYTHONPATH": str(_ROOT / "src") + f":{_ROOT}"}
            with open(log, "wb") as reported:
                process = subprocess.Popen(
                    [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments],
                    env={**os.environ, "SPARK_HOME": str(_SPARK), **environ},
                    stdout=reported,
                    stderr=reported,
                    start_new_session=True,
                )
            stack.callback(process.wait)
            stack.callback(kill_all, process.pid)

        log = folder / "master.log"
        start(log, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = _reported(log, r"Starting Spark master at (spark://\S+)")
        for host in ("127.0.0.1", "127.0.0.2"):
            of = folder / f"{host}.log"
            where = ["--host", host, "--webui-port", "0", "--work-dir", str(folder / host)]
            start(of, "worker.Worker", *where, "--cores", "2", "--memory", "1g", url)
            _reported(of, r"(Successfully registered)")
        yield url


def _reported(log: Path, what: str) -> str:
    def text() -> str:
        return log.read_text(errors="replace")

    return until(lambda: re.search(what, text()), lambda: text()[-2000:], seconds=_SECONDS)[1]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


def _run(kind: str, least: int, folder: Path, master: str, *options: str) -> Path:
    """Run a job in a separate process; return its output folder. At least this many tasks must run beside a copy."""
    out = folder / "out"
    out.mkdir()
    with open(folder / "log", "wb") as log:
        job = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.chaos.copies", kind, str(out)),
                f"--arcbeam_temp={folder / 'temp'}",
                f"--spark_master={master}",
                "--shards=2",
                *(f"--spark_conf={name}={value}" for name, value in _CONF.items()),
                *options,
            ],
            cwd=_ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            job.wait(timeout=600)
        finally:
            kill_all(job.pid)
    assert job.returncode == 0, (folder / "log").read_text(errors="replace")[-4000:]
    assert met(out) >= least, sorted(path.name for path in (out / "tasks").iterdir())
    return out


@pytest.mark.long
@pytest.mark.contract("STORE-02")
def test_one_of_two_concurrent_attempts_counts(master: str, tmp_path: Path) -> None:
    assert not wrong(_run("steps", 3, tmp_path, master, f"--checkpoint_dir={tmp_path / 'state'}"))


@pytest.mark.long
@pytest.mark.contract("STORE-02", "BAT-04")
def test_one_concurrent_attempt_counts_in_bounded_job(master: str, tmp_path: Path) -> None:
    assert not wrong_bounded(_run("bounded", 2, tmp_path, master))
