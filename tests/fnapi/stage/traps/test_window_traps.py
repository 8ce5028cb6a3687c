"""What a worker may answer to a call about windows: a scripted worker does it on command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from apache_beam.coders import coders
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.window import GlobalWindows, IntervalWindow

from arcbeam.errors import UserCodeError
from arcbeam.fnapi.descriptors import CALLED
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.service.server import Server
from arcbeam.fnapi.stage.calls import serve_nothing
from arcbeam.fnapi.stage.windowcalls import WindowCalls
from arcbeam.fnapi.wire import outgoing
from tests.fnapi.scripted import SECONDS, ScriptedWorker

FIRST, SECOND, BOTH = IntervalWindow(0, 10), IntervalWindow(5, 15), IntervalWindow(0, 15)
_WINDOW = coders.IntervalWindowCoder()
_MERGES = coders.IterableCoder(coders.TupleCoder((_WINDOW, coders.IterableCoder(_WINDOW))))
_ANSWER = coders.TupleCoder((coders.BytesCoder(), coders.TupleCoder((coders.IterableCoder(_WINDOW), _MERGES))))
_CODER = coders.WindowedValueCoder(_ANSWER, coders.GlobalWindowCoder()).get_impl()
MERGED: bytes = _CODER.encode_nested(GlobalWindows.windowed_value((b"", ((), ((BOTH, (FIRST, SECOND)),)))))
MAP_WINDOWS = common_urns.primitives.MAP_WINDOWS.urn
Script = Callable[[ScriptedWorker, str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


_MAPPED = coders.WindowedValueCoder(
    coders.TupleCoder((coders.BytesCoder(), _WINDOW)), coders.GlobalWindowCoder()
).get_impl()


def mapped(window: Any) -> bytes:
    """Return the answer to the question which window another one is mapped to."""
    encoded: bytes = _MAPPED.encode_nested(GlobalWindows.windowed_value((b"", window)))
    return encoded


@pytest.fixture
def calls(server: Server) -> Iterator[tuple[WindowCalls, ScriptedWorker]]:
    """Return what asks a worker about windows, and the worker."""
    connection = server.expect("the test")
    interval = runner_pb.Coder(spec=runner_pb.FunctionSpec(urn=common_urns.coders.INTERVAL_WINDOW.urn))
    with ScriptedWorker(server.address, connection.worker) as worker:
        connection.connected(SECONDS)
        yield WindowCalls(connection, "stage", {"window": interval}, server.address, "Merge", serve_nothing), worker
    server.forget(connection)


_STRATEGY = runner_pb.WindowingStrategy(window_coder_id="window")


@pytest.fixture
def merged(calls: tuple[WindowCalls, ScriptedWorker]) -> Callable[[Script], Any]:
    """Return what merges two windows while the worker plays a script."""
    merge = calls[0].merging(_STRATEGY)
    return lambda script: playing(calls[1], script, lambda: merge([FIRST, SECOND]))


def playing(worker: ScriptedWorker, script: Script, call: Callable[[], Any]) -> Any:
    """Return the result of a call during which the worker plays a script."""

    def play() -> None:
        id = worker.request().instruction_id
        assert len(list(worker.inputs())) == 2
        script(worker, id)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        return call()
    finally:
        thread.join()


def respond(worker: ScriptedWorker, id: str, **response: Any) -> None:
    worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse(**response))


def test_answer_may_span_messages_and_follow_the_response(merged: Callable[[Script], Any]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        respond(worker, id)
        for byte in MERGED:
            worker.put_out(id, CALLED, bytes([byte]))
        worker.put_out(id, CALLED, b"", last=True)

    assert merged(script) == [(BOTH, [FIRST, SECOND])]


def test_answer_may_be_in_the_response(merged: Callable[[Script], Any]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.respond_with_outputs(id, outgoing.elements(id, CALLED, MERGED))

    assert merged(script) == [(BOTH, [FIRST, SECOND])]


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b"", "has given 0 answers"), (2 * MERGED, "has given 2 answers"), (MERGED[:-1], "is malformed")],
    ids=["none", "two", "cut"],
)
def test_answer_that_is_not_one_is_the_workers_fault(
    merged: Callable[[Script], Any], data: bytes, problem: str
) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, CALLED, data, last=True)
        respond(worker, id)

    with pytest.raises(SdkWorkerLostError, match=problem):
        merged(script)


def test_error_names_the_transform(merged: Callable[[Script], Any]) -> None:
    with pytest.raises(UserCodeError, match="no merge") as raised:
        merged(lambda worker, id: worker.respond(id, error="no merge"))
    assert raised.value.step == "Merge"


def test_state_request_of_a_window_function_is_answered(merged: Callable[[Script], Any]) -> None:
    errors: list[str] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        key = fn_pb.StateKey(runner=fn_pb.StateKey.Runner(key=b"0"))
        errors.append(worker.state(id="1", instruction_id=id, state_key=key, get=fn_pb.StateGetRequest())().error)
        worker.put_out(id, CALLED, MERGED, last=True)
        respond(worker, id)

    merged(script)
    assert errors == ["a window function has no state and no side input"]


def test_call_cannot_be_deferred(merged: Callable[[Script], Any]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, CALLED, MERGED, last=True)
        respond(worker, id, residual_roots=[fn_pb.DelayedBundleApplication()])

    with pytest.raises(SdkWorkerLostError, match="has deferred a call of 'Merge'"):
        merged(script)


def test_windows_of_side_inputs_are_mapped_by_the_worker(calls: tuple[WindowCalls, ScriptedWorker]) -> None:
    window_calls, worker = calls
    function = runner_pb.FunctionSpec(urn="beam:window_mapping:of_the_sdk", payload=b"how")
    window_of = window_calls.mapping(3, function, _STRATEGY, _STRATEGY)

    def script(worker: ScriptedWorker, id: str) -> None:
        descriptor = worker.descriptor(worker.last_request.process_bundle.process_bundle_descriptor_id)
        (mapping,) = (t for t in descriptor.transforms.values() if t.spec.urn == MAP_WINDOWS)
        assert runner_pb.FunctionSpec.FromString(mapping.spec.payload) == function
        worker.put_out(id, CALLED, mapped(BOTH), last=True)
        respond(worker, id)

    assert playing(worker, script, lambda: window_of(FIRST)) == BOTH


def test_error_of_a_mapping_names_the_transform(calls: tuple[WindowCalls, ScriptedWorker]) -> None:
    window_calls, worker = calls
    window_of = window_calls.mapping(3, runner_pb.FunctionSpec(), _STRATEGY, _STRATEGY)
    with pytest.raises(UserCodeError, match="no such window") as raised:
        playing(worker, lambda worker, id: worker.respond(id, error="no such window"), lambda: window_of(FIRST))
    assert raised.value.step == "Merge"
