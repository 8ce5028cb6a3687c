"""What a worker may answer to requests about a restriction: a scripted worker does it on command."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import monitoring_infos as mi
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.task.bundles import RestrictionResult
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.errors import UserCodeError
from arcbeam.fnapi.environments import external as external_workers
from arcbeam.fnapi.environments.workers import StageWorkers
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.stage import remoteoperation, remoterestrictions
from arcbeam.fnapi.stage.remotestage import open_with_workers
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.plan import Stage
from arcbeam.model.timestamps import Timestamp
from arcbeam.testing.views import MemoryView
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.scripted import ScriptedWorker
from tests.fnapi.stage.inworkers import external
from tests.harness.batch.splittables import Range
from tests.harness.drive import _ListOutbox

SINK = "arcbeam/out0"
WHOLE = Remainder(b"whole" + struct.pack(">d", 8.0), 8.0, None, {"main": Timestamp(5)})


class Over:
    """A budget that has ended."""

    def exhausted(self) -> bool:
        return True

    def part(self, fraction: float) -> Any:
        return self


@pytest.fixture(scope="module")
def of() -> Stage:
    p = beam.Pipeline()
    _ = p | beam.Create([3], reshuffle=False) | "Read" >> beam.ParDo(Range()) | beam.Reshuffle() | beam.Map(print)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
    return next(stage for stage in translate(ParsedPipeline(proto), bounded=False).stages if stage.splittable)


def made(of: Stage, count: int) -> Any:
    """Return the metric for that number of outputs of the DoFn."""
    assert of.remote is not None
    part = runner_pb.Components.FromString(of.remote.components)
    (process,) = (
        t for t in part.transforms.values() if t.spec.urn.endswith("process_sized_element_and_restrictions:v1")
    )
    (pcoll,) = process.outputs.values()
    return mi.int64_counter(mi.ELEMENT_COUNT_URN, count, labels={mi.PCOLLECTION_LABEL: pcoll})


def left(data: bytes, size: float, watermark: int | None = None, delay: int = 0, output: str = "None") -> Any:
    application = fn_pb.BundleApplication(transform_id="Read/Process", element=data + struct.pack(">d", size))
    if watermark is not None:
        application.output_watermarks[output].FromMicroseconds(watermark)
    delayed = fn_pb.DelayedBundleApplication(application=application)
    if delay:
        delayed.requested_time_delay.FromMicroseconds(delay)
    return delayed


def resume(of: Stage, monkeypatch: pytest.MonkeyPatch, script: Callable[[ScriptedWorker, str], None]) -> Any:
    """Run a restriction, whose budget has ended; return the result."""
    workers: list[ScriptedWorker] = []
    failed: list[BaseException] = []

    def start(payload: Any, id: str, address: str, restart: str) -> None:
        workers.append(ScriptedWorker(address, id).__enter__())

    monkeypatch.setattr(external_workers, "start", start)
    monkeypatch.setattr(external_workers, "stop", lambda payload, id: None)
    stage = open_with_workers(of, TaskSettings(shards=1, bulk_values=False), StageWorkers("job"))

    def play() -> None:
        try:
            id = workers[0].request().instruction_id
            assert [each.data for each in workers[0].inputs()] == [WHOLE.element, b""]
            script(workers[0], id)
        except BaseException as e:
            failed.append(e)
            workers[0].end()

    playing = threading.Thread(target=play)
    playing.start()
    try:
        stage.begin(_ListOutbox(), 0, lambda channel: None, None, Timestamp(0))  # type: ignore[arg-type, return-value]
        runner = stage.runner(MemoryView(), StagePlacement(StageFlow("it", (), ("main",)), 1, 0))
        return runner.resume(Restriction(b"id", "root", WHOLE), Over(), 1)
    finally:
        playing.join()
        stage.abandon()
        stage.close()
        for each in workers:
            each.end()
        if failed:
            raise failed[0]


def progress(worker: ScriptedWorker, *infos: Any) -> None:
    """Answer a request for progress."""
    request = worker.request()
    assert request.WhichOneof("request") == "process_bundle_progress"
    worker.respond(
        request.instruction_id, process_bundle_progress=fn_pb.ProcessBundleProgressResponse(monitoring_infos=infos)
    )


def split(worker: ScriptedWorker, fraction: float, **response: Any) -> None:
    """Answer a request for a split."""
    request = worker.request()
    (desired,) = request.process_bundle_split.desired_splits.values()
    assert (desired.fraction_of_remainder, desired.estimated_input_elements) == (fraction, 1)
    worker.respond(request.instruction_id, process_bundle_split=fn_pb.ProcessBundleSplitResponse(**response))


def finish(worker: ScriptedWorker, id: str, *residuals: Any) -> None:
    worker.put_out(id, SINK, b"", last=True)
    worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse(residual_roots=residuals))


def test_split_waits_for_progress_and_tries_larger_fractions(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        progress(worker)
        progress(worker, made(of, 1))
        split(worker, 0.0)
        past_the_end = fn_pb.ProcessBundleSplitResponse.ChannelSplit(last_primary_element=0, first_residual_element=1)
        split(worker, 1 / 64, residual_roots=[left(b"rest", 3.0, 7)], channel_splits=[past_the_end])
        finish(worker, id)

    result = resume(of, monkeypatch, script)
    rest = Remainder(b"rest" + struct.pack(">d", 3.0), 3.0, None, {"main": Timestamp(7)})
    assert (list(result.splits), result.deferred) == ([rest], None)


class Clock:
    """Advances by half a second whenever it is read."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 0.5
        return self.now


def test_progress_is_requested_ever_more_rarely(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, at = Clock(), []
    monkeypatch.setattr(remoterestrictions, "time", clock)

    def script(worker: ScriptedWorker, id: str) -> None:
        for _ in range(13):
            request = worker.request()
            assert request.WhichOneof("request") == "process_bundle_progress"
            at.append(clock.now)  # The task waits for the answer.
            worker.respond(request.instruction_id, process_bundle_progress=fn_pb.ProcessBundleProgressResponse())
        finish(worker, id)

    resume(of, monkeypatch, script)
    pauses = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert max(pauses[:5]) <= 1.0, "soon at first"
    assert pauses == sorted(pauses)
    assert 5.0 <= pauses[-1] <= 6.0, "then every five seconds"


def test_restriction_that_was_not_begun_is_kept_as_it_was(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        progress(worker, made(of, 1))
        all_of_it = fn_pb.ProcessBundleSplitResponse.ChannelSplit(last_primary_element=-1, first_residual_element=0)
        split(worker, 0.0, channel_splits=[all_of_it])
        finish(worker, id)

    assert list(resume(of, monkeypatch, script).splits) == [WHOLE]


@pytest.mark.parametrize(
    ("last", "first", "residuals"),
    [(-1, 1, 0), (0, 0, 0), (-1, 0, 1)],
    ids=["lost", "kept and returned", "returned twice"],
)
def test_split_that_loses_or_doubles_the_restriction_is_the_workers_fault(
    of: Stage, monkeypatch: pytest.MonkeyPatch, last: int, first: int, residuals: int
) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        progress(worker, made(of, 1))
        channel = fn_pb.ProcessBundleSplitResponse.ChannelSplit(last_primary_element=last, first_residual_element=first)
        split(worker, 0.0, channel_splits=[channel], residual_roots=[left(b"rest", 3.0, 7)] * residuals)

    with pytest.raises(SdkWorkerLostError, match=f"between {last} and {first}, with {residuals} residuals"):
        resume(of, monkeypatch, script)


def test_bundle_may_end_before_its_split_is_answered(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        progress(worker, made(of, 1))
        request = worker.request()
        finish(worker, id, left(b"later", 2.0, 9, delay=4_000_000))
        worker.respond(request.instruction_id, process_bundle_split=fn_pb.ProcessBundleSplitResponse())

    result: RestrictionResult = resume(of, monkeypatch, script)
    assert not result.splits
    assert result.deferred is not None
    assert (result.deferred.size, result.deferred.watermarks) == (2.0, {"main": Timestamp(9)})
    assert result.deferred.due is not None
    assert result.deferred.due >= 4_000_000


def test_progress_of_an_ended_bundle_is_not_waited_for(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.request()
        finish(worker, id, left(b"later", 2.0, 9))

    assert resume(of, monkeypatch, script).deferred.size == 2.0


@pytest.mark.parametrize("rest", [left(b"rest", 1.0), left(b"rest", 1.0, watermark=9, output="another")])
def test_output_without_watermark_promises_nothing(of: Stage, monkeypatch: pytest.MonkeyPatch, rest: Any) -> None:
    result = resume(of, monkeypatch, lambda worker, id: (progress(worker), finish(worker, id, rest))[-1])
    assert result.deferred.watermarks == {}


@pytest.mark.parametrize("requested", ["progress", "split"])
def test_what_a_tracker_does_not_implement_is_no_error(
    of: Stage, monkeypatch: pytest.MonkeyPatch, requested: str
) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        if requested == "progress":
            worker.respond(worker.request().instruction_id, error="Traceback…\nNotImplementedError")
        else:
            progress(worker, made(of, 1))
        worker.respond(worker.request().instruction_id, error="Traceback…\nNotImplementedError")
        finish(worker, id)

    result = resume(of, monkeypatch, script)
    assert (list(result.splits), result.deferred) == ([], None)


def test_failed_split_fails_the_task(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoteoperation, "_OWN_ERROR_SECONDS", 0.01)

    def script(worker: ScriptedWorker, id: str) -> None:
        progress(worker, made(of, 1))
        worker.respond(worker.request().instruction_id, error="Traceback…\nValueError: cut in two")

    with pytest.raises(UserCodeError, match="cut in two"):
        resume(of, monkeypatch, script)


@pytest.mark.parametrize("ends", ["before", "after"])
def test_split_that_fails_beside_the_end_of_its_bundle_fails_the_task(
    of: Stage, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        progress(worker, made(of, 1))
        request = worker.request()
        for what in ("end", "split") if ends == "before" else ("split", "end"):
            if what == "end":
                finish(worker, id)
            else:
                worker.respond(request.instruction_id, error="Traceback…\nValueError: cut in two")

    with pytest.raises(UserCodeError, match="cut in two"):
        resume(of, monkeypatch, script)


@pytest.mark.parametrize("requested", ["progress", "split"])
def test_error_of_a_bundle_is_its_own(of: Stage, monkeypatch: pytest.MonkeyPatch, requested: str) -> None:
    """An SDK may answer requests about a failed bundle before it responds to the bundle."""

    def script(worker: ScriptedWorker, id: str) -> None:
        if requested == "split":
            progress(worker, made(of, 1))
        while (request := worker.request()).WhichOneof("request") == "process_bundle_progress":
            worker.respond(request.instruction_id, error="the bundle has failed, see there")
        worker.respond(request.instruction_id, error="the bundle has failed, see there")
        worker.respond(id, error="Traceback…\nValueError: the cause")

    with pytest.raises(UserCodeError, match="the cause"):
        resume(of, monkeypatch, script)


def test_delay_of_a_split_has_no_meaning(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the DoFn defers may wait: the rest of a split is due at once."""

    def script(worker: ScriptedWorker, id: str) -> None:
        progress(worker, made(of, 1))
        split(worker, 0.0, residual_roots=[left(b"rest", 3.0, 7, delay=4_000_000)])
        finish(worker, id)

    (rest,) = resume(of, monkeypatch, script).splits
    assert (rest.size, rest.due) == (3.0, None)


def test_all_residuals_are_kept(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK splits an element of many windows into more than two parts, and may also defer the rest."""

    def script(worker: ScriptedWorker, id: str) -> None:
        progress(worker, made(of, 1))
        split(worker, 0.0, residual_roots=[left(b"window", 3.0, 7), left(b"windows", 4.0, 8)])
        finish(worker, id, left(b"later", 1.0, 9, delay=4_000_000), left(b"latest", 2.0, 9, delay=5_000_000))

    result = resume(of, monkeypatch, script)
    assert [each.size for each in result.splits] == [3.0, 4.0, 1.0]
    assert (result.splits[-1].due is None, result.deferred.size) == (False, 2.0)


def test_outputs_of_a_restriction_may_be_in_the_response(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        progress(worker)
        worker.respond_with_outputs(id, fn_pb.Elements(), residual_roots=[left(b"later", 1.0, 9)])

    assert resume(of, monkeypatch, script).deferred.size == 1.0


def test_residual_of_another_input_is_the_workers_fault(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = left(b"rest", 1.0)
    rest.application.input_id = "another"
    with pytest.raises(SdkWorkerLostError, match="for the input 'another' of 'Read/Process'"):
        resume(of, monkeypatch, lambda worker, id: (progress(worker), finish(worker, id, rest))[-1])


def test_residual_of_another_transform_is_the_workers_fault(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = left(b"rest", 1.0)
    rest.application.transform_id = "another"
    with pytest.raises(SdkWorkerLostError, match="a restriction of 'another', which was given to 'Read/Process'"):
        resume(of, monkeypatch, lambda worker, id: (progress(worker), finish(worker, id, rest))[-1])


def test_residual_without_a_size_is_the_workers_fault(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = left(b"", 1.0)
    rest.application.element = b"rest"
    with pytest.raises(SdkWorkerLostError, match="a restriction of 4 bytes, without a size"):
        resume(of, monkeypatch, lambda worker, id: (progress(worker), finish(worker, id, rest))[-1])


@pytest.mark.parametrize("boundedness", runner_pb.IsBounded.Enum.values())
def test_residual_is_kept_whether_it_ends_or_not(of: Stage, monkeypatch: pytest.MonkeyPatch, boundedness: Any) -> None:
    """The output's boundedness decides what a drain discards; a bounded restriction may leave an unbounded one."""
    rest = left(b"rest", 1.0, 9)
    rest.application.is_bounded = boundedness
    result = resume(of, monkeypatch, lambda worker, id: (progress(worker), finish(worker, id, rest))[-1])
    assert result.deferred.element == rest.application.element
    assert result.deferred.watermarks == {"main": Timestamp(9)}


@pytest.mark.parametrize(("bounded", "kept"), [("BOUNDED", WHOLE), ("UNBOUNDED", None)])
def test_drain_asks_no_sdk_that_cannot_truncate(
    of: Stage, monkeypatch: pytest.MonkeyPatch, bounded: str, kept: Remainder | None
) -> None:
    assert of.remote is not None
    environment = runner_pb.Environment.FromString(of.remote.environment)
    del environment.capabilities[:]
    part = runner_pb.Components.FromString(of.remote.components)
    for pcoll in part.pcollections.values():
        pcoll.is_bounded = runner_pb.IsBounded.Enum.Value(bounded)
    plain = replace(of.remote, environment=environment.SerializeToString(), components=part.SerializeToString())
    workers: list[ScriptedWorker] = []
    monkeypatch.setattr(external_workers, "stop", lambda payload, id: None)
    monkeypatch.setattr(
        external_workers,
        "start",
        lambda payload, id, address, restart: workers.append(ScriptedWorker(address, id).__enter__()),
    )
    stage = open_with_workers(replace(of, remote=plain), TaskSettings(shards=1, bulk_values=False), StageWorkers("job"))
    stage.begin(_ListOutbox(), 0, lambda channel: None, None, Timestamp(0))  # type: ignore[arg-type, return-value]
    runner = stage.runner(MemoryView(), StagePlacement(StageFlow("it", (), ("main",)), 1, 0))
    assert runner.truncate(Restriction(b"id", "root", WHOLE)) == kept
    stage.abandon()
    stage.close()
    workers[0].end()
