"""A sample of the SDK's suites over Spark Connect; `test_connect` runs it in a separate process."""

from __future__ import annotations

from functools import partial

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that
from pyspark import TaskContext
from pyspark.sql import SparkSession

from arcbeam import ArcbeamRunner
from tests.conformance import suites

_SAMPLE = (
    "test_assert_that",
    "test_batch_pardo",
    "test_combine_per_key",
    "test_custom_merging_window",
    "test_error_message_includes_stage",
    "test_flattened_side_input",
    "test_group_by_key",
    "test_large_elements",
    "test_metrics",
    "test_multimap_multiside_input",
    "test_pardo_side_and_main_outputs",
    "test_pardo_state_timers",
    "test_pardo_windowed_side_inputs",
    "test_read",
    "test_reshuffle",
    "test_sdf_with_sdf_initiated_checkpointing",
    "test_windowing",
)


class FnApiConnect(suites.FnApi, only=_SAMPLE):
    variant = suites.CONNECT


def _tags(_: object) -> str:
    context = TaskContext.get()
    assert context is not None
    return context.getLocalProperty("spark.job.tags") or ""


def test_server_shows_pipeline_micro_batch_and_stages() -> None:
    """A Connect server describes its jobs itself, so the description is a tag of the job."""
    arguments = ["--spark_remote=local[2]", "--job_name=nightly", "--shards=2"]
    for more, reported in (["--streaming"], "nightly: micro-batch 1: Create/"), ([], "nightly: Create/"):
        with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([*arguments, *more])) as p:
            tags = p | beam.Create([1], reshuffle=False) | "Tags" >> beam.Map(_tags)
            assert_that(tags, partial(_all_say, f"_Tag_{reported}"))


def _all_say(what: str, found: list[str]) -> None:
    assert [tags for tags in found if what in tags] == found, found


def test_session_was_spark_connect() -> None:
    session = SparkSession.getActiveSession()
    assert type(session).__module__.startswith("pyspark.sql.connect.")
