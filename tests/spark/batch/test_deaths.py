"""A bounded pipeline whose transform always kills its worker: the error names the transform and how the worker died."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.errors import WorkerLostError
from tests.spark.deaths import WAYS, DiesAt, dies_at, same

pytestmark = pytest.mark.usefixtures("spark")


def lost(culprit: Any) -> WorkerLostError:
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([]))
    fused = p | beam.Create(range(2_000), reshuffle=False) | "First" >> beam.Map(same) | "Second" >> beam.Map(same)
    _ = fused | "Culprit" >> culprit | "Last" >> beam.Map(same)
    with pytest.raises(WorkerLostError) as caught:
        p.run().wait_until_finish()
    return caught.value


@pytest.mark.contract("BAT-06")
@pytest.mark.parametrize("way", WAYS)
def test_error_names_transform_and_how_worker_died(way: str) -> None:
    error = lost(beam.Map(dies_at, 700, way))
    assert (error.step, error.how, error.died, error.tries) == ("Culprit", WAYS[way], True, 0)
    assert "task 4 times" in str(error)
    if way == "segfault":
        assert "string_at" in str(error)


@pytest.mark.contract("BAT-06")
def test_error_names_dofn_that_the_sdk_calls() -> None:
    error = lost(beam.ParDo(DiesAt(700, "kill")))
    assert (error.step, error.how) == ("Culprit", WAYS["kill"])
