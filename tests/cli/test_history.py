"""`arcbeam status --history`, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from arcbeam.cli import main
from arcbeam.cli.history import sparkline
from arcbeam.store.blobs.folder import FolderBlobs
from tests.streaming.driver.test_historywriter import Driver

pytestmark = pytest.mark.contract("OPS-07")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main.main, [*arguments])


@pytest.fixture
def job(tmp_path: Path) -> str:
    driver = Driver(FolderBlobs(tmp_path / "job", sync=False))
    driver.run(20)
    driver.writer.close("DONE")
    return str(tmp_path / "job")


def test_history_of_an_ended_job_from_its_folder_alone(job: str) -> None:
    result = invoke("status", job, "--history")
    assert result.exit_code == 0, result.output
    assert "join" in result.output
    assert "end: DONE" in result.output


def test_history_as_json(job: str) -> None:
    result = invoke("--json", "status", job, "--history")
    assert result.exit_code == 0, result.output
    record = json.loads(result.output)
    assert sum(point["stages"]["join"]["read"] for point in record["rings"][2]["points"]) == 60
    assert record["events"][-1]["kind"] == "end"


def test_job_of_a_server_is_refused(job: str) -> None:
    assert invoke("status", "an-id", "--history").exit_code != 0
    assert invoke("status", job, "--history", "--watch").exit_code != 0


def test_sparkline_shows_peaks_and_gaps() -> None:
    assert sparkline([0.0, 7.0, None, 3.5]) == "▁█ ▅"
    assert sparkline([float(value == 300) for value in range(600)]).count("█") == 1
