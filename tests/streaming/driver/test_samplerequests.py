"""Requests for samples: the driver passes each to micro-batches until there are samples, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from arcbeam.errors import ArcbeamError, JobFailedError, RequestRefusedError
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.log import requests as files
from arcbeam.store.log.requests import RequestKind
from arcbeam.streaming.assignment import SampleOrder
from arcbeam.streaming.driver.requests import RequestQueue
from arcbeam.streaming.driver.samplerequests import SampleRequests
from arcbeam.streaming.status.samples import KEPT_SECONDS, SAMPLES_MAX, record_samples, remove_old_samples, sampled
from arcbeam.testing.blobs import MemoryBlobs
from tests.store.samples import opened

pytestmark = pytest.mark.contract("PAGE-15")

STAGES = {"Count", "Other"}
SECOND = 1_000_000


class Driver:
    """The side of a driver: its queue of requests, without a machine."""

    def __init__(self, stages: set[str] | None = STAGES) -> None:
        self.blobs = MemoryBlobs()
        self.log = opened(self.blobs)
        self.time = Timestamp(1_000 * SECOND)
        self.samples = SampleRequests(stages)
        self.requests = RequestQueue(self, self, samples=self.samples)  # type: ignore[arg-type]
        self.requests.opened(self.blobs, self.log.head)

    def now(self) -> Timestamp:
        return self.time

    def put(self, event: Any) -> None:
        raise AssertionError(f"the machine does not learn of samples: {event}")

    def ask(self, stage: str = "Count") -> str:
        return files.ask(self.blobs, RequestKind.SAMPLE, "", self.time, stage=stage).id

    def ran(self, *sampled: str) -> None:
        self.samples.ran(sampled)


def taken(count: int, task: int) -> dict[str, Any]:
    elements = [{"value": f"{task}/{n}", "time": n, "windows": ["w"], "pane": ""} for n in range(count)]
    return {"outputs": [{"output": "Count/Sum", "elements": elements}], "failure": None}


def test_request_is_carried_until_there_are_samples() -> None:
    driver = Driver()
    assert driver.samples.wanted() == ()
    id = driver.ask()
    driver.requests.look()
    order = SampleOrder(id, "Count")
    assert driver.samples.wanted() == (order,)
    driver.ran("Other")
    assert driver.samples.wanted() == (order,)
    driver.samples.ran(None)
    assert driver.samples.wanted() == (), "whether there are samples is not known yet"
    driver.requests.look()
    assert driver.samples.wanted() == (order,)
    assert files.waiting(driver.blobs) == [id]
    record_samples(driver.blobs, id, 0, 1, taken(1, 1))
    driver.requests.look()
    assert files.waiting(driver.blobs) == [id], "other tasks still run"
    driver.ran("Count")
    driver.requests.look()
    assert files.waiting(driver.blobs) == []
    assert driver.samples.wanted() == ()


def test_withdrawn_and_forgotten_requests_are_not_carried() -> None:
    driver = Driver()
    id = driver.ask()
    driver.requests.look()
    driver.blobs.delete(f"requests/{id}")
    driver.requests.look()
    assert driver.samples.wanted() == ()
    id = driver.ask()
    driver.requests.look()
    record_samples(driver.blobs, id, 0, 0, taken(1, 0))
    driver.time = Timestamp(driver.time + round(KEPT_SECONDS * SECOND) + SECOND)
    driver.requests.look()
    assert driver.samples.wanted() == ()
    assert files.waiting(driver.blobs) == []
    driver.requests.forget_old()
    assert not list(driver.blobs.list("samples"))


def test_old_files_are_removed_and_new_ones_stay() -> None:
    blobs = MemoryBlobs()
    record_samples(blobs, f"{1:016d}-a", 0, 0, taken(1, 0))
    record_samples(blobs, f"{2_000 * SECOND:016d}-b", 0, 0, taken(1, 0))
    remove_old_samples(blobs, Timestamp(2_000 * SECOND))
    assert [info.name for info in blobs.list("samples")] == [f"samples/{2_000 * SECOND:016d}-b/0-0"]


def requested(driver: Driver, serve: Callable[[str], None], stage: str = "Count", seconds: float = 5.0) -> Any:
    """Return what a requester gets while the driver serves: `serve` is called once, with the request's id."""
    ended = threading.Event()

    def run() -> None:
        served = False
        while not ended.wait(0.02):
            driver.time = Timestamp(driver.time + 1)
            waiting = files.waiting(driver.blobs)
            driver.requests.look()
            if waiting and not served:
                served = True
                driver.samples.wanted()
                serve(waiting[0])
                driver.ran(stage)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        return sampled(driver.blobs, stage, seconds)
    finally:
        ended.set()
        thread.join()


def test_requester_gets_samples_of_all_tasks_and_leaves_no_file() -> None:
    driver = Driver()

    def serve(id: str) -> None:
        for task in range(2):
            record_samples(driver.blobs, id, 0, task, taken(3, task))

    (output,) = requested(driver, serve)
    assert output["output"] == "Count/Sum"
    assert [each["value"] for each in output["elements"]] == ["0/0", "0/1", "0/2", "1/0", "1/1"]
    assert len(output["elements"]) == SAMPLES_MAX
    assert not [*driver.blobs.list("samples"), *driver.blobs.list("requests"), *driver.blobs.list("answers")]


def test_requester_gets_the_element_of_a_failure() -> None:
    driver = Driver()
    failure = {"transform": "Count/Sum", "error": "ValueError: no", "value": "7"}

    def serve(id: str) -> None:
        record_samples(driver.blobs, id, 0, 0, {"outputs": [], "failure": failure})
        driver.requests.close(None, "user code has failed")

    assert requested(driver, serve) == [{"output": "Count/Sum", "failure": failure}]


@pytest.mark.parametrize(
    ("stages", "stage", "why"),
    [
        (None, "Count", "does not allow samples.*--page_samples"),
        (STAGES, "Total", "no stage 'Total'"),
    ],
)
def test_refusal_says_why(stages: Any, stage: str, why: str) -> None:
    with pytest.raises(RequestRefusedError, match=f"(?s)cannot take samples of.*{why}"):
        requested(Driver(stages), lambda id: None, stage)


def test_no_elements_and_no_driver_differ() -> None:
    driver = Driver()
    with pytest.raises(JobFailedError, match=r"has processed nothing within 0\.5 s"):
        requested(driver, lambda id: None, seconds=0.5)
    with pytest.raises(ArcbeamError, match="no driver of"):
        sampled(driver.blobs, "Count", 0.3)
    assert not [*driver.blobs.list("samples"), *driver.blobs.list("requests"), *driver.blobs.list("answers")]
