"""A streaming job whose transform always kills its worker: it ends soon, and `status` shows the cause until then."""

from __future__ import annotations

import re
from pathlib import Path

import apache_beam as beam
import pytest

from arcbeam.errors import WorkerLostError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import read_newest
from arcbeam.store.log.troublenote import trouble_of
from arcbeam.store.manifest.values import Manifest
from tests.spark.deaths import WAYS, dies_at, same
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
