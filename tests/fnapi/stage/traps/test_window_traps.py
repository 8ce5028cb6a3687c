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
Script = Callable[[ScriptedWorker, str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def merged(server: Server) -> Iterator[Callable[[Script], Any]]:
    """Return what merges two windows while the worker plays a script."""
    connection = server.expect("the test")
    interval = runner_pb.Coder(spec=runner_pb.FunctionSpec(urn=common_urns.coders.INTERVAL_WINDOW.urn))
    calls = WindowCalls(connection, "stage", {"window": interval}, server.address, "Merge", serve_nothing)
    strategy = runner_pb.WindowingStrategy(window_coder_id="window")
    with ScriptedWorker(server.address, connection.worker) as worker:
        connection.connected(SECONDS)
        merge = calls.merging(strategy)

        def merged(script: Script) -> Any:
            def play() -> None:
                id = worker.request().instruction_id
                assert len(list(worker.inputs())) == 2
                script(worker, id)

            playing = threading.Thread(target=play)
            playing.start()
            try:
                return merge([FIRST, SECOND])
            finally:
                playing.join()

        yield merged
    server.forget(connection)


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
