"""The error for an SDK worker that died."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from arcbeam.errors import JobFailedError, WorkerLostError
from arcbeam.fnapi.lost import SdkWorkerLostError, WorkerAccount
from arcbeam.spark.tasks import failure
from arcbeam.spark.tasks.sdkworkers import losses
from arcbeam.store.jobtemp.location import JobLocation

pytestmark = pytest.mark.contract("API-06", "API-08")

_WHY = "the SDK worker of the command '/opt/boot' is gone: exit status 3 (its data stream ended)"


def test_one_transform_is_named() -> None:
    found = losses.described(WorkerAccount(_WHY, ("one", "two\nthree"), "exit status 3", ("A",)), "Read", "Read+A")
    assert found.message == f"{_WHY}, while it ran 'A' in stage 'Read+A'\n  one\n  two\n  three"
    assert (found.died, found.step, found.how) == (True, "A", "exit status 3")
    assert found.remedy == "return or raise an error instead of ending the process"
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_transforms_of_a_bundle_are_listed() -> None:
    found = losses.described(WorkerAccount(_WHY, transforms=tuple("ABC")), "A", "S")
    assert found.message == f"{_WHY}, while it ran 'A', 'B' or 'C' in stage 'S'"
    assert not found.step
    found = losses.described(WorkerAccount(_WHY, transforms=tuple("ABCDEFGH")), "A", "S")
    assert found.message.endswith("'A', 'B', 'C', 'D', 'E' or 3 more in stage 'S'")


def test_idle_worker_names_only_what_is_known() -> None:
    assert losses.described(WorkerAccount(_WHY), "", "").message == _WHY
    assert losses.described(WorkerAccount(_WHY), "S", "S").message == f"{_WHY}, while it ran stage 'S'"
    assert losses.described(WorkerAccount(_WHY), "A", "S").message == f"{_WHY}, while it ran 'A' in stage 'S'"


def test_killed_worker_may_need_memory() -> None:
    for how in ("signal: killed", "signal 9 (SIGKILL)"):
        assert "memoryOverhead" in losses.described(WorkerAccount(_WHY, how=how), "", "").remedy


def test_breach_of_the_protocol_has_its_text() -> None:
    found = losses.described(SdkWorkerLostError("an output is malformed").account(), "A", "S")
    assert found.message == "an output is malformed, while it ran 'A' in stage 'S'"
    assert found.how == "it does not follow the protocol"


@pytest.mark.parametrize(("run", "kind"), [("step-1-0", WorkerLostError), ("step-1-1", JobFailedError)])
def test_error_that_spark_does_not_retry_is_found(tmp_path: Path, run: str, kind: type[JobFailedError]) -> None:
    location = JobLocation(str(tmp_path))
    losses.record_loss(location, "step-1-0", losses.described(WorkerAccount(_WHY, how="exit status 3"), "A", "S"))
    text = f"An exception\narcbeam.fnapi.lost.SdkWorkerLostError: {_WHY}\n  one\n SQLSTATE: 3"
    found = failure.as_job_failure(RuntimeError(text), location, stage=run)
    assert type(found) is kind
    assert _WHY in str(found)
