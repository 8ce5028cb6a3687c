"""A DoFn that requires stable input, on Spark: a retry sees the same elements, whatever happened to the job."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from tests.notes import note, noted
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")


class Stable(beam.ParDo):
    """A ParDo whose DoFn requires stable input, which the Python SDK cannot express."""

    def to_runner_api_parameter(self, context: Any, **extra: Any) -> tuple[str, Any]:
        urn, payload = super().to_runner_api_parameter(context, **extra)
        payload.requires_stable_input = True
        return urn, payload


class Charge(beam.DoFn):
    """Records what it is about to do, and does it when a file exists."""

    def __init__(self, folder: Path, go: Path) -> None:
        self._folder, self._go = str(folder), go

    def process(self, element: str) -> None:
        note(element, self._folder)
        while not self._go.exists():
            threading.Event().wait(0.05)


@pytest.mark.contract("API-04", "STORE-01")
def test_stable_input_is_the_same_after_retry(tmp_path: Path) -> None:
    before, after, go = tmp_path / "before", tmp_path / "after", tmp_path / "go"

    def begun(folder: Path) -> Any:
        folder.mkdir()
        options = PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={tmp_path / 'state'}"])
        p = beam.Pipeline(runner=ArcbeamRunner(), options=options)
        numbers = p | beam.Impulse() | beam.FlatMap(lambda _: range(6))
        ids = numbers | "Chance" >> beam.Map(lambda _: uuid.uuid4().hex)
        _ = ids | "Charge" >> Stable(Charge(folder, go))
        return p.run()

    first = begun(before)
    while_running(first, lambda: noted(before))
    first.cancel()
    go.touch()
    assert begun(after).wait_until_finish() == "DONE"
    assert len(noted(after)) == 6
    assert set(noted(before)) <= set(noted(after))
