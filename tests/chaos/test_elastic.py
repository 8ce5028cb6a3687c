"""A streaming job on a cluster whose hosts come and go: exact output, from one driver.

Every few seconds a host is lost, with its executor and its disk, and a new one with an empty disk is added: in turn
before the loss, so that there are three for a moment, and after it, so that there is only one. `test_kills` has a short
sample, with executors of one host.

    python -m tests.chaos.test_elastic [NUMBERS_TOGETHER]
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.historyfile import history_in
from tests.chaos.pipeline import PACE, reading, wrong
from tests.chaos.standalone import Standalone, standalone
from tests.chaos.test_kills import kill_all

_ROOT: Final = Path(__file__).resolve().parents[2]
_BEAT_SECONDS: Final = 20.0
_ALONE_SECONDS: Final = 5.0
"""Seconds between the loss of a host and the addition of another one, or the other way around."""
_SECONDS: Final = 1800.0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")


class Course(NamedTuple):
    """What happened to a job.

    Attributes:
        seconds: from the first loss to the job's end.
        losses: lost hosts.
        events: by kind, what the job's history has of this.
        failures: why micro-batches failed.
        micro_batches: committed ones.
        faults: what is wrong with its output.
    """

    seconds: float
    losses: int
    events: Counter[str]
    failures: tuple[str, ...]
    micro_batches: int
    faults: list[str]


def course(folder: Path, pace: int, seed: int = 7) -> Course:
    """Run the job of `tests.chaos.pipeline` on such a cluster.

    Args:
        folder: for all files.
        pace: how many numbers its source yields together.
        seed: of the choice of the hosts that are lost.
    """
    out, state, chance = folder / "out", folder / "state", random.Random(seed)
    out.mkdir()
    with standalone(folder, 2, 1) as cluster, open(folder / "log", "wb") as log:
        job = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.chaos.pipeline", str(out), f"--checkpoint_dir={state}"),
                *(f"--spark_master={cluster.url}", "--shards=4", "--spark_conf=spark.executor.memory=512m"),
                f"--arcbeam_temp={folder / 'temp'}",
            ],
            cwd=_ROOT,
            env={**os.environ, PACE: str(pace)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _sleep(job, _SECONDS, reading(out))
            began, losses = time.monotonic(), 0
            while job.poll() is None and time.monotonic() < began + _SECONDS:
                _exchange(cluster, chance, job, first_add=bool(losses % 2))
                losses += 1
                _sleep(job, _BEAT_SECONDS - _ALONE_SECONDS)
            seconds = time.monotonic() - began
        finally:
            kill_all(job.pid)
            job.wait()
    assert job.returncode == 0, (folder / "log").read_text(errors="replace")[-4000:]
    blobs = FolderBlobs(state)
    events = history_in(blobs).events
    return Course(
        seconds,
        losses,
        Counter(event.kind for event in events),
        tuple(event.text for event in events if event.kind == "trouble"),
        known(read_newest(blobs)).micro_batch,  # type: ignore[arg-type]
        wrong(out),
    )


def _exchange(cluster: Standalone, chance: random.Random, job: subprocess.Popen[bytes], *, first_add: bool) -> None:
    """Lose one of the present hosts, and add another one."""
    lost = chance.choice(cluster.hosts)
    if first_add:
        cluster.add()
        _sleep(job, _ALONE_SECONDS)
    cluster.lose(lost)
    if not first_add:
        _sleep(job, _ALONE_SECONDS)
        cluster.add()


def _sleep(job: subprocess.Popen[bytes], seconds: float, until: Path = Path("/nonexistent")) -> None:
    """Wait while the job runs, until a file exists."""
    end = time.monotonic() + seconds
    while job.poll() is None and time.monotonic() < end and not until.exists():
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.contract("STORE-01", "STORE-02")
def test_lost_hosts_repeat_one_micro_batch_each(tmp_path: Path) -> None:
    found = course(tmp_path, pace=150)
    assert not found.faults, found.faults[:5]
    assert found.events["start"] == 1
    assert found.events["restart"] == 0
    assert found.losses > 5
    assert len(found.failures) <= found.losses, found.failures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        of = course(Path(place), int(sys.argv[1]) if len(sys.argv) > 1 else 150)
        sys.stdout.write(
            f"{of.losses} hosts lost in {of.seconds:.0f} s, {of.micro_batches} micro-batches, {len(of.failures)} "
            f"repeated, {of.events['restart']} restarts; {len(of.faults)} faults {of.faults[:5]}\n"
        )
        sys.stdout.writelines(f"{failure}\n" for failure in of.failures)
