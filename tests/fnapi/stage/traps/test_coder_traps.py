"""Coders that only the SDK knows, in all places where a worker reads or writes them: a scripted worker has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import coders
from apache_beam.coders.coders import GlobalWindowCoder, _TimerCoder
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.testing import test_stream
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, Timer, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from arcbeam.fnapi.descriptors import SOURCE, par_do_payload
from arcbeam.model.plan import Plan, Stage
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MIN_TIMESTAMP
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.scripted import ScriptedWorker
from tests.fnapi.stage.inworkers import external
from tests.fnapi.stage.traps.test_bundle_traps import SINK, element
from tests.fnapi.stage.traps.world import Script, World

pytestmark = pytest.mark.contract("API-03")

OWN, PREFIX, TEXT = "beam:go:coder:custom:v1", "beam:coder:length_prefix:v1", "beam:coder:string_utf8:v1"
PAIR = b"\6custom\4text"
"""A key of the SDK's own, after its length, and a text, whose length is part of its coder."""


def of_another_sdk(build: Callable[[Any], None], edit: Callable[[Any], None] = lambda components: None) -> Plan:
    """Translate a pipeline of another SDK; all keys have a coder of its own."""
    p = beam.Pipeline()
    build(p)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
        environment.capabilities[:] = [each for each in environment.capabilities if each.startswith("beam:coder:")]
    proto.components.coders["own"].spec.urn = OWN
    for coder in proto.components.coders.values():
        if coder.spec.urn == "beam:coder:kv:v1":
            coder.component_coder_ids[0] = "own"
    edit(proto.components)
    return translate(ParsedPipeline(proto), bounded=False)


def pairs(p: Any, name: str) -> Any:
    some = p | name >> beam.Create([("a", "b")], reshuffle=False)
    return some | f"{name} pairs" >> beam.Map(lambda e: e).with_output_types(tuple[str, str])


def stage_of(plan: Plan, name: str) -> Stage:
    """Return the stage that has a transform."""
    return next(stage for stage in plan.stages if name in {transform.name for transform in stage.transforms})


def tree(components: Any, id: str) -> Any:
    """Return a coder as nested lists of URNs."""
    coder = components.coders[id]
    parts = [tree(components, each) for each in coder.component_coder_ids]
    return [coder.spec.urn, *parts] if parts else coder.spec.urn


KV = ["beam:coder:kv:v1", [PREFIX, OWN], TEXT]


def descriptor_of(worker: ScriptedWorker) -> Any:
    return worker.descriptor(worker.last_request.process_bundle.process_bundle_descriptor_id)


def port(descriptor: Any, id: str) -> Any:
    """Return the coder of the elements at a port."""
    at = fn_pb.RemoteGrpcPort.FromString(descriptor.transforms[id].spec.payload)
    return tree(descriptor, descriptor.coders[at.coder_id].component_coder_ids[0])


def done(worker: ScriptedWorker, id: str, data: bytes = b"") -> None:
    worker.put_out(id, SINK, data, last=True)
    worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())


def run(of: Stage, monkeypatch: pytest.MonkeyPatch, script: Script, value: Any) -> bytes:
    """Run a bundle with one element; return all bytes that it has written."""
    arrived = value, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE
    with World(of, monkeypatch) as world:
        world.plays(script, lambda: (world.runner.process(b"", [arrived]), world.runner.finish()))
        world.stage.end(BundleReport(of.id, 0), late=0, closed=0)
    return b"".join(row.blob for row in world.outbox.rows)


def test_only_an_unknown_coder_has_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(p: Any) -> None:
        middle = (
            pairs(p, "Some") | beam.Reshuffle() | "Same" >> beam.Map(lambda e: e).with_output_types(tuple[str, str])
        )
        _ = middle | "Again" >> beam.Reshuffle() | beam.Map(print)

    def script(worker: ScriptedWorker, id: str) -> None:
        descriptor = descriptor_of(worker)
        assert port(descriptor, SOURCE) == port(descriptor, SINK) == KV
        arrived = b"".join(each.data for each in worker.inputs())
        assert arrived.endswith(PAIR)
        done(worker, id, arrived)

    written = run(stage_of(of_another_sdk(build), "Same"), monkeypatch, script, (b"custom", b"text"))
    assert PAIR in written, "it is stored as it came"


def test_worker_of_a_flatten_changes_coders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of a Flatten has one coder; only the SDK can read an input with another one."""

    def build(p: Any) -> None:
        both = (pairs(p, "One"), pairs(p, "Other")) | "Both" >> beam.Flatten()
        _ = both | beam.Reshuffle() | beam.Map(print)

    def edit(components: Any) -> None:
        (flatten,) = (t for t in components.transforms.values() if t.unique_name == "Both")
        (out,) = flatten.outputs.values()
        components.pcollections[out].coder_id = "own"

    def script(worker: ScriptedWorker, id: str) -> None:
        descriptor = descriptor_of(worker)
        (flatten,) = (t for t in descriptor.transforms.values() if t.spec.urn == "beam:transform:flatten:v1")
        coders = [descriptor.pcollections[of.popitem()[1]].coder_id for of in (flatten.inputs, flatten.outputs)]
        assert [tree(descriptor, each) for each in coders] == [["beam:coder:kv:v1", OWN, TEXT], OWN]
        assert port(descriptor, SINK) == [PREFIX, OWN]
        done(worker, id, element(b"whole"))

    assert b"whole" in run(stage_of(of_another_sdk(build, edit), "One pairs"), monkeypatch, script, b"")


class Keeping(beam.DoFn):
    """The scripted worker runs in its place."""

    SOON = TimerSpec("soon", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        map: Any = beam.DoFn.StateParam(BagStateSpec("map", coders.BytesCoder())),
        soon: Any = beam.DoFn.TimerParam(SOON),
    ) -> None: ...

    @on_timer(SOON)
    def on_soon(self) -> None: ...


def test_keys_of_state_and_timers_have_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = _TimerCoder(coders.BytesCoder(), GlobalWindowCoder()).get_impl()
    timer = timers.encode_nested(
        Timer(b"custom", "", (GlobalWindow(),), False, Timestamp(5), Timestamp(5), PANE_INFO_UNKNOWN)
    )
    answers: list[Any] = []

    def edit(components: Any) -> None:
        for transform in components.transforms.values():
            payload = par_do_payload(transform)
            if payload is not None and payload.state_specs:
                map = payload.state_specs["map"].multimap_spec
                map.key_coder_id = map.value_coder_id = "own"
                transform.spec.payload = payload.SerializeToString()

    def script(worker: ScriptedWorker, id: str) -> None:
        descriptor = descriptor_of(worker)
        (payload,) = (
            found
            for each in descriptor.transforms.values()
            if (found := par_do_payload(each)) is not None and found.state_specs
        )
        map = payload.state_specs["map"].multimap_spec
        assert tree(descriptor, map.key_coder_id) == tree(descriptor, map.value_coder_id) == [PREFIX, OWN]
        (family,) = payload.timer_family_specs.values()
        assert tree(descriptor, family.timer_family_coder_id)[1] == [PREFIX, OWN]
        of = {"transform_id": "Keep", "user_state_id": "map", "window": b"", "key": b"\6custom"}
        at = fn_pb.StateKey(multimap_user_state=fn_pb.StateKey.MultimapUserState(map_key=b"\2mk", **of))
        all = fn_pb.StateKey(multimap_entries_user_state=fn_pb.StateKey.MultimapEntriesUserState(**of))
        append, get = fn_pb.StateAppendRequest(data=b"\1v\2vw"), fn_pb.StateGetRequest()
        answers.append(worker.state(id="1", instruction_id=id, state_key=at, append=append)())
        answers.append(worker.state(id="2", instruction_id=id, state_key=all, get=get)())
        (name,) = payload.timer_family_specs
        worker.set_timers(id, "Keep", name, timer, last=True)
        done(worker, id)

    def build(p: Any) -> None:
        some = pairs(p, "Some") | "Numbers" >> beam.Map(lambda e: e).with_output_types(tuple[str, int])
        _ = some | "Keep" >> beam.ParDo(Keeping()) | beam.Reshuffle() | beam.Map(print)

    plan = of_another_sdk(build, edit)
    with World(next(stage for stage in plan.stages if stage.stateful), monkeypatch) as world:
        (timer_set,) = world.process(script, "custom")
    assert [answer.error for answer in answers] == ["", ""]
    assert answers[1].get.data == b"\2mk\0\0\0\2\1v\2vw"
    assert (timer_set.key, timer_set.fire_at) == (b"custom", 5_000_000)


def test_side_input_has_lengths_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(p: Any) -> None:
        table = beam.pvalue.AsIter(pairs(p, "Side"))
        _ = p | beam.Impulse() | "Look" >> beam.Map(lambda x, y: x, table) | beam.Reshuffle() | beam.Map(print)

    def script(worker: ScriptedWorker, id: str) -> None:
        descriptor = descriptor_of(worker)
        (look,) = (t for t in descriptor.transforms.values() if t.unique_name == "Look")
        payload = runner_pb.ParDoPayload.FromString(look.spec.payload)
        (tag,) = payload.side_inputs
        assert tree(descriptor, descriptor.pcollections[look.inputs[tag]].coder_id) == KV
        done(worker, id)

    run(stage_of(of_another_sdk(build), "Look"), monkeypatch, script, b"")


def _scripted(python: bool) -> Plan:
    """Translate a pipeline with a TestStream of pairs."""
    p = beam.Pipeline()
    script = test_stream.TestStream(coder=coders.TupleCoder((coders.BytesCoder(), coders.BytesCoder())))
    some = p | "Script" >> script.with_output_types(tuple[bytes, bytes])
    _ = some | "Same" >> beam.Map(lambda e: e) | beam.Reshuffle() | beam.Map(print)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
        if not python:
            environment.capabilities[:] = [each for each in environment.capabilities if each.startswith("beam:coder:")]
    return translate(ParsedPipeline(proto), bounded=False)


@pytest.mark.parametrize(
    ("python", "encoded", "sent"), [(True, b"\1kvalue", b"\7\1kvalue"), (False, b"\1k\5value", b"\1k\5value")]
)
def test_element_of_a_script_is_sent_as_its_sdk_has_encoded_it(
    monkeypatch: pytest.MonkeyPatch, python: bool, encoded: bytes, sent: bytes
) -> None:
    """Python encodes it in outer context: its last part has no length. So all of it gets one."""

    def script(worker: ScriptedWorker, id: str) -> None:
        assert b"".join(each.data for each in worker.inputs()).endswith(sent)
        done(worker, id)

    with World(next(stage for stage in _scripted(python).stages if stage.scripted), monkeypatch) as world:
        ((key, elements),) = world.stage.scripted([(encoded, MIN_TIMESTAMP)])
        world.plays(script, lambda: (world.runner.process(key, elements), world.runner.finish()))
