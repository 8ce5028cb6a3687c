"""The services, with a scripted worker: who may connect, and what happens to instructions."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_fn_api_pb2_grpc as fn_grpc
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.fnapi.lost import ProcessEnd, SdkWorkerLostError, WorkerAccount
from arcbeam.fnapi.service import server as server_module
from arcbeam.fnapi.service import workerlogs
from arcbeam.fnapi.service.connection import _UNSENT_BYTES_MAX, Connection
from arcbeam.fnapi.service.instruction import _HELD_BYTES_MAX, Incoming, Instruction, Output, Responded, StateRequested
from arcbeam.fnapi.service.server import Server, server_here
from arcbeam.fnapi.wire import outgoing
from arcbeam.model import texts
from tests.fnapi.scripted import SECONDS, ScriptedWorker
from tests.otherusers import needs_root, relayed
from tests.waiting import until

PROCESS, DOCKER = common_urns.environments.PROCESS.urn, common_urns.environments.DOCKER.urn


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    connection = server.expect("the test")
    yield connection
    server.forget(connection)


@pytest.fixture
def worker(server: Server, connection: Connection) -> Iterator[ScriptedWorker]:
    with ScriptedWorker(server.address, connection.worker) as worker:
        connection.connected(SECONDS)
        yield worker


def taken(bundle: Instruction, count: int) -> list[Incoming]:
    """Take arrivals until there are this many."""
    found: list[Incoming] = []
    while len(found) < count:
        found += bundle.take(lambda: False)
    return found


def never(arrival: Incoming) -> None:
    raise AssertionError(arrival)


def test_bundle_makes_a_round_trip(connection: Connection, worker: ScriptedWorker) -> None:
    bundle = connection.begin("s1")
    request = worker.request()
    assert request.process_bundle.process_bundle_descriptor_id == "s1"
    connection.send(bundle, outgoing.elements(bundle.id, "source", b"some"), never)
    connection.send(bundle, outgoing.elements(bundle.id, "source", b"more"), never)
    connection.send(bundle, outgoing.end(bundle.id, "source", ()), never)
    arrived = list(worker.inputs())
    assert [(each.instruction_id, each.transform_id, each.data) for each in arrived] == [
        (request.instruction_id, "source", b"some"),
        (request.instruction_id, "source", b"more"),
        (request.instruction_id, "source", b""),
    ]
    worker.put_out(bundle.id, "sink", b"out", last=True)
    assert taken(bundle, 1) == [Output("sink", b"out", True)]
    worker.respond(bundle.id, process_bundle=fn_pb.ProcessBundleResponse())
    (end,) = taken(bundle, 1)
    assert isinstance(end, Responded)
    connection.end_bundle(bundle)


def test_all_ends_are_in_one_message_without_data(connection: Connection, worker: ScriptedWorker) -> None:
    """A Python worker ignores data there. A Go worker stops reading after as many ends as it expects."""
    bundle = connection.begin("s1")
    connection.send(bundle, outgoing.timers(bundle.id, "t", "f", b"timer"), never)
    connection.send(bundle, outgoing.end(bundle.id, "source", [("t", "f"), ("t", "g")]), never)
    timer, end = worker.message(), worker.message()
    assert [(each.transform_id, each.timer_family_id, each.timers) for each in timer.timers] == [("t", "f", b"timer")]
    assert [(each.transform_id, each.data, each.is_last) for each in end.data] == [("source", b"", True)]
    assert [(each.transform_id, each.timer_family_id, each.timers, each.is_last) for each in end.timers] == [
        ("t", "f", b"", True),
        ("t", "g", b"", True),
    ]


def test_timers_of_the_worker_arrive(connection: Connection, worker: ScriptedWorker) -> None:
    bundle = connection.begin("s1")
    worker.set_timers(bundle.id, "t", "f", b"timer")
    worker.set_timers(bundle.id, "t", "f", b"", last=True)
    assert taken(bundle, 2) == [Output("t", b"timer", False, "f"), Output("t", b"", True, "f")]


def test_instruction_ids_are_never_used_again(connection: Connection, worker: ScriptedWorker) -> None:
    ids = []
    for _ in range(3):
        bundle = connection.begin("s1")
        ids.append(worker.request().instruction_id)
        connection.end_bundle(bundle)
    assert len(set(ids)) == 3


def test_answer_of_an_ended_bundle_is_dropped(connection: Connection, worker: ScriptedWorker) -> None:
    first = connection.begin("s1")
    connection.end_bundle(first)
    second = connection.begin("s1")
    worker.put_out(first.id, "sink", b"old")
    worker.respond(first.id, error="too late")
    worker.respond("unknown", error="never sent")
    worker.put_out(second.id, "sink", b"new")
    assert taken(second, 1) == [Output("sink", b"new", False)]


def test_descriptor_is_given_on_demand(connection: Connection, worker: ScriptedWorker) -> None:
    connection.descriptors["s1"] = fn_pb.ProcessBundleDescriptor(id="s1")
    assert worker.descriptor("s1").id == "s1"
    with pytest.raises(grpc.RpcError, match="no descriptor 's2'"):
        worker.descriptor("s2")


@pytest.mark.parametrize("when", ["before", "while"])
def test_lost_worker_fails_open_instructions(connection: Connection, worker: ScriptedWorker, when: str) -> None:
    bundle = connection.begin("s1")
    if when == "before":
        worker.end()
    else:
        threading.Timer(0.05, worker.end).start()
    with pytest.raises(SdkWorkerLostError, match="the SDK worker of the test is gone: its control stream ended"):
        bundle.take(lambda: False)
    assert connection.is_lost
    with pytest.raises(SdkWorkerLostError):
        connection.begin("s1")
    with pytest.raises(SdkWorkerLostError):
        connection.send(bundle, outgoing.elements(bundle.id, "source", b"x"), never)


def test_what_arrived_before_the_end_can_be_taken(connection: Connection, worker: ScriptedWorker) -> None:
    bundle = connection.begin("s1")
    worker.respond(bundle.id, error="mine")
    (end,) = taken(bundle, 1)
    assert isinstance(end, Responded)
    assert end.response.error == "mine"


def test_server_ends_streams(server: Server, connection: Connection, worker: ScriptedWorker) -> None:
    server.forget(connection)
    assert worker.request() is None


def test_unexpected_worker_is_refused(server: Server, connection: Connection) -> None:
    with ScriptedWorker(server.address, "guessed") as stranger:
        refused = stranger.request()
        assert isinstance(refused, grpc.RpcError)
        assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError, match="no worker with this id"):
            stranger.descriptor("s1")
        with pytest.raises(grpc.RpcError, match="no worker with this id"):
            stranger.state(id="1")()


@needs_root
@pytest.mark.parametrize("environment", [PROCESS, DOCKER])
def test_id_in_a_command_line_is_of_no_use_to_other_users(server: Server, environment: str) -> None:
    connection = server.expect("the test", environment=runner_pb.Environment(urn=environment))
    with (
        relayed(int(server.address.rpartition(":")[2])) as port,
        ScriptedWorker(f"localhost:{port}", connection.worker) as stranger,
    ):
        if environment == DOCKER:
            # Its processes may be another user's.
            connection.connected(SECONDS)
        else:
            assert stranger.request().code() is grpc.StatusCode.PERMISSION_DENIED
    with ScriptedWorker(server.address, connection.worker):
        if environment == PROCESS:
            connection.connected(SECONDS)
    server.forget(connection)


def test_second_control_stream_is_refused(server: Server, connection: Connection, worker: ScriptedWorker) -> None:
    with ScriptedWorker(server.address, connection.worker) as second:
        refused = second.request()
        assert refused.code() is grpc.StatusCode.ALREADY_EXISTS
    assert not connection.is_lost


@pytest.mark.parametrize("stream", ["data", "state"])
def test_second_stream_of_a_kind_is_refused(connection: Connection, worker: ScriptedWorker, stream: str) -> None:
    """It would get some of the messages for the first one."""
    bundle = connection.begin("s1")
    worker.put_out(bundle.id, "sink", b"out")
    worker.state(id="7", instruction_id=bundle.id)
    taken(bundle, 2)
    assert worker.open_again(stream).code() is grpc.StatusCode.ALREADY_EXISTS
    assert not connection.is_lost


@pytest.mark.parametrize("stream", ["data", "state"])
def test_worker_without_one_of_its_streams_is_lost(connection: Connection, worker: ScriptedWorker, stream: str) -> None:
    """Its bundles would wait forever."""
    bundle = connection.begin("s1")
    worker.put_out(bundle.id, "sink", b"out")
    worker.state(id="7", instruction_id=bundle.id)
    taken(bundle, 2)
    worker.end_stream(stream)
    with pytest.raises(SdkWorkerLostError, match=f"is gone: its {stream} stream ended"):
        bundle.take(lambda: False, SECONDS)


def test_only_first_response_counts(connection: Connection, worker: ScriptedWorker) -> None:
    def answer() -> None:
        id = worker.request().instruction_id
        for _ in range(2):
            worker.respond(id, monitoring_infos={})

    request = fn_pb.MonitoringInfosMetadataRequest()
    for _ in range(2):
        threading.Thread(target=answer).start()
        connection.ask(monitoring_infos=request)
    bundle = connection.begin("s1")
    worker.request()
    for error in ("first", "second"):
        worker.respond(bundle.id, error=error)
    threading.Thread(target=answer).start()
    connection.ask(monitoring_infos=request)
    (end,) = taken(bundle, 1)
    assert isinstance(end, Responded)
    assert end.response.error == "first"
    assert not connection.is_lost


@pytest.mark.parametrize("response", [{}, {"register": fn_pb.RegisterResponse()}], ids=["nothing", "register"])
def test_response_to_another_request_is_the_workers_fault(
    connection: Connection, worker: ScriptedWorker, response: dict[str, Any]
) -> None:
    bundle = connection.begin("s1")
    worker.respond(bundle.id, **response)
    with pytest.raises(SdkWorkerLostError, match="has answered a request 'process_bundle' with"):
        bundle.take(lambda: False, SECONDS)


def embedded(id: str) -> Any:
    return outgoing.elements(id, "sink", b"out")


def test_outputs_may_be_in_the_response(connection: Connection, worker: ScriptedWorker) -> None:
    bundle = connection.begin("s1")
    elements = embedded(bundle.id)
    elements.timers.add(instruction_id=bundle.id, transform_id="t", timer_family_id="f", timers=b"timer", is_last=True)
    worker.respond_with_outputs(bundle.id, elements)
    data, timers, end = taken(bundle, 3)
    assert (data, timers) == (Output("sink", b"out", False), Output("t", b"timer", True, "f"))
    assert isinstance(end, Responded)


@pytest.mark.parametrize("first", ["stream", "response"])
def test_outputs_in_both_places_are_the_workers_fault(
    connection: Connection, worker: ScriptedWorker, first: str
) -> None:
    """Their order is unknown, and some of them may be the same."""
    bundle = connection.begin("s1")
    if first == "stream":
        worker.put_out(bundle.id, "sink", b"some")
        taken(bundle, 1)
        worker.respond_with_outputs(bundle.id, embedded(bundle.id))
    else:
        worker.respond_with_outputs(bundle.id, embedded(bundle.id))
        taken(bundle, 2)
        worker.put_out(bundle.id, "sink", b"some")
    with pytest.raises(SdkWorkerLostError, match="on its data stream and also in its response"):
        bundle.take(lambda: False, SECONDS)


def test_worker_that_does_not_connect_is_lost(connection: Connection) -> None:
    with pytest.raises(SdkWorkerLostError, match="did not connect within 0"):
        connection.connected(0)


def test_errors_before_the_connection_are_in_the_message(server: Server, connection: Connection) -> None:
    severity = fn_pb.LogEntry.Severity
    entries = [fn_pb.LogEntry(severity=severity.ERROR, message=f"pip: {n}") for n in range(6)]
    entries.append(fn_pb.LogEntry(severity=severity.INFO, message="no error"))
    with grpc.insecure_channel(server.address) as channel:
        logging_stub = fn_grpc.BeamFnLoggingStub(channel)
        list(logging_stub.Logging(iter([fn_pb.LogEntry.List(log_entries=entries)]), metadata=_names(connection)))
    connection.process_ended(ProcessEnd("its process has ended", "exit status 1"))
    with pytest.raises(SdkWorkerLostError) as raised:
        connection.connected(SECONDS)
    logged = "".join(f"\n  it logged: pip: {n}" for n in range(2, 6))
    assert f"the test is gone: its process has ended{logged}" in str(raised.value)


def test_rest_of_the_log_of_a_worker_that_has_ended_is_awaited(connection: Connection) -> None:
    connection.logs(begins=True)
    connection.process_ended(ProcessEnd("its process has ended", "exit status 1"))
    entry = threading.Timer(
        0.1,
        lambda: (connection.logged("pip: no such package", error=True, by_boot=True), connection.logs(begins=False)),
    )
    entry.start()
    with pytest.raises(SdkWorkerLostError, match="has ended\n  it logged: pip: no such package"):
        connection.connected(SECONDS)
    entry.join()


def test_account_names_status_transforms_and_last_words(connection: Connection, worker: ScriptedWorker) -> None:
    connection.set_output(lambda: ("leaving",), process=True)
    bundle = connection.begin("s1")
    bundle.watched_by(Watched())
    severity = fn_pb.LogEntry.Severity
    worker.log(severity=severity.WARN, message="no error", log_location="worker.py:1")
    worker.log(severity=severity.ERROR, message="no room", log_location="worker.py:1")
    worker.end()
    with pytest.raises(SdkWorkerLostError) as raised:
        bundle.take(lambda: False)
    connection.logged("User program exited: exit status 3", error=True, by_boot=True)
    connection.process_ended(ProcessEnd("its process has ended", "exit status 1"))
    account = raised.value.account()
    assert account.why == "the SDK worker of the test is gone: exit status 3 (its control stream ended)"
    assert account.last_lines == ("leaving", "it logged: no room")
    assert (account.how, account.transforms, account.idle) == ("exit status 3", ("A", "B"), False)


class Watched:
    """Knows the transforms of a bundle."""

    pause = SECONDS

    def look(self) -> None:
        """Nothing has arrived."""

    def moved(self) -> None:
        """Something has arrived."""

    def may_run(self) -> tuple[str, ...]:
        """Return their names."""
        return "A", "B"


def test_worker_that_ends_between_bundles_was_idle(connection: Connection, worker: ScriptedWorker) -> None:
    def ended() -> WorkerAccount:
        with pytest.raises(SdkWorkerLostError) as raised:
            connection.begin("s1")
        return raised.value.account()

    bundle = connection.begin("s1")
    worker.respond(bundle.id, process_bundle={})
    taken(bundle, 1)
    connection.end_bundle(bundle)
    connection.process_ended(ProcessEnd("its process has ended", "exit status 1"))
    assert ended().idle


def test_worker_that_ends_before_its_first_answer_was_not_idle(connection: Connection) -> None:
    connection.process_ended(ProcessEnd("its process has ended", "exit status 1"))
    with pytest.raises(SdkWorkerLostError) as raised:
        connection.begin("s1")
    assert not raised.value.account().idle


def test_worker_whose_boot_program_gives_up_has_ended(connection: Connection) -> None:
    """It ends 15 s later."""
    connection.logged("no such module", error=True, by_boot=True)
    connection.logged("Completing background processes before exiting...", error=True, by_boot=True)
    with pytest.raises(SdkWorkerLostError, match=r"its boot program gives up\n  it logged: no such module$"):
        connection.connected(SECONDS)


def _names(connection: Connection) -> list[tuple[str, str]]:
    return [("worker_id", connection.worker)]


def test_requests_are_answered(connection: Connection, worker: ScriptedWorker) -> None:
    def answer() -> None:
        worker.respond(worker.request().instruction_id, monitoring_infos={})
        worker.respond(worker.request().instruction_id, error="no idea")

    threading.Thread(target=answer).start()
    request = fn_pb.MonitoringInfosMetadataRequest()
    assert connection.ask(monitoring_infos=request).WhichOneof("response") == "monitoring_infos"
    with pytest.raises(SdkWorkerLostError, match="cannot answer: no idea"):
        connection.ask(monitoring_infos=request)


def test_who_waits_for_room_takes_what_arrives(connection: Connection, worker: ScriptedWorker) -> None:
    """The worker reads nothing before the runner has taken all of its output."""
    bundle = connection.begin("s1")
    worker.put_out(bundle.id, "sink", b"first")
    assert taken(bundle, 1)
    worker.pause()
    part, count, out = bytes(1 << 20), 2 * (_UNSENT_BYTES_MAX >> 20) + 64, 2 * (_HELD_BYTES_MAX >> 20) + 8
    arrived: list[Incoming] = []
    for n in range(out):
        worker.put_out(bundle.id, "sink", part, last=n == out - 1)

    def took(arrival: Incoming) -> None:
        arrived.append(arrival)
        if len(arrived) == out:
            worker.resume()

    for _ in range(count):
        connection.send(bundle, outgoing.elements(bundle.id, "source", part), took)
    connection.send(bundle, outgoing.end(bundle.id, "source", ()), took)
    assert len(list(worker.inputs())) == count + 1
    while len(arrived) < out:
        arrived += bundle.take(lambda: False)


def test_unread_output_waits_in_the_worker(connection: Connection, worker: ScriptedWorker) -> None:
    bundle = connection.begin("s1")
    for _ in range(4 * (_HELD_BYTES_MAX >> 20)):
        worker.put_out(bundle.id, "sink", bytes(1 << 20))
    first = len(bundle.take(lambda: False))
    while first < 4 * (_HELD_BYTES_MAX >> 20):
        waiting = bundle._bytes
        assert waiting <= _HELD_BYTES_MAX + (1 << 20)
        first += len(bundle.take(lambda: False))


def test_state_request_is_answered_by_its_bundle(connection: Connection, worker: ScriptedWorker) -> None:
    bundle = connection.begin("s1")
    answer = worker.state(id="7", instruction_id=bundle.id)
    (requested,) = taken(bundle, 1)
    assert isinstance(requested, StateRequested)
    connection.answer(fn_pb.StateResponse(id=requested.request.id, get=fn_pb.StateGetResponse(data=b"x")))
    found = answer()
    assert (found.id, found.get.data) == ("7", b"x")


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_state_request_of_an_ended_bundle_is_answered(
    connection: Connection, worker: ScriptedWorker, when: str
) -> None:
    bundle = connection.begin("s1")
    if when == "after":
        connection.end_bundle(bundle)
    answer = worker.state(id="7", instruction_id="unknown" if when == "never" else bundle.id)
    if when == "before":
        until(lambda: bundle._arrived, "the request")
        connection.end_bundle(bundle)
    found = answer()
    assert (found.id, found.error) == ("7", "the bundle has ended")


def test_log_entry_names_worker_transform_and_place(
    connection: Connection, worker: ScriptedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "arcbeam.sdk"):
        severity = fn_pb.LogEntry.Severity
        worker.log(
            severity=severity.WARN, message="50% done", transform_id="Split", log_location="a.go:7", trace="at b\n"
        )
        worker.log(severity=severity.DEBUG, message="unseen")
        worker.log(message="plain")
    who = f"the test, worker {connection.worker[:8]}"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"{who}: [Split] 50% done (a.go:7)\nat b"),
        ("INFO", f"{who}: plain"),
    ]


def test_worker_that_logs_too_much_is_cut_short(worker: ScriptedWorker, caplog: pytest.LogCaptureFixture) -> None:
    severity = fn_pb.LogEntry.Severity
    many = [fn_pb.LogEntry(severity=severity.INFO, message=f"{n}") for n in range(workerlogs._ENTRIES_MAX + 7)]
    with caplog.at_level(logging.INFO, "arcbeam.sdk"):
        worker.log_all([*many, fn_pb.LogEntry(severity=severity.ERROR, message="no" * texts.CHARACTERS_MAX)])
    *_, last, error, left_out = (record.getMessage() for record in caplog.records)
    assert len(caplog.records) == workerlogs._ENTRIES_MAX + 2
    assert last.endswith(f": {workerlogs._ENTRIES_MAX - 1}")
    assert f"({texts.CHARACTERS_MAX} characters omitted)" in error
    assert "7 more log entries were left out" in left_out


def test_server_of_a_process_is_not_that_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_here", None)
    here = server_here()
    assert server_here() is here
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        forked = server_here()
    assert forked is not here
    forked.stop()
    here.stop()
