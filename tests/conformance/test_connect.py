"""Spark Connect: a sample of the suites in another process, because a process has only one kind of session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from arcbeam.spark.session.java import require_java

_SAMPLE = Path(__file__).with_name("connect_sample.py")


@pytest.mark.contract("API-01")
def test_sample_of_suites_passes_over_spark_connect() -> None:
    require_java()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(_SAMPLE)]
    run = subprocess.run(command, cwd=_SAMPLE.parents[2], capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0, run.stdout[-20_000:]
    assert " passed" in run.stdout
    assert "failed" not in run.stdout.splitlines()[-1]
    assert "skipped" not in run.stdout.splitlines()[-1]
