"""Jobs that earlier versions left resume with this version, exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.jobs.make import HERE, MADE_WITH, made_with
from tests.golden.jobs.resuming import resumes
from tools.test_versions import BEAMS

GOLDEN = sorted(path for path in HERE.glob("*/*.tar.gz"))
OF_OLDEST_BEAM = HERE / "beam-2.76"


def versions(golden: Path) -> str:
    """Python and Beam of a job: the stored pipeline is theirs. The script itself may be submitted with any."""
    return (golden.parent / MADE_WITH).read_text(encoding="utf-8").strip()


@pytest.mark.contract("STORE-10")
@pytest.mark.long
@pytest.mark.parametrize("alone", [False, True], ids=["submitted", "alone"])
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden.parent.name}-{golden.name.split('.')[0]}")
def test_golden_job_resumes(golden: Path, alone: bool, tmp_path: Path) -> None:
    if alone and versions(golden) != made_with():
        pytest.skip(f"the pipeline in the folder is of {versions(golden)}, this process is of {made_with()}")
    resumes(golden, tmp_path, alone)


@pytest.mark.contract("STORE-10", "OPS-08")
def test_suspended_job_of_oldest_beam_resumes(tmp_path: Path) -> None:
    resumes(OF_OLDEST_BEAM / "suspended.tar.gz", tmp_path)


def test_each_supported_beam_has_golden_job() -> None:
    made = {versions(golden).partition("Beam ")[2].rpartition(".")[0] for golden in GOLDEN}
    assert set(BEAMS) <= made
    assert versions(OF_OLDEST_BEAM / "suspended.tar.gz").partition("Beam ")[2].startswith(f"{BEAMS[0]}.")
