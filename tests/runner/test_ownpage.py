"""The job of this process, as the page of `--page_address` asks for it."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Any

import pytest
from apache_beam.metrics import monitoring_infos

from arcbeam.errors import JobNotFoundError
from arcbeam.model.rows import LogLine
from arcbeam.monitoring.prometheus import label_of
from arcbeam.page.exposition import exposition
from arcbeam.page.services import ServiceSource
from arcbeam.runner.job import Message
from arcbeam.runner.ownpage import OwnService, details_of
from arcbeam.runner.stagelog import StageLog
from arcbeam.spark.sparkpage import SparkPage

_LEVELS = (logging.WARNING, logging.ERROR)


def _counter(value: int) -> bytes:
    counter = monitoring_infos.int64_user_counter("ns", "words", value, ptransform="Count")
    serialized: bytes = counter.SerializeToString()
    return serialized


class Bounded:
    """A bounded job that runs."""

    id, name, state = "count-1", "count", "RUNNING"

    def __init__(self) -> None:
        self.end = threading.Event()
        self.lines, self.spark_page = StageLog({}), SparkPage()

    def messages(self) -> list[Message]:
        return [Message(1.5, logging.INFO, "first"), *(Message(2.0, level, "long" * 300) for level in _LEVELS)]

    def metrics(self) -> list[bytes]:
        """Return a counter of the user's, and one that the SDK keeps of each transform."""
        elements = monitoring_infos.int64_counter("beam:metric:element_count:v1", 9, ptransform="Count")
        return [_counter(7), elements.SerializeToString()]

    def attempted(self) -> list[bytes]:
        return [_counter(8)]

    def snapshot(self, whole: bool) -> dict[str, Any]:
        return {"progress": {"stages": []}} if whole else {}

    def cancel(self) -> None:
        """Wait for the job's end, which waits for the end of its page."""
        self.end.wait()


def test_job_of_this_process_says_when_it_started() -> None:
    service = OwnService(Bounded(), {})  # type: ignore[arg-type]  # not asked to do anything
    (entry,) = service.overview()
    assert entry["started"] > 0
    assert service.details("count-1", False) == {**entry, "progress": {"stages": []}}
    with pytest.raises(JobNotFoundError, match="count-2"):
        service.details("count-2")


@pytest.mark.parametrize(("folder", "label"), [("/jobs/a", "count (/jobs/a)"), ("", "count")])
def test_metrics_have_the_label_that_metrics_address_shows(folder: str, label: str) -> None:
    class Kept(Bounded):
        def snapshot(self, whole: bool) -> dict[str, Any]:
            return {"progress": None, "status": None, "folder": folder}

    text = exposition(ServiceSource(OwnService(Kept(), {}), "this process"))  # type: ignore[arg-type]
    assert set(re.findall(r'job="([^"]*)"', text)) == {label} == {label_of(Kept.name, folder)}


@pytest.mark.parametrize("of_folder", [False, True])
def test_details_are_messages_and_metrics_of_the_user(of_folder: bool) -> None:
    details = details_of(Bounded(), of_folder=of_folder)  # type: ignore[arg-type]  # not asked to do anything
    assert [(each["time"], each["level"]) for each in details["messages"]] == [
        (1_500_000, "BASIC"),
        (2_000_000, "WARNING"),
        (2_000_000, "WARNING"),
    ]
    assert [len(each["text"]) for each in details["messages"]] == [5, *([1000 if of_folder else 1200] * 2)]
    words = {"kind": "counters", "step": "Count", "namespace": "ns", "name": "words", "value": 7}
    assert details["metrics"] == [words], "the value is the committed one"
    assert (details["log"], details["spark"]) == ([], "")


def test_details_have_the_log_and_the_page_of_spark() -> None:
    job = Bounded()
    job.lines.add("Count", "host:7", [LogLine(5, "INFO", "counted")])
    job.spark_page.address = "http://host:4040"
    details = details_of(job)  # type: ignore[arg-type]  # not asked to do anything
    assert [each["text"] for each in details["log"]] == ["counted"]
    assert details["spark"] == "http://host:4040"


def test_cancel_answers_before_the_end_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Bounded()
    service = OwnService(job, {})  # type: ignore[arg-type]  # only cancelled
    waits = list[float]()
    monkeypatch.setattr(time, "sleep", waits.append)
    service.await_shown()
    assert waits == [], "no request, no wait"
    assert service.cancel("count-1") == "CANCELLING"
    service.await_shown()
    assert 0 < waits[0] <= 2
    job.end.set()
