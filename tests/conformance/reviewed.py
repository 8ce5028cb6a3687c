"""What is not the rule, test by test, with the reason: reviewed by hand, and complete.

Keys are `Class.method` as the SDK calls them. Every entry must name a test that exists (see test_harness).
"""

from __future__ import annotations

from tests.conformance.proof import Expectation

_FN = "FnApiRunnerTest"
_METRICS = "FnApiRunnerMetricsTest"
_PORTABLE = "PortableRunnerTest"
_NO_DRAIN = "Beam has no option with which a job is submitted as draining; only the runner's own constructor has one"

_GOOGLE = "needs a project in Google Cloud"
_IN_A_FIXTURE = "runs its pipeline in a fixture of pytest, and reads what that has printed in the test's own process"

_BUNDLE = (
    "wants all elements that the SDK's local runners take in one bundle in one pane of a trigger that counts; here a "
    "count is exact, however elements are cut into bundles"
)
_PAIR_WITH_TIMING = "is about a primitive that only the SDK's local runner has (PairWithTiming)"

_IN_PROCESS = "reads what user code has left in the memory of the test's own process"

_OLD_RESHUFFLE = (
    "wants what Reshuffle lost when it was made of other transforms, in versions that an option asks for; here it is "
    "an exchange of the runner's own, which keeps it"
)
_LOCAL_PANES = "wants the panes of the SDK's local runner, which does not say that a session's only one is its last"

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
    "BatchElementsTest.test_constant_batch": Expectation(reads_results=True),
    # One pipeline writes files, and another one, or the test, reads them.
    "WriteFilesTest.test_streaming_different_file_types": Expectation(reads_results=True),
    "WriteFilesTest.test_write_to_different_file_types": Expectation(reads_results=True),
    "WriteFilesTest.test_write_to_different_file_types_some_spilling": Expectation(reads_results=True),
    "WriteFilesTest.test_write_to_dynamic_destination": Expectation(reads_results=True),
    "WriteFilesTest.test_write_to_single_file_batch": Expectation(reads_results=True),
}

GAPS = {
    "CombineTest.test_top_key": _IN_PROCESS,
    "TeeTest.test_tee": _IN_PROCESS,
    "WriteFilesTest.test_streaming_complex_timing": _IN_PROCESS,
    "WriteFilesTest.test_find_orphaned_files": "names a file by a hash that is its own process's",
    "ReshuffleTest.test_reshuffle_custom_window_preserves_metadata_1": _OLD_RESHUFFLE,
    "ReshuffleTest.test_reshuffle_default_window_preserves_metadata_1": _OLD_RESHUFFLE,
    "ReshuffleTest.test_reshuffle_unpicklable_in_global_window": _OLD_RESHUFFLE,
    "ReshuffleTest.test_reshuffle_unpicklable_in_non_global_window": _OLD_RESHUFFLE,
    "ReshuffleTest.test_reshuffle_window_fn_preserved": _LOCAL_PANES,
    "ReshuffleTest.test_reshuffle_windows_unchanged": _LOCAL_PANES,
    "TestStreamTest.test_multiple_outputs_with_watermark_advancement": _BUNDLE,
    "TriggerPipelineTest.test_after_count": _BUNDLE,
    "TriggerPipelineTest.test_always": _BUNDLE,
    "ReverseTestStreamTest.test_basic_execution": _PAIR_WITH_TIMING,
    "ReverseTestStreamTest.test_basic_execution_in_records_format": _PAIR_WITH_TIMING,
    "ReverseTestStreamTest.test_windowing": _PAIR_WITH_TIMING,
    "BaseTestStreamTranscriptTest.test_timestamp_combiner_custom_timestamping_earliest_1": (
        "its timestamp combiner (OUTPUT_AT_EARLIEST_TRANSFORMED) is none of Beam's model: the SDK makes no proto of it"
    ),
    "DeduplicateTest.test_deduplication_with_event_time": (
        "wants a timer for second 60 to have fired at a watermark of exactly that; here it fires when the watermark "
        "has passed it, as in Beam's Java runners and Prism. The SDK leaves the test out for every runner"
    ),
    "FnApiBasedStateBackedCoderTest.test_gbk_many_values": (
        "wants at most five values alive; a grouping holds encodings, but what a generator puts out comes to it in "
        "blocks, and of a group a mebibyte of encodings is decoded at once"
    ),
}
"""Known to fail, and why: strict expected failures, so that nobody misses the day on which they pass."""

# Beam's own fanout gives the elements of a bundle to one sub-key, by chance: in several, lists come in any order, and
# sessions are merged by the times of what was precombined, with which some do not touch any more. So: one shard.
IN_ONE_BUNDLE = {
    "CombineTest.test_combining_with_session_windows_and_fanout",
    "CombineTest.test_combining_with_sliding_windows_and_fanout",
}

NOT_RUN = {
    "GroupByEncryptedKeyTest.test_gbek_gcp_secret_manager_roundtrips": _GOOGLE,
    "GroupByEncryptedKeyTest.test_gbk_with_gbek_option_fake_secret_manager_roundtrips": _GOOGLE,
    "GroupByEncryptedKeyTest.test_gbek_gcp_secret_manager_throws": _GOOGLE,
    "MatchIntegrationTest.test_transform_on_gcs": _GOOGLE,
    "WaitOnTest.test_find": "counts in an attribute of a module, which each of several worker processes has for itself",
    "CombineGloballyTest.test_combine_globally_for_unbounded_source_with_default": (
        "reads, as one value, a side input whose trigger fires again and again by the clock: the SDK says that this is "
        "ill-defined, and what the test asks is that it does"
    ),
    "PeriodicImpulseTest.test_processing_time": (
        "reads the clock, and wants elements within half a second of it; the SDK leaves it out for every runner"
    ),
    "LogElementsTest.test_setting_level_uses_appropriate_log_channel": _IN_A_FIXTURE,
    "LogElementsTest.test_stdout_logs": _IN_A_FIXTURE,
    "LogElementsTest.test_stdout_logs_without_rfc3339": _IN_A_FIXTURE,
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
"""By class of the SDK: what runs no pipeline in its modules about streams, or is skipped by itself; `*`: all."""

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
"""Of the tests of these modules, those that every run of the tests has."""
