"""What a worker may do with timers and state that is unusual, or wrong: a scripted worker does it on command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder, _TimerCoder
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, Timer, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from arcbeam.engine.state.timers import EXPIRATION, Fired
from arcbeam.engine.task.bundles import TimerCleared, TimerSet
from arcbeam.errors import ArcbeamError
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.model.plan import Stage
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.scripted import ScriptedWorker
from tests.fnapi.stage.inworkers import external
from tests.fnapi.stage.traps.test_bundle_traps import SINK
from tests.fnapi.stage.traps.world import World
from tests.harness.batch.statefulplans import call_on_expiration

EVENT, EXPIRES = "ts-event", "ts-expires"
_TIMERS = _TimerCoder(coders.StrUtf8Coder(), GlobalWindowCoder()).get_impl()


class Keeping(beam.DoFn):
    BAG = BagStateSpec("bag", coders.BytesCoder())
    EVENT = TimerSpec("event", TimeDomain.WATERMARK)
    EXPIRES = TimerSpec("expires", TimeDomain.WATERMARK)

    def process(self, element: Any, bag: Any = beam.DoFn.StateParam(BAG), e: Any = beam.DoFn.TimerParam(EVENT)) -> None:
        """The scripted worker runs in its place."""

    @on_timer(EVENT)
    def on_event(self) -> None: ...

    @on_timer(EXPIRES)
    def on_expires(self, declared: Any = beam.DoFn.TimerParam(EXPIRES)) -> None: ...


@pytest.fixture(scope="module")
def of() -> Stage:
    p = beam.Pipeline()
    pairs = p | beam.Create([("a", 1)], reshuffle=False) | beam.Map(lambda e: e).with_output_types(tuple[str, int])
    _ = pairs | "Keep" >> beam.ParDo(Keeping()) | beam.Reshuffle() | beam.Map(print)
    proto = pipeline_proto(p)
    call_on_expiration(proto)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
    return next(stage for stage in translate(ParsedPipeline(proto), bounded=False).stages if stage.stateful)


def timer(fires: int | None, key: str = "a", tag: str = "", hold: Any = None) -> bytes:
    """Return an encoded timer; None: one that is cleared. It holds at its firing time, if `hold` is None."""
    at = None if fires is None else SdkTimestamp(fires)
    pane = None if fires is None else PANE_INFO_UNKNOWN
    encoded: bytes = _TIMERS.encode_nested(Timer(key, tag, (GlobalWindow(),), fires is None, at, hold or at, pane))
    return encoded


def end(worker: ScriptedWorker, id: str, *families: str) -> None:
    """End the outputs, and the given families of timers."""
    worker.put_out(id, SINK, b"", last=True)
    for family in families:
        worker.set_timers(id, "Keep", family, b"", last=True)
    worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())


@pytest.fixture
def world(of: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with World(of, monkeypatch) as world:
        yield world


@pytest.mark.contract("API-03", "ENG-12")
def test_timers_may_span_messages_and_follow_the_response(world: World) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        end(worker, id, EXPIRES)
        for byte in timer(5) + timer(6, tag="x"):
            worker.set_timers(id, "Keep", EVENT, bytes([byte]))
        worker.set_timers(id, "Keep", EVENT, b"", last=True)

    found = world.process(script)
    assert [(type(each), each.key, each.fire_at, each.tag) for each in found] == [
        (TimerSet, b"a", 5_000_000, ""),
        (TimerSet, b"a", 6_000_000, "x"),
    ]


def test_cleared_timer_has_no_times(world: World) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.set_timers(id, "Keep", EVENT, timer(5) + timer(None) + timer(None, tag="x"))
        end(worker, id, EVENT, EXPIRES)

    found = world.process(script)
    assert [(type(each), each.tag) for each in found] == [(TimerSet, ""), (TimerCleared, ""), (TimerCleared, "x")]


def test_timer_has_an_output_time_of_its_own_or_none(world: World) -> None:
    """No output time is the end of time on the Fn API."""
    end_of_time, arrived = SdkTimestamp(micros=int(MAX_TIMESTAMP)), list[bytes]()
    timers = [timer(5, tag="own", hold=SdkTimestamp(3)), timer(5, tag="none", hold=end_of_time)]

    def setting(worker: ScriptedWorker, id: str) -> None:
        worker.set_timers(id, "Keep", EVENT, b"".join(timers))
        end(worker, id, EVENT, EXPIRES)

    def firing(worker: ScriptedWorker, id: str) -> None:
        while not any(arrived):
            arrived.extend(each.timers for each in worker.message().timers)
        end(worker, id, EVENT, EXPIRES)

    found = world.process(setting)
    assert [(each.fire_at, each.hold) for each in found] == [(5_000_000, 3_000_000), (5_000_000, None)]
    for each, encoded in zip(found, timers, strict=True):
        fired = Fired(b"a", GLOBAL_WINDOW.ordered(), EVENT, each.tag, each.fire_at, each.hold, each.payload)
        arrived.clear()
        world.plays(firing, lambda fired=fired: world.runner.fire_together([fired]))
        assert encoded in arrived


def test_timer_belongs_to_its_key(world: World) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.set_timers(id, "Keep", EVENT, timer(5, key="b") + timer(6))
        end(worker, id, EVENT, EXPIRES)

    found = world.process(script, "a", "b")
    assert [(each.key, each.fire_at) for each in found] == [(b"b", 5_000_000), (b"a", 6_000_000)]


def test_timer_of_key_outside_the_bundle_is_an_error(world: World) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.set_timers(id, "Keep", EVENT, timer(5, key="c"))

    with pytest.raises(ArcbeamError, match="names a key that is not in its bundle"):
        world.process(script, "a", "b")


@pytest.mark.parametrize("what", ["output", "timers"])
def test_unknown_output_is_the_workers_fault(world: World, what: str) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        if what == "output":
            worker.put_out(id, "another", b"", last=True)
        else:
            worker.set_timers(id, "Keep", "another", b"", last=True)

    with pytest.raises(SdkWorkerLostError, match=r"has an output that its descriptor does not have: .*another"):
        world.process(script)


def test_timer_is_fired_alone_in_its_family_and_all_families_end(world: World) -> None:
    arrived: list[tuple[str, str, bytes, bool]] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        while not arrived or not arrived[-1][-1]:
            message = worker.message()
            arrived.extend(("timers", each.timer_family_id, each.timers, each.is_last) for each in message.timers)
            arrived.extend(("data", each.transform_id, each.data, each.is_last) for each in message.data)
        end(worker, id, EVENT, EXPIRES)

    window, at = GLOBAL_WINDOW.ordered(), END_OF_GLOBAL_WINDOW
    fired = [Fired(b"a", window, EVENT, "x", Timestamp(5_000_000), Timestamp(5_000_000), b"")]
    fired.append(Fired(b"b", window, EXPIRATION, "", at, at, b""))
    world.plays(script, lambda: world.runner.fire_together(fired))
    expires = Timer("b", "", (GlobalWindow(),), False, *[SdkTimestamp(micros=int(at) + 1)] * 2, PANE_INFO_UNKNOWN)
    assert arrived[:2] == [
        ("timers", EVENT, timer(5, tag="x"), False),
        ("timers", EXPIRES, _TIMERS.encode_nested(expires), False),
    ]
    assert {each[:2] for each in arrived[2:]} == {("timers", EVENT), ("timers", EXPIRES), ("data", "arcbeam/source")}
    assert all(data == b"" and is_last for _, _, data, is_last in arrived[2:])


@pytest.mark.contract("API-03", "ENG-12")
def test_state_is_written_in_the_order_of_requests(world: World) -> None:
    answers: list[Any] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        key = fn_pb.StateKey(
            bag_user_state=fn_pb.StateKey.BagUserState(transform_id="Keep", user_state_id="bag", key=b"\1a")
        )
        for n, request in enumerate(
            (
                {"append": fn_pb.StateAppendRequest(data=b"\1x")},
                {"clear": fn_pb.StateClearRequest()},
                {"append": fn_pb.StateAppendRequest(data=b"\1y\1z")},
                {"get": fn_pb.StateGetRequest()},
            )
        ):
            answers.append(worker.state(id=str(n), instruction_id=id, state_key=key, **request)())
        end(worker, id, EVENT, EXPIRES)

    world.process(script)
    assert [answer.error for answer in answers] == [""] * 4
    assert answers[-1].get.data == b"\1y\1z"


def test_side_input_is_not_written(world: World) -> None:
    answers: list[Any] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        for n, key in enumerate(
            (
                fn_pb.StateKey(runner=fn_pb.StateKey.Runner(key=b"0")),
                fn_pb.StateKey(multimap_keys_user_state=fn_pb.StateKey.MultimapKeysUserState(key=b"\1a")),
            )
        ):
            append = fn_pb.StateAppendRequest(data=b"\1x")
            answers.append(worker.state(id=str(n), instruction_id=id, state_key=key, append=append)())
        end(worker, id, EVENT, EXPIRES)

    world.process(script)
    assert all("cannot be written" in answer.error for answer in answers)
