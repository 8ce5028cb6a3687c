"""Values of one key on Spark that are larger than their worker's memory; `tests.harness.streaming` has a sample."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[4]
_ALLOWED = 1 << 30
"""Bytes of anonymous memory of the worker, with the SDK and everything else."""


@pytest.mark.long
@pytest.mark.contract("STORE-06")
@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the memory of a process on Linux only")
@pytest.mark.parametrize(("kind", "mebibytes"), [("pane", 4_096), ("bag", 4_096), ("list", 1_024)])
def test_values_of_key_may_be_larger_than_worker(
    kind: str, mebibytes: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    log = tmp_path / "log"
    with open(log, "wb") as file:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.spark.streaming.memory.largepane", str(tmp_path), kind, str(mebibytes)],
            cwd=_ROOT,
            # Memory that threads have freed stays in their arenas, and counts.
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            stdout=file,
            stderr=file,
            check=False,
            timeout=3600,
        )
    assert ended.returncode == 0, log.read_text(errors="replace")[-4000:]
    found = json.loads((tmp_path / "result").read_text())
    assert found["right"], "both iterations must have all values in order"
    assert found["size"] == mebibytes << 20
    assert found["memory"] < _ALLOWED
    record_property("seconds to read", found["seconds to read"])
