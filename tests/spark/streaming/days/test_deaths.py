"""Streaming jobs whose transform kills its worker.

If it always does, the job ends soon, and `status` shows the cause until then. After a single death, a warning has it.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import apache_beam as beam
import pytest

from arcbeam.errors import WorkerLostError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import read_newest
from arcbeam.store.log.troublenote import trouble_of
from arcbeam.store.manifest.values import Manifest
from tests.spark.deaths import WAYS, die, dies_at, same
from tests.spark.streaming.days.jobs import pipeline

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.contract("BAT-06")
@pytest.mark.parametrize("way", ["segfault", *(pytest.param(way, marks=pytest.mark.long) for way in ("exit", "kill"))])
def test_job_fails_after_few_tries_shown_by_status(tmp_path: Path, way: str) -> None:
    p = pipeline(f"--checkpoint_dir={tmp_path / 'state'}")
    fused = p | beam.Create(range(2_000), reshuffle=False) | "First" >> beam.Map(same)
    _ = fused | "Culprit" >> beam.Map(dies_at, 700, way) | "Last" >> beam.Map(same)
    with pytest.raises(WorkerLostError) as caught:
        p.run().wait_until_finish()
    error = caught.value
    assert (error.step, error.how, error.tries) == ("Culprit", WAYS[way], 3)
    blobs = FolderBlobs(tmp_path / "state")
    head = read_newest(blobs)
    assert isinstance(head, Manifest)
    trouble = trouble_of(blobs, head)
    assert trouble is not None
    assert (trouble.stage, trouble.micro_batch) == ("Culprit", head.micro_batch + 1)
    assert re.search(rf"2 of 3\b.*'Culprit', {re.escape(WAYS[way])}", trouble.why)


def dies_once(element: int, died: Path) -> int:
    """Kill its worker at the first call."""
    if not died.exists():
        died.touch()
        die("exit")
    return element


def test_repeated_attempt_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    p = pipeline()
    _ = p | beam.Create([1, 2], reshuffle=False) | "Culprit" >> beam.Map(dies_once, tmp_path / "died")
    with caplog.at_level(logging.WARNING, "arcbeam.streaming"):
        p.run().wait_until_finish()
    reported = "\n".join(caplog.messages)
    attempt = r"attempt 1 of task \d failed \(micro-batch 1, level \d\); Spark ran it again: on host \S+: a Python"
    assert re.search(attempt, reported)
    assert "a Python worker died: exit code 7, in transform 'Culprit'" in reported
