"""`arcbeam status --history`, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from arcbeam.cli import history, main
from arcbeam.cli.history import sparkline
from arcbeam.store.blobs.folder import FolderBlobs
from tests.streaming.driver.test_historywriter import Driver

pytestmark = pytest.mark.contract("OPS-07")


_GAUGES = ("backlog", "state, bytes")


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


def test_history_has_a_line_for_each_figure(job: str) -> None:
    lines = [" ".join(line.split()) for line in invoke("status", job, "--history").output.splitlines()]
    assert "6 points of 1 s, 1970-01-01 00:16:40Z to 1970-01-01 00:16:45Z" in lines
    job_lines, stages = lines[1:5], lines[5:17]
    assert job_lines[0] == "micro-batch, s ▁▁▁▁▁▁ least 0.5, greatest 0.5, last 0.5"
    # The gap is to the clock of the commit, not to the time of the micro-batch.
    assert job_lines[1] == "watermark gap, s ▁▂▄▅▇█ least 1,000, greatest 1,005, last 1,005"
    assert job_lines[2:] == [f"{name} ▁▁▁▁▁▁ least 0, greatest 0, last 0" for name in _GAUGES]
    assert [stages[n] for n in (0, 4, 8)] == ["read", "rates", "join"]
    assert stages[9] == "read ▁████▆ least 3, greatest 12, last 9"


def test_figure_that_is_never_known_is_unknown() -> None:
    gauges: list[list[float | None] | None] = [None, [1.0, 2.0, None], [1e6, 3e6, 2e6]]
    assert [history._seconds(gauge) for gauge in gauges] == [None, None, 2.0]
    assert history._line("watermark gap, s", [None, None]) == "  watermark gap, s unknown"
    assert history._mean({"seconds": 5.0, "micro_batches": 0}) is None
    assert history._mean({"seconds": 5.0, "micro_batches": 2}) == 2.5


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
