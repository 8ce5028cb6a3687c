"""Environments whose SDK workers do not start."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from arcbeam.fnapi.lost import SdkWorkerNotStartedError
from arcbeam.spark.tasks.sdkworkers.starts import StartFailures, described, started
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.jobtemp.location import JobLocation

pytestmark = pytest.mark.contract("API-08")


def test_environment_is_at_fault_until_a_worker_has_started(tmp_path: Path) -> None:
    location, error = JobLocation(str(tmp_path)), SdkWorkerNotStartedError("no boot", b"one")
    started(location, [b"other"])
    found = described(location, error)
    assert found is not None
    assert found.message == "no boot"
    assert "correct the environment's command" in found.remedy
    started(location, [b"one", b"other"])
    started(location, [b"one"])
    assert described(location, error) is None


def test_location_that_cannot_be_read_does_not_hide_the_failure(tmp_path: Path) -> None:
    location = JobLocation(str(tmp_path / "job"))
    started(location, [b"one"])
    folder = tmp_path / "job" / "sdk-workers"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    with pytest.raises(StoreError):
        location.list("sdk-workers/")
    found = described(location, SdkWorkerNotStartedError("no boot", b"two", ended=True))
    assert found is not None
    assert (found.message, found.ended) == ("no boot", True)
    assert pickle.loads(pickle.dumps(found)).ended


def test_failures_to_start_are_retried_for_two_minutes() -> None:
    now = 1000.0
    starts = StartFailures(lambda: now)
    now += 30
    assert starts.may_go_better(1000.0)
    now += 89
    assert starts.may_go_better(1100.0)
    now += 1
    assert not starts.may_go_better(1119.5)


def test_worker_that_does_not_connect_is_not_waited_for_again() -> None:
    assert not StartFailures(lambda: 1180.0).may_go_better(1000.0)


def test_time_begins_again_after_a_micro_batch() -> None:
    starts = StartFailures(lambda: 1110.0)
    assert starts.may_go_better(1000.0)
    starts.ended()
    assert starts.may_go_better(1100.0)
