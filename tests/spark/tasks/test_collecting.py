"""How Spark's UI describes arcbeam's jobs."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that
from pyspark import TaskContext

from arcbeam import ArcbeamRunner
from arcbeam.spark.tasks.collecting import described


def _shown(_: object) -> tuple[str | None, str | None]:
    context = TaskContext.get()
    assert context is not None
    group, about = (context.getLocalProperty(f"spark.{name}") for name in ("jobGroup.id", "job.description"))
    return group, about


@pytest.mark.contract("OPS-04")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("mode", "reported"),
    [((), "nightly: Create/FlatMap("), (("--streaming",), "nightly: micro-batch 1: Create/FlatMap(")],
)
def test_spark_ui_shows_pipeline_and_stages(mode: tuple[str, ...], reported: str) -> None:
    def check(found: list[tuple[str, str]]) -> None:
        ((group, about),) = found
        assert group.startswith("nightly-"), found
        assert about.startswith(reported), found
        assert ("assert_that/Group/CoGroupByKeyImpl/GroupByKey" in about) is bool(mode), (
            found
        )  # all levels of a micro-batch

    options = PipelineOptions(["--job_name=nightly", "--shards=2", *mode])
    with beam.Pipeline(runner=ArcbeamRunner(), options=options) as p:
        assert_that(p | beam.Create([1], reshuffle=False) | "Shown" >> beam.Map(_shown), check)


def test_description_has_limited_length() -> None:
    assert described("p", ["a", "b"], 3) == "p: micro-batch 3: a; b"
    assert described("p", []) == "p"
    assert len(described("p", map(str, range(1000)), 3)) < 400
