"""A sample of the SDK's suites over Spark Connect; run by test_connect in a process of its own."""

from __future__ import annotations

from pyspark.sql import SparkSession

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


def test_that_was_spark_connect() -> None:
    session = SparkSession.getActiveSession()
    assert type(session).__module__.startswith("pyspark.sql.connect.")
