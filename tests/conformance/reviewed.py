"""What is not the rule, test by test, with the reason: reviewed by hand, and complete.

Keys are `Class.method` as the SDK calls them. Every entry must name a test that exists (see test_harness).
"""

from __future__ import annotations

from tests.conformance.proof import Expectation

_FN = "FnApiRunnerTest"
_METRICS = "FnApiRunnerMetricsTest"
_PORTABLE = "PortableRunnerTest"
_NO_DRAIN = "Beam has no option with which a job is submitted as draining; only the runner's own constructor has one"

EXPECTATIONS = {
    # The pipeline must fail, and in the way that the test is about.
    f"{_FN}.test_assert_that": Expectation(error="Failed assert", failing_check=True),
    f"{_FN}.test_error_message_includes_stage": Expectation(error="This error is expected"),
    f"{_FN}.test_error_traceback_includes_user_code": Expectation(error="This error is expected"),
    f"{_FN}.test_sdf_with_check_done_failed": Expectation(error="(?i)restriction.*(stop|done|claim)"),
    "SideInputsTest.test_multi_valued_singleton_side_input": Expectation(error="more than one element"),
    # No assertions of their own; their DoFns raise if something is wrong, so it must be shown that they were called.
    f"{_FN}.test_pardo_side_input_dependencies": Expectation(probe=True),
    f"{_FN}.test_pardo_side_input_sparse_dependencies": Expectation(probe=True),
    f"{_FN}.test_teststream_pardo_timers": Expectation(probe=True),
    "CombineFnLifecycleTest.test_combining_value_state": Expectation(probe=True),
    "DoFnLifecycleTest.test_dofn_lifecycle": Expectation(probe=True),
    "SideInputsTest.test_reiterable_side_input": Expectation(probe=True),
    # They compare the job's metrics with what the elements amount to.
    f"{_FN}.test_metrics": Expectation(reads_results=True),
    f"{_METRICS}.test_element_count_metrics": Expectation(reads_results=True),
    f"{_METRICS}.test_non_user_metrics": Expectation(reads_results=True),
    f"{_METRICS}.test_progress_metrics": Expectation(reads_results=True),
    "PTransformTest.test_read_metrics": Expectation(reads_results=True),
}

GAPS = {
    "DeduplicateTest.test_deduplication_with_event_time": (
        "wants a timer for second 60 to have fired at a watermark of exactly that; here it fires when the watermark "
        "has passed it, as in Beam's Java runners and Prism. The SDK leaves the test out for every runner"
    ),
    "FnApiBasedStateBackedCoderTest.test_gbk_many_values": (
        "wants at most five decoded values alive; a grouping holds values as objects, up to its budget of memory"
    ),
}
"""Known to fail, and why: strict expected failures, so that nobody misses the day on which they pass."""

NOT_RUN = {
    "ExerciseStreamingMetricsPipelineTest.test_streaming_pipeline_returns_expected_user_metrics_fnapi_it": (
        "needs topics of Google Cloud Pub/Sub, and asks for the names that Dataflow's service gives to metrics"
    ),
    "RunInferenceBaseTest.test_run_inference_with_side_inputin_streaming": (
        "reads the clock for 20 minutes; the SDK leaves it out for every runner unless it is started with --streaming"
    ),
    f"{_PORTABLE}.test_draining_sdf_with_sdf_initiated_checkpointing": _NO_DRAIN,
    f"{_PORTABLE}.test_sdf_default_truncate_when_bounded": _NO_DRAIN,
    f"{_PORTABLE}.test_sdf_default_truncate_when_unbounded": _NO_DRAIN,
    f"{_PORTABLE}.test_sdf_with_truncate": _NO_DRAIN,
}
"""Tests of the SDK that cannot be asked; of no runner, or not in this way."""
