"""What a worker may do in a bundle that is unusual, or wrong: a scripted worker does it on command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.metrics import monitoring_infos as mi
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.errors import UserCodeError
from arcbeam.fnapi.environments import external as external_workers
from arcbeam.fnapi.environments.workers import StageWorkers
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.service.server import server_here
from arcbeam.fnapi.stage import watch
from arcbeam.fnapi.stage.remotestage import RemoteCode, open_with_workers
from arcbeam.harness.bundle.metrics import parsed
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.attempts import IN_SDK_WORKER
from arcbeam.model.plan import Stage
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE
from arcbeam.testing.views import MemoryView
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.scripted import ScriptedWorker
from tests.fnapi.stage.inworkers import external
from tests.harness.drive import _ListOutbox

SINK = "arcbeam/out0"
SOURCE = "arcbeam/source"
_CODER = coders.WindowedValueCoder(coders.BytesCoder(), GlobalWindowCoder()).get_impl()


def element(value: bytes) -> bytes:
    """Return an encoded element of the stage's output, which the runner sees as bytes."""
    encoded: bytes = _CODER.encode_nested(WindowedValue(value, 0, (GlobalWindow(),)))
    return encoded


@pytest.fixture(scope="module")
def of() -> Stage:
    p = beam.Pipeline()
    _ = p | beam.Impulse() | "Make" >> beam.Map(lambda x: x) | beam.Reshuffle() | beam.Map(print)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
    return next(stage for stage in translate(ParsedPipeline(proto), bounded=False).stages if stage.source is None)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ScriptedWorker]]:
    """Return a list that has the worker, once there is one."""
    workers: list[ScriptedWorker] = []

    def start(payload: Any, id: str, address: str, restart: str) -> None:
        workers.append(ScriptedWorker(address, id).__enter__())

    monkeypatch.setattr(external_workers, "start", start)
    monkeypatch.setattr(external_workers, "stop", lambda payload, id: None)
    yield workers
    for each in workers:
        each.end()


def run(
    of: Stage,
    worker: list[ScriptedWorker],
    script: Callable[[ScriptedWorker, str], None],
    *,
    committed: bool = False,
    sampled: bool = False,
    samples: list[Any] | None = None,
) -> Any:
    """Run a bundle of the stage with one element; return its report, and all bytes that it has written.

    Samples are taken if they are requested, and added to a list.
    """
    stage, failed = (
        open_with_workers(of, TaskSettings(shards=1, bulk_values=False), StageWorkers("job")),
        list[BaseException](),
    )

    def play() -> None:
        try:
            script(worker[0], worker[0].request().instruction_id)
        except BaseException as e:
            failed.append(e)
            worker[0].end()

    playing = threading.Thread(target=play)
    playing.start()
    outbox, report = _ListOutbox(), BundleReport(of.id, 0)
    if sampled:
        assert isinstance(stage.code, RemoteCode)
        stage.code.begin_samples()
    try:
        stage.begin(outbox, 0, lambda channel: None, None, Timestamp(0))  # type: ignore[arg-type, return-value]
        runner = stage.runner(MemoryView(), StagePlacement(StageFlow("it", (), ("main",)), 1, 0))
        runner.process(b"", [(b"", MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)])
        closed = runner.finish()
        stage.end(report, late=0, closed=0)
        if samples is not None:
            samples += stage.samples()
        callbacks = stage.callbacks()
        assert closed.finalizations == (0 if callbacks is None else 1)
        if committed:
            assert callbacks is not None
            callbacks.run()
    except BaseException:
        stage.abandon()
        raise
    finally:
        playing.join()
        stage.close()
        if failed:
            raise failed[0]
    return report, b"".join(row.blob for row in outbox.rows)


def test_element_may_span_messages(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        data = element(b"first") + element(b"second")
        for n in range(len(data)):
            worker.put_out(id, SINK, data[n : n + 1])
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    report, written = run(of, worker, script)
    assert sum(report.elements_out.values()) == 2
    assert b"first" in written
    assert b"second" in written


def test_outputs_may_follow_the_response(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        assert [each.transform_id for each in worker.inputs()] == [SOURCE, SOURCE]
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())
        worker.put_out(id, SINK, element(b"late"), last=True)

    assert b"late" in run(of, worker, script)[1]


def test_outputs_may_precede_the_input(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, element(b"early"), last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    assert b"early" in run(of, worker, script)[1]


def test_output_that_ends_in_an_element_is_the_workers_fault(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, element(b"whole")[:-1], last=True)

    with pytest.raises(SdkWorkerLostError, match="malformed: the stream ends"):
        run(of, worker, script)


def test_error_ends_the_bundle_without_outputs(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, element(b"some"))
        worker.respond(id, error="DoFn failed\ncaused by: boom")

    with pytest.raises(UserCodeError, match="boom") as raised:
        run(of, worker, script)
    assert raised.value.step == "Make"


def test_worker_that_ends_in_a_bundle_is_lost(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, element(b"some"))
        worker.end()

    with pytest.raises(SdkWorkerLostError, match="is gone"):
        run(of, worker, script)


def test_metrics_may_have_short_ids(of: Stage, worker: list[ScriptedWorker]) -> None:
    info = mi.int64_user_counter("ns", "seen", 0, ptransform="Make")

    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse(monitoring_data={"a1": b"\x07"}))
        requested = worker.request()
        assert list(requested.monitoring_infos.monitoring_info_id) == ["a1"]
        known = fn_pb.MonitoringInfosMetadataResponse(monitoring_info={"a1": info})
        worker.respond(requested.instruction_id, monitoring_infos=known)

    report, _ = run(of, worker, script)
    (found,) = (each for each in parsed(report.metrics) if each.labels.get("NAME") == "seen")
    assert (found.labels["PTRANSFORM"], found.payload) == ("Make", b"\x07")


def test_metrics_in_both_forms_count_once(of: Stage, worker: list[ScriptedWorker]) -> None:
    info = mi.int64_user_counter("ns", "seen", 7, ptransform="Make")

    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        both = fn_pb.ProcessBundleResponse(monitoring_infos=[info], monitoring_data={"a1": b"\x07"})
        worker.respond(id, process_bundle=both)

    report, _ = run(of, worker, script)
    assert [each.payload for each in parsed(report.metrics) if each.labels.get("NAME") == "seen"] == [b"\x07"]


def test_metric_that_the_worker_cannot_name_is_only_logged(
    of: Stage, worker: list[ScriptedWorker], caplog: pytest.LogCaptureFixture
) -> None:
    info = mi.int64_user_counter("ns", "seen", 0, ptransform="Make")

    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse(monitoring_data={"a1": b"\x07", "a2": b"\x01"}))
        known = fn_pb.MonitoringInfosMetadataResponse(monitoring_info={"a1": info})
        worker.respond(worker.request().instruction_id, monitoring_infos=known)

    report, _ = run(of, worker, script)
    assert [each.payload for each in parsed(report.metrics) if each.labels.get("NAME") == "seen"] == [b"\x07"]
    assert "the SDK worker of 'Make' reports metrics that it cannot name: ['a2']" in caplog.text


@pytest.mark.parametrize("last", [True, False], ids=["that end", "without an end"])
def test_response_may_have_all_outputs(of: Stage, worker: list[ScriptedWorker], last: bool) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        assert [each.transform_id for each in worker.inputs()] == [SOURCE, SOURCE]
        data = [
            fn_pb.Elements.Data(instruction_id=id, transform_id=SINK, data=element(b"one")),
            fn_pb.Elements.Data(instruction_id=id, transform_id=SINK, data=element(b"two"), is_last=last),
        ]
        worker.respond_with_outputs(id, fn_pb.Elements(data=data))

    report, written = run(of, worker, script)
    assert sum(report.elements_out.values()) == 2
    assert b"one" in written
    assert b"two" in written


def test_response_without_outputs_may_say_so(of: Stage, worker: list[ScriptedWorker]) -> None:
    assert run(of, worker, lambda worker, id: worker.respond_with_outputs(id, fn_pb.Elements()))[1] == b""


def test_outputs_in_a_response_must_be_whole(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        cut = fn_pb.Elements.Data(instruction_id=id, transform_id=SINK, data=element(b"whole")[:-1])
        worker.respond_with_outputs(id, fn_pb.Elements(data=[cut]))

    with pytest.raises(SdkWorkerLostError, match="malformed: the stream ends"):
        run(of, worker, script)


def test_input_is_never_in_the_request(of: Stage, worker: list[ScriptedWorker]) -> None:
    """An SDK that does not read it there ignores it, and waits for its input forever."""

    def script(worker: ScriptedWorker, id: str) -> None:
        request = worker.last_request.process_bundle
        assert not request.HasField("elements")
        assert not request.data_stream_id
        assert len(list(worker.inputs())) == 2
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    run(of, worker, script)


def test_deferred_work_of_a_plain_stage_is_not_lost(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        application = fn_pb.BundleApplication(transform_id="Make", input_id="in", element=b"rest")
        rest = fn_pb.DelayedBundleApplication(application=application)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse(residual_roots=[rest]))

    with pytest.raises(SdkWorkerLostError, match="has deferred work of 'Make', which has no restrictions"):
        run(of, worker, script)


def test_output_after_its_end_is_the_workers_fault(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, element(b"some"), last=True)
        worker.put_out(id, SINK, b"", last=True)  # says nothing new
        worker.put_out(id, SINK, element(b"more"))

    with pytest.raises(SdkWorkerLostError, match=f"continues an output of '{SINK}' that it has ended"):
        run(of, worker, script)


@pytest.mark.parametrize("answers", [True, False], ids=["with progress", "in silence"])
def test_worker_that_does_nothing_is_reported_by_its_transform(
    of: Stage,
    worker: list[ScriptedWorker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answers: bool,
) -> None:
    """It is never stopped: the bundle ends whenever the worker continues."""
    monkeypatch.setattr(watch, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(watch, "WARN_SECONDS", 0.05)
    name = "arcbeam/source" if answers else "Make"

    def script(worker: ScriptedWorker, id: str) -> None:
        requested, spent = worker.request(), 0
        while f"'{name}': the SDK worker has sent nothing and shows no progress" not in caplog.text:
            assert requested.process_bundle_progress.instruction_id == id
            if answers:
                spent += 10
                times = mi.int64_counter(mi.PROCESS_BUNDLE_MSECS_URN, spent, ptransform=name)
                progress = fn_pb.ProcessBundleProgressResponse(monitoring_infos=[times])
                worker.respond(requested.instruction_id, process_bundle_progress=progress)
                requested = worker.request()
        worker.put_out(id, SINK, element(b"late"), last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    assert b"late" in run(of, worker, script)[1]


def test_state_that_the_stage_does_not_have_is_an_error(of: Stage, worker: list[ScriptedWorker]) -> None:
    answers: list[str] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        key = fn_pb.StateKey(iterable_side_input=fn_pb.StateKey.IterableSideInput(transform_id="t", side_input_id="s"))
        answers.append(worker.state(id="1", instruction_id=id, state_key=key, get=fn_pb.StateGetRequest())().error)
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    run(of, worker, script)
    assert "'s' is not a side input of transform 't'" in answers[0]


def test_bundle_is_finalized_when_its_output_is_committed(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse(requires_finalization=True))
        requested = worker.request()
        assert requested.finalize_bundle.instruction_id == id
        worker.respond(requested.instruction_id, finalize_bundle=fn_pb.FinalizeBundleResponse())

    run(of, worker, script, committed=True)


def test_bundle_of_an_attempt_that_lost_is_not_finalized(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse(requires_finalization=True))

    run(of, worker, script)
    assert worker[0].request() is None, "nothing but the end of the stream"


def test_bundle_is_not_finalized_by_another_worker(
    of: Stage, worker: list[ScriptedWorker], caplog: pytest.LogCaptureFixture
) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse(requires_finalization=True))
        worker.request()
        worker.end()

    run(of, worker, script, committed=True)
    assert "a bundle finalization callback failed" in caplog.text
    assert len(worker) == 1


def test_failed_finalization_is_only_logged(
    of: Stage, worker: list[ScriptedWorker], caplog: pytest.LogCaptureFixture
) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse(requires_finalization=True))
        worker.respond(worker.request().instruction_id, error="no")

    run(of, worker, script, committed=True)
    assert "a bundle finalization callback failed" in caplog.text


def test_caches_are_for_one_attempt(of: Stage, worker: list[ScriptedWorker]) -> None:
    tokens: list[bytes] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        tokens.extend(token.token for token in worker.last_request.process_bundle.cache_tokens)
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    for _ in range(2):
        run(of, worker, script)
        worker.clear()
    assert len(set(tokens)) == 2


def test_descriptor_has_the_same_address_everywhere(of: Stage, worker: list[ScriptedWorker]) -> None:
    found: list[Any] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        found.append(worker.descriptor(f"{IN_SDK_WORKER}job/{of.uid}"))
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    run(of, worker, script)
    (descriptor,) = found
    ports = [fn_pb.RemoteGrpcPort.FromString(descriptor.transforms[id].spec.payload) for id in (SOURCE, SINK)]
    addresses = {port.api_service_descriptor.url for port in ports}
    assert addresses == {server_here().address}
    assert descriptor.state_api_service_descriptor.url in addresses
    assert descriptor.timer_api_service_descriptor.url in addresses
