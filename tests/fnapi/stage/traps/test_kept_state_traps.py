"""How a worker may read and write state of each kind: a scripted worker does it on command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.transforms.userstate import BagStateSpec

from arcbeam.fnapi.descriptors import par_do_payload
from arcbeam.fnapi.stage import staterequests
from arcbeam.model.plan import Stage
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.scripted import ScriptedWorker
from tests.fnapi.stage.inworkers import external
from tests.fnapi.stage.traps.test_bundle_traps import SINK
from tests.fnapi.stage.traps.world import World

pytestmark = pytest.mark.contract("API-03", "ENG-12")

Ask = Callable[..., Any]
"""Asks for state; returns the answer."""


class Keeping(beam.DoFn):
    """The scripted worker runs in its place, as one of an SDK that has maps."""

    def process(
        self,
        element: Any,
        bag: Any = beam.DoFn.StateParam(BagStateSpec("bag", BytesCoder())),
        map: Any = beam.DoFn.StateParam(BagStateSpec("map", BytesCoder())),
        list: Any = beam.DoFn.StateParam(BagStateSpec("list", BytesCoder())),
    ) -> None: ...


@pytest.fixture(scope="module")
def of() -> Stage:
    p = beam.Pipeline()
    pairs = p | beam.Create([("a", 1)], reshuffle=False) | beam.Map(lambda e: e).with_output_types(tuple[str, int])
    _ = pairs | "Keep" >> beam.ParDo(Keeping()) | beam.Reshuffle() | beam.Map(print)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
        environment.capabilities[:] = [each for each in environment.capabilities if each.startswith("beam:coder:")]
    for transform in proto.components.transforms.values():
        payload = par_do_payload(transform)
        if payload is not None and payload.state_specs:
            map, list = payload.state_specs["map"], payload.state_specs["list"]
            coder = map.bag_spec.element_coder_id
            map.multimap_spec.key_coder_id = map.multimap_spec.value_coder_id = coder
            list.ordered_list_spec.element_coder_id = coder
            transform.spec.payload = payload.SerializeToString()
    return next(stage for stage in translate(ParsedPipeline(proto), bounded=False).stages if stage.states)


@pytest.fixture
def asking(of: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Ask], None]], None]]:
    """Return what runs a bundle in which a function asks for state."""
    with World(of, monkeypatch) as world:

        def play(script: Callable[[Ask], None]) -> None:
            def in_bundle(worker: ScriptedWorker, id: str) -> None:
                number = iter(range(1000))

                def ask(key: dict[str, Any], **request: Any) -> Any:
                    state_key = fn_pb.StateKey(**key)
                    return worker.state(id=f"{next(number)}", instruction_id=id, state_key=state_key, **request)()

                script(ask)
                worker.put_out(id, SINK, b"", last=True)
                worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

            world.process(in_bundle)

        yield play


def named(name: str) -> dict[str, Any]:
    return {"transform_id": "Keep", "user_state_id": name, "window": b"", "key": b"\1a"}


BAG = {"bag_user_state": fn_pb.StateKey.BagUserState(**named("bag"))}
KEYS = {"multimap_keys_user_state": fn_pb.StateKey.MultimapKeysUserState(**named("map"))}
ENTRIES = {"multimap_entries_user_state": fn_pb.StateKey.MultimapEntriesUserState(**named("map"))}
CLEAR = {"clear": fn_pb.StateClearRequest()}


def at(map_key: bytes) -> dict[str, Any]:
    return {"multimap_user_state": fn_pb.StateKey.MultimapUserState(map_key=map_key, **named("map"))}


def between(start: int, end: int) -> dict[str, Any]:
    range = fn_pb.OrderedListRange(start=start, end=end)
    return {"ordered_list_user_state": fn_pb.StateKey.OrderedListUserState(range=range, **named("list"))}


def append(data: bytes) -> dict[str, Any]:
    return {"append": fn_pb.StateAppendRequest(data=data)}


def get(token: bytes = b"") -> dict[str, Any]:
    return {"get": fn_pb.StateGetRequest(continuation_token=token)}


def pages(ask: Ask, key: dict[str, Any]) -> list[bytes]:
    """Return all pages of a state."""
    answer = ask(key, **get()).get
    found = [answer.data]
    while answer.continuation_token:
        answer = ask(key, **get(answer.continuation_token)).get
        found.append(answer.data)
    return found


def test_multimap_is_written_and_read_by_map_key(asking: Any) -> None:
    def first(ask: Ask) -> None:
        assert pages(ask, KEYS) == [b""]
        # Two values at once; none, so that the key exists; a key that is gone again; after the clear, another value.
        for key, data in ((b"\1x", b"\0011\0012"), (b"\1y", b""), (b"\1z", b"\0010")):
            assert not ask(at(key), **append(data)).error
        assert pages(ask, at(b"\1x")) == [b"\0011\0012"]
        assert pages(ask, at(b"\1y")) == pages(ask, at(b"\1w")) == [b""]
        assert not ask(at(b"\1z"), **CLEAR).error
        assert not ask(at(b"\1x"), **CLEAR).error
        assert not ask(at(b"\1x"), **append(b"\0013")).error
        (keys,) = pages(ask, KEYS)
        assert keys in (b"\1x\1y", b"\1y\1x")

    def later(ask: Ask) -> None:
        (entries,) = pages(ask, ENTRIES)
        assert entries in (b"\1x\0\0\0\1\0013\1y\0\0\0\0", b"\1y\0\0\0\0\1x\0\0\0\1\0013")
        assert "cannot be written" in ask(ENTRIES, **CLEAR).error
        assert not ask(KEYS, **CLEAR).error
        assert pages(ask, KEYS) == pages(ask, ENTRIES) == pages(ask, at(b"\1x")) == [b""]

    asking(first)
    asking(later)


def test_ordered_list_is_read_and_cleared_by_range(asking: Any) -> None:
    def entry(sort_key: int, value: bytes) -> bytes:
        return VarIntCoder().encode(sort_key) + bytes([len(value)]) + value

    early, zero, seven, again = entry(-3, b"e"), entry(0, b""), entry(7, b"s"), entry(7, b"t")
    everything = between(-(1 << 63), (1 << 63) - 1)

    def first(ask: Ask) -> None:
        # Several at once, in any order; two may have the same sort key.
        assert not ask(everything, **append(seven + early)).error
        assert not ask(everything, **append(zero + again)).error
        assert pages(ask, everything) == [early + zero + seven + again]

    def later(ask: Ask) -> None:
        assert pages(ask, between(-3, 7)) == [early + zero], "the end is not included"
        assert pages(ask, between(1, 7)) == [b""]
        assert not ask(between(-3, 1), **CLEAR).error
        assert pages(ask, everything) == [seven + again]

    asking(first)
    asking(later)


@pytest.mark.parametrize("kind", ["bag", "map", "list"])
def test_state_is_read_in_pages_of_whole_elements(asking: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(staterequests, "_PAGE", 4)
    key, begin = {"bag": (BAG, b""), "map": (at(b"\1x"), b""), "list": (between(0, 9), b"\5")}[kind]
    elements = [begin + b"\1" + each for each in (b"a", b"b", b"c", b"d", b"e")]

    def write(ask: Ask) -> None:
        for each in elements:
            ask(key, **append(each))

    def read(ask: Ask) -> None:
        found = pages(ask, key)
        assert b"".join(found) == b"".join(elements)
        assert len(found) > 2
        assert all(len(page) % len(elements[0]) == 0 for page in found)

    asking(write)
    asking(read)


def test_token_may_be_used_again_also_after_a_write(asking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may cache a first page, and then read what follows it."""
    monkeypatch.setattr(staterequests, "_PAGE", 1)
    tokens: list[bytes] = []

    def first(ask: Ask) -> None:
        for each in (b"\1a", b"\1b"):
            ask(BAG, **append(each))
        answer = ask(BAG, **get()).get
        tokens.append(answer.continuation_token)
        for _ in range(2):
            assert ask(BAG, **get(*tokens)).get.data == b"\1b"
        ask(BAG, **append(b"\1c"))
        after_b = ask(BAG, **get(*tokens)).get
        assert after_b.data + ask(BAG, **get(after_b.continuation_token)).get.data == b"\1b\1c"

    def later(ask: Ask) -> None:
        assert ask(BAG, **get(*tokens)).get.data == b"\1b"
        ask(BAG, **CLEAR)
        assert ask(BAG, **get(*tokens)).get.data == b"", "nothing follows any more"
        assert "ValueError" in ask(BAG, **get(b"no token")).error

    asking(first)
    asking(later)


def test_state_is_that_of_one_key(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nested encoding of a key decides which one it is."""
    answers: list[Any] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        for n, (key, request) in enumerate(
            ((b"\1a", append(b"\1x")), (b"\1b", get()), (b"\1a", get()), (b"\1c", get()))
        ):
            state_key = fn_pb.StateKey(bag_user_state=fn_pb.StateKey.BagUserState(**{**named("bag"), "key": key}))
            answers.append(worker.state(id=str(n), instruction_id=id, state_key=state_key, **request)())
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    with World(of, monkeypatch) as world:
        world.process(script, "a", "b")
    assert [answer.get.data for answer in answers[:3]] == [b"", b"", b"\1x"]
    assert "names a key that is not in its bundle" in answers[3].error


def test_state_may_be_written_after_the_ends_of_all_outputs(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python writes its state when a bundle ends; only the response is the end."""
    read: list[bytes] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        for n, request in enumerate((append(b"\1x"), get())):
            answer = worker.state(id=str(n), instruction_id=id, state_key=fn_pb.StateKey(**BAG), **request)()
            read.append(answer.get.data)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    with World(of, monkeypatch) as world:
        for _ in range(2):
            world.process(script)
    assert read == [b"", b"\1x", b"", b"\1x\1x"]
