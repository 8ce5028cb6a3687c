"""What a micro-batch's failure means to the job."""

from __future__ import annotations

import pytest

from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.errors import ArcbeamError, JobFailedError, SdkWorkerStartError, UserCodeError, WorkerLostError
from arcbeam.spark.streaming.cluster import may_go_better
from arcbeam.store.blobs.errors import (
    AwayError,
    DamagedFileError,
    DeterminateError,
    IndeterminateError,
    MissingFileError,
    NewerFormatError,
)


@pytest.mark.contract("STORE-01", "BAT-04")
@pytest.mark.parametrize(
    "error",
    [
        DeterminateError("full"),
        IndeterminateError("no answer"),
        AwayError("not mounted"),
        WorkerLostError("killed"),
        SdkWorkerStartError("its process has ended"),
        InconsistentCutError("two attempts"),
        JobFailedError("whatever Spark says"),
    ],
)
def test_transient_failure_is_retried(error: ArcbeamError) -> None:
    assert may_go_better(error)


@pytest.mark.parametrize(
    "error",
    [
        MissingFileError("lost"),
        DamagedFileError("cut off"),
        NewerFormatError("of a later version"),
        UserCodeError("Map", "ValueError", ""),
        ValueError("a mistake of ours"),
    ],
)
def test_permanent_failure_is_not_retried(error: Exception) -> None:
    assert not may_go_better(error)
