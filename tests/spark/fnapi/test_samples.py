"""Samples of stages whose transforms run in the submitting program, taken while the job runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sdks import surviving
from tests.sdks.sampling import samples_of
from tests.sdks.surviving import NUMBERS
from tests.sdks.trials import EXPECTED
from tests.waiting import until

pytestmark = [pytest.mark.contract("PAGE-15"), pytest.mark.usefixtures("spark")]


def test_samples_leave_the_output_unchanged(endpoint: str, tmp_path: Path) -> None:
    output, folder = tmp_path / "output", tmp_path / "job"
    output.mkdir()
    limit = output / "limit"
    limit.write_text("10")
    result = surviving.submitted(
        "stopping",
        output,
        *("--runner=PortableRunner", f"--job_endpoint={endpoint}", "--environment_type=LOOPBACK"),
        *("--experiments=disable_logging_submission_environment", "--allow_unsafe_triggers"),
        *(f"--checkpoint_dir={folder}", "--page_samples", "--shards=1"),
    )
    counts = output / "counts"
    until(lambda: counts.exists() and len(counts.read_text().splitlines()) == 10)

    def allow(number: int) -> None:
        partial = output / "partial"
        partial.write_text(str(number))
        partial.replace(limit)

    found = samples_of(str(folder), allow, 10)
    assert found["ParDo(Allowed)/Process"][0].isdigit()
    assert re.fullmatch(r"\([012], \d+\)", found["ParDo(Confirmed)"][0]), "it stays in the worker"
    assert re.fullmatch(r"'[012] \d+'", found["ParDo(Ordinals)"][0])
    assert any("OffsetRange(" in each for values in found.values() for each in values)
    allow(NUMBERS + 1)
    assert result.wait_until_finish() == "DONE"
    collected = {name: sorted((output / name).read_text().splitlines()) for name in EXPECTED}
    assert collected == EXPECTED
