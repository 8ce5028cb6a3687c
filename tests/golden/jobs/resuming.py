"""Resumes golden job folders, and checks that each result is published exactly once.

python -m tests.golden.jobs.resuming ARCHIVE ...
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.golden.jobs.make import ARCBEAM, HERE, SCRIPT, environment, lines


def resumes(golden: Path, folder: Path, from_folder_alone: bool = False) -> None:
    """Resume the job of an archive in an empty folder until its source ends; raise AssertionError if results differ.

    The script is submitted again with the folder, or its stored pipeline is used (`from_folder_alone`).
    """
    with tarfile.open(golden) as archive:
        archive.extractall(folder, filter="data")
    output = folder / "output"
    output.mkdir()
    job = folder / "job"
    command = ["resume", str(job)] if from_folder_alone else ["run", str(SCRIPT), f"--checkpoint_dir={job}"]
    ended = subprocess.run([ARCBEAM, *command], env=environment(output), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    published = set(golden.with_name(golden.name.replace(".tar.gz", ".txt")).read_text(encoding="utf-8").splitlines())
    # SUBTLE: what the last commit had is published again, under the same names where it was published before.
    again = [line for line in lines(output) if line not in published]
    assert len(again) == len(set(again))
    expected = set((HERE / "expected.txt").read_text(encoding="utf-8").splitlines())
    assert published | set(again) == expected
    assert published <= expected


if __name__ == "__main__":
    for given in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            resumes(Path(given), Path(scratch))
