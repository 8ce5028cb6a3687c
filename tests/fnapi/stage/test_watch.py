"""Bundles from which nothing arrives: what counts as progress, and when the worker is reported."""

from __future__ import annotations

from typing import Any

import pytest
from apache_beam.metrics import monitoring_infos as mi
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb

from arcbeam.fnapi.service.connection import Connection
from arcbeam.fnapi.stage import watch
from arcbeam.fnapi.stage.watch import ASK_SECONDS, WARN_SECONDS, Watch


class Watched:
    """A bundle of a worker, by a clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(watch.time, "monotonic", lambda: self.now)
        self.worker = Connection("id", "the test")
        self.watch = Watch(self.worker, "First", {"t1": "Read", "t2": "Wait"}, lambda of: of.monitoring_infos)
        self.watch.begin(self.worker.begin("s1"))

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.watch.look()

    def answer(self, *infos: Any, error: str = "") -> None:
        """Answer the request for progress, which there must be."""
        request = self.worker._requests.pop()
        assert request.WhichOneof("request") == "process_bundle_progress"
        response = fn_pb.InstructionResponse(instruction_id=request.instruction_id, error=error)
        response.process_bundle_progress.monitoring_infos.extend(infos)
        self.worker.responded(response)
        self.watch.look()


def spent(transform: str, millis: int) -> Any:
    return mi.int64_counter(mi.PROCESS_BUNDLE_MSECS_URN, millis, ptransform=transform)


def made(count: int) -> Any:
    return mi.int64_counter(mi.ELEMENT_COUNT_URN, count, labels={mi.PCOLLECTION_LABEL: "p"})


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_running_transform_is_the_one_that_takes_the_time(watched: Watched) -> None:
    running = [watched.watch.running]
    for read, wait in ((900, 10), (910, 500), (910, 500)):
        watched.after(ASK_SECONDS)
        watched.answer(spent("t1", read), spent("t2", wait))
        running.append(watched.watch.running)
    assert running == ["First", "Read", "Wait", "Wait"]


def test_work_is_progress(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for count in range(int(3 * WARN_SECONDS / ASK_SECONDS)):
        watched.after(ASK_SECONDS)
        watched.answer(made(count), spent("t1", 1))
    assert not caplog.text


def test_time_alone_is_no_progress(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for count in range(int(9 * WARN_SECONDS / ASK_SECONDS)):
        watched.after(ASK_SECONDS)
        watched.answer(made(1), spent("t2", 10_000 * count))
    warnings = [record.getMessage() for record in caplog.records]
    since = "'Wait': the SDK worker has sent nothing and shows no progress for "
    assert [each.removeprefix(since).partition(".")[0] for each in warnings] == ["60 s", "120 s", "240 s", "480 s"]


def test_arrival_is_progress(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        watched.after(WARN_SECONDS - 1)
        watched.watch.moved()
    assert not caplog.text


def test_answer_may_be_an_error(watched: Watched) -> None:
    watched.after(ASK_SECONDS)
    watched.answer(error="this worker has no progress")
    watched.after(ASK_SECONDS)
    watched.answer(made(1))


def test_there_is_one_request_while_the_worker_is_silent(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10):
        watched.after(ASK_SECONDS)
    assert len(watched.worker._requests) == 2, "the bundle, and its progress"
    assert ", and does not answer" in caplog.text
    watched.watch.end()
    watched.answer(made(1))


def test_next_bundle_is_watched_afresh(watched: Watched) -> None:
    watched.after(ASK_SECONDS)
    watched.answer(spent("t2", 10))
    watched.watch.end()
    watched.watch.begin(watched.worker.begin("s1"))
    assert watched.watch.running == "First"
    assert watched.watch.pause == ASK_SECONDS
