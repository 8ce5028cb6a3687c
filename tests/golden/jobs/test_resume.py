"""Jobs that earlier versions left resume with this version, exactly once."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.golden.jobs.make import ARCBEAM, HERE, SCRIPT, environment, lines

GOLDEN = sorted(path for path in HERE.glob("*/*.tar.gz"))
MADE_WITH = "3.11", "2.77.0"
"""Python and Beam of the jobs: the stored pipeline is theirs. The script itself may be submitted with any."""
SUBMITTED, ALONE = "submitted again", "from its folder alone"


@pytest.mark.contract("STORE-10")
@pytest.mark.parametrize(
    ("golden", "way"),
    [
        pytest.param(golden, way, id=f"{golden.parent.name}-{golden.name.split('.')[0]}-{way.split()[0]}", marks=marks)
        for golden in GOLDEN
        for way, marks in ((SUBMITTED, pytest.mark.long), (ALONE, pytest.mark.long))
    ],
)
def test_golden_job_resumes(golden: Path, way: str, tmp_path: Path) -> None:
    _resumes(golden, way, tmp_path)


@pytest.mark.contract("STORE-10")
def test_newest_suspended_job_resumes(tmp_path: Path) -> None:
    _resumes([path for path in GOLDEN if path.name.startswith("suspended")][-1], SUBMITTED, tmp_path)


def _resumes(golden: Path, way: str, folder: Path) -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}", metadata.version("apache-beam")
    if way == ALONE and here != MADE_WITH:
        pytest.skip(f"the pipeline in the folder is of Python and Beam {MADE_WITH}, these are {here}")
    with tarfile.open(golden) as archive:
        archive.extractall(folder, filter="data")
    output = folder / "output"
    output.mkdir()
    job = folder / "job"
    command = ["run", str(SCRIPT), f"--checkpoint_dir={job}"] if way == SUBMITTED else ["resume", str(job)]
    ended = subprocess.run([ARCBEAM, *command], env=environment(output), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    published = set(golden.with_name(golden.name.replace(".tar.gz", ".txt")).read_text(encoding="utf-8").splitlines())
    # SUBTLE: what the last commit had is published again, under the same names where it was published before.
    again = [line for line in lines(output) if line not in published]
    assert len(again) == len(set(again))
    expected = set((HERE / "expected.txt").read_text(encoding="utf-8").splitlines())
    assert published | set(again) == expected
    assert published <= expected
