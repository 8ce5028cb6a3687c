"""Exceptions from the rule, test by test, with the reason: reviewed by hand, and complete.

Keys are `Class.method` in the SDK. Every entry must name an existing test (see test_harness).
"""

from __future__ import annotations

from tests.conformance.proof import Expectation

_FN = "FnApiRunnerTest"
_METRICS = "FnApiRunnerMetricsTest"

_GOOGLE = "needs a project in Google Cloud"
_IN_A_FIXTURE = "runs its pipeline in a fixture of pytest, and reads its printed output in the test's own process"

_BUNDLE = (
    "expects in one pane what the SDK's local runner processes in one bundle, for a trigger after a number of "
    "elements. Each runner decides how to cut elements into bundles; here a count is exact"
)
_LOST = (
    f"{_BUNDLE}. And it expects lost elements if the count is not reached; here they are output when their window "
    "ends, as from Beam's ReduceFnRunner (Java), which outputs the content of an expired window"
)
_PAIR_WITH_TIMING = "tests a primitive that only the SDK's local runner has (PairWithTiming)"

_OLD_RESHUFFLE = (
    "expects panes to be lost that Reshuffle lost before Beam 2.65, if an option selects that version. The SDK "
    "made it of other transforms; a runner may have its own (beam:transform:reshuffle:v1), which keeps the panes"
)
_OLD_TYPES = (
    "expects a failure that Reshuffle had before Beam 2.64, when its parts had no coder for the elements, if "
    "an option selects that version; here it is the runner's own exchange, which does not fail"
)
_LOCAL_PANES = (
    "expects that a session's only pane is not the last, and its time in milliseconds, as from the SDK's local "
    "runner. If no lateness is allowed, the pane at the end of a window is its last, as in Beam's ReduceFnRunner "
    "(Java). And here times have microseconds"
)

EXPECTATIONS = {
    # The pipeline must fail in the way that the test is about.
    f"{_FN}.test_assert_that": Expectation(error="Failed assert", failing_check=True),
    f"{_FN}.test_error_message_includes_stage": Expectation(error="This error is expected"),
    f"{_FN}.test_error_traceback_includes_user_code": Expectation(error="This error is expected"),
    f"{_FN}.test_sdf_with_check_done_failed": Expectation(error="(?i)restriction.*(stop|done|claim)"),
    "SideInputsTest.test_multi_valued_singleton_side_input": Expectation(error="more than one element"),
    # No assertions of their own; their DoFns raise errors, so it must be shown that they were called.
    f"{_FN}.test_pardo_side_input_dependencies": Expectation(probe=True),
    f"{_FN}.test_pardo_side_input_sparse_dependencies": Expectation(probe=True),
    f"{_FN}.test_teststream_pardo_timers": Expectation(probe=True),
    "CombineFnLifecycleTest.test_combining_value_state": Expectation(probe=True),
    "DoFnLifecycleTest.test_dofn_lifecycle": Expectation(probe=True),
    "SideInputsTest.test_reiterable_side_input": Expectation(probe=True),
    # They compare the job's metrics with their elements.
    f"{_FN}.test_metrics": Expectation(reads_results=True),
    f"{_METRICS}.test_element_count_metrics": Expectation(reads_results=True),
    f"{_METRICS}.test_non_user_metrics": Expectation(reads_results=True),
    f"{_METRICS}.test_progress_metrics": Expectation(reads_results=True),
    "PTransformTest.test_read_metrics": Expectation(reads_results=True),
    # It compares lists that are the output of pipelines.
    "CombineTest.test_top_key": Expectation(reads_results=True),
    # Transcripts that are wrong on purpose.
    "TranscriptTest.test_bad_expected_values": Expectation(error="Unmatched output", failing_check=True),
    "TranscriptTest.test_bad_expected_window": Expectation(error="Unmatched output", failing_check=True),
    "TranscriptTest.test_bad_output": Expectation(error="Unmatched output", failing_check=True),
    "TranscriptTest.test_missing_output": Expectation(error="Unexpected output", failing_check=True),
    "TranscriptTest.test_missing_output_at_end": Expectation(error="Unexpected output", failing_check=True),
    "TriggerPipelineTest.test_on_pane_watermark_hold_no_pipeline_stall": Expectation(probe=True),
    "GroupIntoBatchesTest.test_output_typehints": Expectation(probe=True),
    "CombineGloballyTest.test_combine_globally_for_unbounded_source_without_defaults": Expectation(probe=True),
    "MatchTest.test_match_files_one_directory_failure1": Expectation(error="."),
    "ReadTest.test_fail_on_directories": Expectation(error="."),
    "IdentityWindowTest.test_no_window_context_fails": Expectation(error="."),
    "PeriodicImpulseTest.test_rebase_timestamp_with_wrong_setting": Expectation(error="."),
    "GroupByEncryptedKeyTest.test_gbek_fake_secret_manager_throws": Expectation(error="."),
    "GroupByEncryptedKeyTest.test_gbek_gcp_secret_manager_throws": Expectation(error="Failed to retrieve secret bytes"),
    "BatchElementsTest.test_constant_batch": Expectation(reads_results=True),
    # One pipeline writes files, and another one, or the test, reads them.
    "WriteFilesTest.test_streaming_complex_timing": Expectation(reads_results=True),
    "WriteFilesTest.test_streaming_different_file_types": Expectation(reads_results=True),
    "WriteFilesTest.test_write_to_different_file_types": Expectation(reads_results=True),
    "WriteFilesTest.test_write_to_different_file_types_some_spilling": Expectation(reads_results=True),
    "WriteFilesTest.test_write_to_dynamic_destination": Expectation(reads_results=True),
    "WriteFilesTest.test_write_to_single_file_batch": Expectation(reads_results=True),
}

GAPS = {
    "WriteFilesTest.test_find_orphaned_files": (
        "names a file after the hash of a window in the test's own process (a memory address), as fileio itself does "
        "when it looks for such files"
    ),
    "ReshuffleTest.test_reshuffle_custom_window_preserves_metadata_1": _OLD_RESHUFFLE,
    "ReshuffleTest.test_reshuffle_default_window_preserves_metadata_1": _OLD_RESHUFFLE,
    "ReshuffleTest.test_reshuffle_unpicklable_in_global_window": _OLD_TYPES,
    "ReshuffleTest.test_reshuffle_unpicklable_in_non_global_window": _OLD_TYPES,
    "ReshuffleTest.test_reshuffle_window_fn_preserved": _LOCAL_PANES,
    "ReshuffleTest.test_reshuffle_windows_unchanged": _LOCAL_PANES,
    "TestStreamTest.test_multiple_outputs_with_watermark_advancement": _BUNDLE,
    "TriggerPipelineTest.test_after_count": _LOST,
    "TriggerPipelineTest.test_always": _BUNDLE,
    "ReverseTestStreamTest.test_basic_execution": _PAIR_WITH_TIMING,
    "ReverseTestStreamTest.test_basic_execution_in_records_format": _PAIR_WITH_TIMING,
    "ReverseTestStreamTest.test_windowing": _PAIR_WITH_TIMING,
    "BaseTestStreamTranscriptTest.test_timestamp_combiner_custom_timestamping_earliest_1": (
        "its timestamp combiner (OUTPUT_AT_EARLIEST_TRANSFORMED) is not in Beam's model: the SDK makes no proto for it"
    ),
    "DeduplicateTest.test_deduplication_with_event_time": (
        "expects a timer for second 60 to fire at exactly that watermark; here it fires when the watermark "
        "has passed it, as with Beam's InMemoryTimerInternals (Java). The SDK skips the test for every runner"
    ),
    "FnApiBasedStateBackedCoderTest.test_gbk_many_values": (
        "expects at most five of 200 values of 300 bytes alive, which depends on the runner's page size, as the "
        "test itself says. Here blocks and pages are mebibytes; of values of that size at most five are alive"
    ),
}
"""Known failures, with reasons. They are strict expected failures, so that a test that passes is noticed."""

GAPS_WITHOUT_FUSION = {
    "CombineTest.test_top_no_compact": (
        "its Top does not change accumulators, and the SDK's comparable values lose their order when they "
        "are pickled: values between stages must be compact"
    ),
    "IdentityWindowTest.test_window_preserved": (
        "gives elements another window than their collection's, which their coder cannot encode"
    ),
    "MatchContinuouslyTest.test_without_deduplication": (
        "expects the first round's results to pass the pipeline and to make a file before the second round "
        "starts; both are due when the job has started, and without fusion both start first"
    ),
    "TestStreamTest.test_windowed_values_interpreted_correctly": (
        "gives an element another window than its collection's, which the coder cannot encode. With fusion it passes, "
        "because the element is not encoded before it is checked"
    ),
}
"""The same, for variants in which every element is encoded."""

FOUND = {
    "WriteFilesTest.test_find_orphaned_files": "First list contains 1 additional elements",
    "ReshuffleTest.test_reshuffle_custom_window_preserves_metadata_1": "unexpected elements .*timing: EARLY",
    "ReshuffleTest.test_reshuffle_default_window_preserves_metadata_1": "unexpected elements .*timing: LATE",
    "ReshuffleTest.test_reshuffle_unpicklable_in_global_window": "RuntimeError not raised",
    "ReshuffleTest.test_reshuffle_unpicklable_in_non_global_window": "RuntimeError not raised",
    "ReshuffleTest.test_reshuffle_window_fn_preserved": "unexpected elements .*999999.*last: True, timing: ON_TIME",
    "ReshuffleTest.test_reshuffle_windows_unchanged": "unexpected elements .*999999.*last: True, timing: ON_TIME",
    "TestStreamTest.test_multiple_outputs_with_watermark_advancement": r"\('k', \['[abc123]'\]\) not found in window",
    "TestStreamTest.test_windowed_values_interpreted_correctly": r"unexpected elements \[\('a', .*GlobalWindow",
    "MatchContinuouslyTest.test_without_deduplication": r"missing elements \['[^']*/extra'\]",
    "CombineTest.test_top_no_compact": "AssertionError.*Top-PerKey/ExtractOutputs",
    "IdentityWindowTest.test_window_preserved": "'GlobalWindow' object has no attribute '_start_micros'",
    "TriggerPipelineTest.test_after_count": r"unexpected elements (?=.*\('A-3', )(?=.*\('A-2', \{10, 11\}\))",
    "TriggerPipelineTest.test_always": r"unexpected elements .*\('[AB]-1', .*missing elements .*'A-6'",
    "ReverseTestStreamTest.test_basic_execution": "ReverseTestStream/initial timing: transform",
    "ReverseTestStreamTest.test_basic_execution_in_records_format": "ReverseTestStream/initial timing: transform",
    "ReverseTestStreamTest.test_windowing": "ReverseTestStream/initial timing: transform",
    "BaseTestStreamTranscriptTest.test_timestamp_combiner_custom_timestamping_earliest_1": "OUTPUT_AT_EARLIEST_TRANSFO",
    "DeduplicateTest.test_deduplication_with_event_time": r"missing elements \[\('k1', Timestamp\(70\)\)\]",
    "FnApiBasedStateBackedCoderTest.test_gbk_many_values": "Too many live instances",
}
"""The failure of each of these, as a regular expression: another failure fails the test."""

# Beam's own fanout gives the elements of a bundle to one sub-key, by chance. With several bundles, lists are in any
# order, and sessions are merged by the times of precombined values, some of which then do not touch. So: one shard.
IN_ONE_BUNDLE = {
    "CombineTest.test_combining_with_session_windows_and_fanout",
    "CombineTest.test_combining_with_sliding_windows_and_fanout",
    # What each element adds to a set depends on those before it, and results must be recorded in order.
    "StatefulDoFnOnDirectRunnerTest.test_stateful_set_state_portably",
    "StatefulDoFnOnDirectRunnerTest.test_index_assignment",
}

LONG = {f"{_FN}.test_pardo_et_timer_with_no_reset", f"{_FN}.test_pardo_et_timer_with_no_reset_and_no_clear"}
"""They read the clock for 14 seconds each, as does `test_pardo_et_timer_with_no_firing`: in `make test-all` only."""

NOT_RUN = {
    "GroupByEncryptedKeyTest.test_gbek_gcp_secret_manager_roundtrips": _GOOGLE,
    "GroupByEncryptedKeyTest.test_gbk_with_gbek_option_fake_secret_manager_roundtrips": _GOOGLE,
    "MatchIntegrationTest.test_transform_on_gcs": _GOOGLE,
    "CombineGloballyTest.test_combine_globally_for_unbounded_source_with_default": (
        "the SDK's own transform, inserting a default, asserts that a side input has one pane, but the trigger fires "
        "repeatedly: the result depends on the clock. The test expects the SDK to report this"
    ),
    "PeriodicImpulseTest.test_processing_time": (
        "reads the clock, and expects elements within half a second; the SDK skips it for every runner"
    ),
    "LogElementsTest.test_setting_level_uses_appropriate_log_channel": _IN_A_FIXTURE,
    "LogElementsTest.test_stdout_logs": _IN_A_FIXTURE,
    "LogElementsTest.test_stdout_logs_without_rfc3339": _IN_A_FIXTURE,
    "ExerciseStreamingMetricsPipelineTest.test_streaming_pipeline_returns_expected_user_metrics_fnapi_it": (
        "needs topics of Google Cloud Pub/Sub, and expects the names of metrics of Dataflow's service"
    ),
    "RunInferenceBaseTest.test_run_inference_with_side_inputin_streaming": (
        "reads the clock for 20 minutes; the SDK skips it for every runner unless it is started with --streaming"
    ),
}
"""Tests of the SDK that cannot run, on any runner or not in this way. They are reported as expected failures."""

WITHOUT_PIPELINES = {
    "TestStreamTest": (
        "test_basic_test_stream",
        "test_instance_check_windowed_value_holder",
        "test_roundtrip_proto",
        "test_roundtrip_proto_multi",
        "test_test_stream_errors",
    ),
    "TriggerTest": ("*",),
    "MayLoseDataTest": ("*",),
    "RunnerApiTest": ("*",),
    "ContinuationTriggerTest": ("*",),
    "TriggerDriverTranscriptTest": ("*",),
    "BatchTranscriptTest": (
        "test_discarding_early_fixed",
        "test_early_late_sessions",
        "test_fixed_default_late_data",
        "test_fixed_drop_late_data_after_allowed_lateness",
        "test_garbage_collection",
        "test_known_late_data_no_watermark_hold_possible",
        "test_known_late_data_watermark",
        "test_timestamp_combiner_custom_timestamping_earliest_1",
    ),
    "InterfaceTest": ("*",),
    "StatefulDoFnOnDirectRunnerTest": ("test_stateful_dofn_nonkeyed_input",),
    "PeriodicSequenceTest": ("test_periodicsequence_output_size",),
    "PeriodicImpulseTest": ("test_not_enough_timestamped_value",),
    "ImpulseSeqGenDoFnWatermarkTest": ("*",),
    "SideInputsTest": ("test_default_window_mapping_fn_source_window",),
    "CombineTest": (
        "test_basic_combiners_display_data",
        "test_combine_globally_display_data",
        "test_combine_per_key_top_display_data",
        "test_combine_sample_display_data",
        "test_sample_any_negative_n",
        "test_sharded_top_combine_fn",
        "test_to_set",
        "test_tuple_combine_fn_batched_merge",
    ),
    "LatestCombineFnTest": ("*",),
    "BatchElementsTest": (
        "test_bucket_boundaries_empty_list",
        "test_bucket_boundaries_must_be_positive",
        "test_bucket_boundaries_must_be_sorted",
        "test_global_batching_dofn_single_vs_multiple_bundles",
        "test_ignore_first_n_batch_size",
        "test_ignore_next_timing",
        "test_length_aware_requires_length_fn",
        "test_length_bucket_assignment",
        "test_no_numpy_regression",
        "test_numpy_regression",
        "test_stateful_length_aware_default_boundaries",
        "test_target_duration",
        "test_target_duration_including_fixed_cost",
        "test_target_overhead",
        "test_variance",
        "test_with_custom_bucket_boundaries",
    ),
    "SortAndBatchElementsTest": (
        "test_validation_element_size_fn_callable",
        "test_validation_max_batch_size",
        "test_validation_max_batch_weight",
        "test_validation_min_batch_size",
    ),
    "SortAndBatchElementsDoFnDirectTest": ("*",),
    "ReshuffleTest": ("test_reshuffle_contents_unchanged_with_wrong_buckets",),
    "GroupIntoBatchesTest": ("test_runner_api",),
    "MatchContinuouslyTest": (
        "test_match_updated_files_keys_on_path_and_mtime",
        "test_match_updated_files_rejects_missing_mtime",
        "test_poll_fn_advances_the_mtime_watermark_on_empty_match",
        "test_poll_fn_advances_watermark_on_empty_match",
        "test_poll_fn_caps_the_mtime_watermark_at_the_poll_time",
        "test_poll_fn_disallows_empty_match",
        "test_poll_fn_gates_on_start_timestamp",
        "test_poll_fn_holds_the_mtime_watermark_again_for_a_newer_match",
        "test_poll_fn_holds_the_mtime_watermark_at_the_newest_match",
        "test_poll_fn_records_its_clock_reading_for_the_termination",
        "test_poll_fn_releases_the_mtime_watermark_once_nothing_is_newer",
        "test_poll_fn_stamps_outputs_with_mtime_for_the_cursor",
        "test_poll_fn_stamps_outputs_with_poll_time",
        "test_rejects_nonpositive_interval",
        "test_timestamp_cursor_implies_matching_updated_files",
        "test_timestamp_cursor_rejects_missing_mtime",
        "test_timestamp_cursor_requires_deduplication",
        "test_watch_window_termination_ignores_pre_start_polls",
    ),
    "WriteFilesTest": ("test_shard_naming",),
}
"""By class of the SDK: tests in its modules about streams that run no pipeline, or skip themselves; `*`: all."""

SAMPLE = frozenset(
    {
        "TestStreamTest.test_gbk_execution_no_triggers",
        "TestStreamTest.test_basic_execution_sideinputs",
        "TriggerPipelineTest.test_repeatedly_after_processing_time",
        "StatefulDoFnOnDirectRunnerTest.test_dynamic_timer_clear_timer",
        "TestStreamTranscriptTest.test_early_late_sessions",
        "MatchContinuouslyTest.test_with_deduplication",
    }
)
"""Tests of these modules that are in every test run."""
