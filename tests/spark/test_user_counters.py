"""User counters of random pipelines whose tasks run several stages: each stands under its step and is exact."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from tests.spark.countedpipelines import CountedPipeline

pytestmark = pytest.mark.usefixtures("spark")

_CASES = [([], 0), (["--streaming"], 0), (["--streaming"], 1)]
_MORE = [
    pytest.param(options, seed, marks=pytest.mark.long)
    for options in ([], ["--streaming"], ["--streaming", "--no_fusion"])
    for seed in range(2, 12)
]


@pytest.mark.contract("API-06")
@pytest.mark.parametrize(("options", "seed"), [*_CASES, *_MORE])
def test_counters_equal_what_user_code_noted(options: list[str], seed: int, tmp_path: Path) -> None:
    counted = CountedPipeline(seed, tmp_path)
    pipeline = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--shards=3", *options]))
    counted.build(pipeline)
    result = pipeline.run()
    result.wait_until_finish()
    counted.check(result)
