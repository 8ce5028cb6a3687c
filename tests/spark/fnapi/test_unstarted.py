"""Jobs whose SDK workers do not start."""

from __future__ import annotations

import json
from pathlib import Path

import apache_beam as beam
import pytest

from tests.spark.fnapi.conftest import submitted_to

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.contract("API-06", "API-08")]

_BOOT = """#!/bin/sh
echo start >> {log}
echo "Provision info: $(printf '%0900d' 0)"
echo "exec: no Python: file not found" >&2
exit 1
"""


def _of_boot(endpoint: str, folder: Path) -> beam.Pipeline:
    boot = folder / "boot"
    boot.write_text(_BOOT.format(log=folder / "log"))
    boot.chmod(0o755)
    environment = json.dumps({"command": str(boot)})
    return submitted_to(endpoint, "--environment_type=PROCESS", f"--environment_config={environment}")


def test_first_failure_ends_sparks_tries(endpoint: str, tmp_path: Path) -> None:
    p = _of_boot(endpoint, tmp_path)
    _ = p | beam.Create([1]) | beam.Map(print)
    with pytest.raises(RuntimeError, match=r"(?s)has ended with status 1.*exec: no Python.*correct the environment"):
        p.run().wait_until_finish()
    # In each of three tries, Spark would try a task four times.
    assert 3 <= len((tmp_path / "log").read_text().splitlines()) < 3 * 4
