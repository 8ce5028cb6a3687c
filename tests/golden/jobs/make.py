"""Makes golden job folders: those of a job of `ticks` that was killed, and of one that was suspended.

    python -m tests.golden.jobs.make FOLDER        writes FOLDER/{running,suspended}.tar.gz, .txt, and MADE_WITH

A golden folder in `tests/golden/jobs` is never replaced: a later version must resume it. There is one of each supported
Beam, made with that Beam, in its environment of `tools/test_versions.py`. `expected.txt` is the output of an
uninterrupted job; the `.txt` beside an archive is the output published before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "ticks.py"
ARCBEAM = str(Path(sys.executable).with_name("arcbeam"))
MADE_WITH = "MADE_WITH"
"""The file in a golden folder that names its versions."""
LIMIT = 230
_BEHIND = 30
"""Seconds by which the job's watermark is behind the last tick: `WithWatermark` waits so long."""
_MICRO_BATCHES = 8


def environment(output: Path, limit: int | None = None) -> dict[str, str]:
    """Of a process that runs the job."""
    given = {"GOLDEN_OUTPUT": str(output), "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **given, **({} if limit is None else {"GOLDEN_LIMIT": str(limit)})}


def made_with() -> str:
    """The versions of this process that decide whether a stored pipeline is usable."""
    return f"Python {sys.version_info[0]}.{sys.version_info[1]}, Beam {metadata.version('apache-beam')}"


def lines(output: Path) -> list[str]:
    """All lines that were published, sorted."""
    return sorted(line for path in output.glob("[!.]*") for line in path.read_text(encoding="utf-8").splitlines())


def main(target: Path) -> None:
    """Run the job, keep its folder as it is while it waits, and again when it is suspended."""
    target.mkdir()
    (target / MADE_WITH).write_text(made_with() + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        job, output = Path(scratch) / "job", Path(scratch) / "output"
        output.mkdir()
        run = [ARCBEAM, "run", str(SCRIPT), f"--checkpoint_dir={job}", "--shards=2"]
        with subprocess.Popen(run, env=environment(output, LIMIT)) as driver:
            while not _waits(job):
                assert driver.poll() is None, "the job has ended"
                time.sleep(1)
            _keep(job, output, target / "running")
            subprocess.run([ARCBEAM, "suspend", str(job)], check=True)
            driver.wait()
        _keep(job, output, target / "suspended")


def _waits(job: Path) -> bool:
    """Return whether all output of the source, its results, and some further micro-batches are committed."""
    shown = subprocess.run([ARCBEAM, "status", str(job), "--json"], capture_output=True, text=True)
    if shown.returncode:
        return False
    status = json.loads(shown.stdout)
    return bool(status["watermark"] == (LIMIT - 1 - _BEHIND) * 1_000_000 and status["micro_batch"] >= _MICRO_BATCHES)


def _keep(job: Path, output: Path, name: Path) -> None:
    with tarfile.open(name.with_suffix(".tar.gz"), "w:gz") as archive:
        archive.add(job, "job")
    name.with_suffix(".txt").write_text("\n".join(lines(output)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
