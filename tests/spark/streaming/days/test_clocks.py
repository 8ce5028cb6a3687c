"""A streaming job on Spark whose clock jumps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arcbeam.spark.session.java import require_java


@pytest.mark.long
@pytest.mark.contract("ENG-07", "ENG-12", "SDF-04", "STORE-04")
def test_job_is_correct_when_clock_jumps(tmp_path: Path) -> None:
    """Nothing is lost or duplicated, no watermark goes back, and delays of a second stay a second."""
    require_java()
    clock, reported, folder = tmp_path / "clock", tmp_path / "reported", tmp_path / "job"
    clock.write_text("0")
    folder.mkdir()
    path = os.pathsep.join([str(Path(__file__).parent / "clock"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "ARCBEAM_TRIAL_CLOCK": str(clock)}
    with reported.open("wb") as log:
        job = subprocess.run(
            [sys.executable, "-m", "tests.spark.streaming.days.jumping", str(folder)], stdout=log, stderr=log, env=env
        )
    assert job.returncode == 0, reported.read_text()
