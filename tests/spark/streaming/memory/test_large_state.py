"""State on Spark that is larger than its worker's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.streaming.memory.largestate import ALLOWED

_ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.long
@pytest.mark.contract("STORE-06")
@pytest.mark.skipif(sys.platform != "linux", reason="the limit that leaves mapped files alone is Linux'")
def test_state_may_be_larger_than_memory(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    log = tmp_path / "log"
    with open(log, "wb") as file:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.spark.streaming.memory.largestate", str(tmp_path)],
            cwd=_ROOT,
            # Memory that threads have freed stays in their arenas, and counts.
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            stdout=file,
            stderr=file,
            check=False,
            timeout=3600,
        )
    assert ended.returncode == 0, log.read_text(errors="replace")[-4000:]
    reported = json.loads((tmp_path / "result").read_text())
    assert reported["keys"], "each key must have its value, also after a recovery without copies"
    assert reported["state"] > 2.5 * ALLOWED
    for what in ("µs to read", "µs to write"):
        record_property(what, reported[what])
