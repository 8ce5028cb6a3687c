"""Side inputs for a worker: pages, windows, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.userstate import BagStateSpec
from apache_beam.transforms.window import FixedWindows, GlobalWindows, IntervalWindow

from arcbeam.fnapi.descriptors import par_do_payload
from arcbeam.fnapi.service.provision import Provision
from arcbeam.fnapi.stage import staterequests
from arcbeam.fnapi.stage.staterequests import StateRequests
from arcbeam.harness.bundle.windows import Windows
from arcbeam.harness.streaming.state import ViewState
from arcbeam.model.plan import Stage
from arcbeam.testing.views import MemoryView
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.stage.inworkers import external

WINDOW = IntervalWindow(0, 10)


class Sides:
    """Chunks of a side input, and what was asked for."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks
        self.windows: list[bytes] = []

    def chunks(self, channel: int, window: bytes) -> Iterator[bytes]:
        self.windows.append(window)
        return iter(self._chunks)


@pytest.fixture(scope="module")
def stage() -> Stage:
    p = beam.Pipeline()
    numbers = p | beam.Create([1]) | beam.WindowInto(FixedWindows(10))
    _ = numbers | "Look" >> beam.Map(lambda x, y: x, beam.pvalue.AsIter(numbers))
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
    return next(each for each in translate(ParsedPipeline(proto), bounded=False).stages if each.side_inputs)


def requests(stage: Stage, sides: Any) -> StateRequests:
    state = ViewState(stage.side_channels, {})
    state.read_sides(sides)
    return StateRequests(stage, state)


def requested(stage: Stage, token: bytes = b"") -> Any:
    (side,) = stage.side_inputs
    key = fn_pb.StateKey.IterableSideInput(
        transform_id=side.transform, side_input_id=side.tag, window=IntervalWindowCoder().encode(WINDOW)
    )
    get = fn_pb.StateGetRequest(continuation_token=token)
    return fn_pb.StateRequest(id="7", state_key=fn_pb.StateKey(iterable_side_input=key), get=get)


def test_side_input_is_read_in_pages(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staterequests, "_PAGE", 3)
    sides = Sides(b"ab", b"cd", b"efgh", b"i")
    serving, token, pages = requests(stage, sides), b"", []
    while True:
        answer = serving.answer(requested(stage, token))
        assert (answer.id, answer.error) == ("7", "")
        pages.append(answer.get.data)
        token = answer.get.continuation_token
        if not token:
            break
    assert pages == [b"abcd", b"efgh", b"i"]
    assert not serving._begun


def test_window_is_encoded_as_it_is_stored(stage: Stage) -> None:
    sides = Sides()
    assert requests(stage, sides).answer(requested(stage)).get.data == b""
    assert [len(window) for window in sides.windows] == [18], "microseconds, nine bytes for each end"


def test_what_cannot_be_answered_is_an_error(stage: Stage) -> None:
    serving = requests(stage, Sides())
    unknown = requested(stage)
    unknown.state_key.iterable_side_input.side_input_id = "other"
    assert "'other' is not a side input" in serving.answer(unknown).error
    cleared = fn_pb.StateRequest(id="8", state_key=requested(stage).state_key, clear=fn_pb.StateClearRequest())
    assert "'iterable_side_input' cannot be written" in serving.answer(cleared).error
    written = requested(stage)
    written.clear.SetInParent()
    assert "cannot be written" in serving.answer(written).error
    assert "ValueError" in serving.answer(requested(stage, b"no token")).error


def test_page_may_be_read_again_also_in_a_later_bundle(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staterequests, "_PAGE", 1)
    serving = requests(stage, Sides(b"a", b"b", b"c"))
    token = serving.answer(requested(stage)).get.continuation_token
    for _ in range(2):
        assert [serving.answer(requested(stage, token)).get.data for _ in range(2)] == [b"b", b"b"]
        serving.begin()


class _Stateful(beam.DoFn):
    def process(self, pair: tuple[str, int], state: Any = beam.DoFn.StateParam(BagStateSpec("kept", VarIntCoder()))):
        yield pair


def serving(kind: str, sdk: str = "go") -> tuple[StateRequests, str]:
    """Return what serves a stage with a state of a kind, as an SDK declares it, and the stateful transform."""
    python = sdk == "python"
    p = beam.Pipeline()
    _ = p | beam.Create([("a", 1)]) | "Keep" >> beam.ParDo(_Stateful())
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
        if not python:
            standard = [each for each in environment.capabilities if each.startswith("beam:coder:")]
            environment.capabilities[:] = [*standard, f"beam:version:sdk_base:apache/beam_{sdk}_sdk:2.73.0"]
    proto.components.coders["own"].spec.urn = "beam:go:coder:custom:v1"
    for transform in proto.components.transforms.values():
        payload = par_do_payload(transform)
        if payload is None or not payload.state_specs:
            continue
        spec = payload.state_specs["kept"]
        element = spec.bag_spec.element_coder_id if python else "own"
        if kind == "ordered_list_spec":
            spec.ordered_list_spec.element_coder_id = element
        else:
            map = getattr(spec, kind)
            map.key_coder_id = map.value_coder_id = element
        transform.spec.payload = payload.SerializeToString()
    stage = next(each for each in translate(ParsedPipeline(proto), bounded=False).stages if each.states)
    state = ViewState({}, dict.fromkeys(stage.states, "f"))
    state.forms = Windows(GlobalWindows().get_window_coder())
    state.work_on(MemoryView(), 0)
    state.enter(b"a")
    return StateRequests(stage, state), stage.states[0][0]


def answered(requests: StateRequests, key: dict[str, Any], **request: Any) -> bytes:
    """Return the data of the answer to a request."""
    answer = requests.answer(fn_pb.StateRequest(state_key=fn_pb.StateKey(**key), **request))
    assert not answer.error
    data: bytes = answer.get.data
    return data


GET, CLEAR = {"get": fn_pb.StateGetRequest()}, {"clear": fn_pb.StateClearRequest()}


def append(data: bytes) -> dict[str, Any]:
    return {"append": fn_pb.StateAppendRequest(data=data)}


@pytest.mark.parametrize("kind", ["map_spec", "multimap_spec"])
def test_multimap_is_kept_by_key_of_the_map(kind: str) -> None:
    requests, transform = serving(kind)
    common = {"transform_id": transform, "user_state_id": "kept", "window": b"", "key": b"\1a"}

    def at(key: bytes) -> dict[str, Any]:
        return {"multimap_user_state": fn_pb.StateKey.MultimapUserState(map_key=key, **common)}

    keys = {"multimap_keys_user_state": fn_pb.StateKey.MultimapKeysUserState(**common)}
    for key, data in ((b"\1x", b"12"), (b"\1y", b""), (b"\1x", b"3")):
        answered(requests, at(key), **append(data))
    assert answered(requests, at(b"\1x"), **GET) == b"123"
    assert answered(requests, at(b"\1y"), **GET) == answered(requests, at(b"\1z"), **GET) == b""
    assert sorted(answered(requests, keys, **GET)) == sorted(b"\1x\1y")
    answered(requests, at(b"\1x"), **CLEAR)
    assert answered(requests, keys, **GET) == b"\1y"
    answered(requests, keys, **CLEAR)
    assert answered(requests, keys, **GET) == b""


@pytest.mark.parametrize("kind", ["map_spec", "multimap_spec"])
def test_multimap_is_read_as_entries(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry is a key and the list of its values; a page has whole entries."""
    requests, transform = serving(kind)
    common = {"transform_id": transform, "user_state_id": "kept", "window": b"", "key": b"\1a"}
    entries = {"multimap_entries_user_state": fn_pb.StateKey.MultimapEntriesUserState(**common)}
    assert answered(requests, entries, **GET) == b""
    for key, data in ((b"\1x", b"\1a\2bc"), (b"\1y", b""), (b"\1x", b"\0")):
        at = {"multimap_user_state": fn_pb.StateKey.MultimapUserState(map_key=key, **common)}
        answered(requests, at, **append(data))
    both = {b"\1x\0\0\0\3\1a\2bc\0", b"\1y\0\0\0\0"}
    assert answered(requests, entries, **GET) in (b"".join(both), b"".join(reversed(list(both))))
    monkeypatch.setattr(staterequests, "_PAGE", 1)
    first = requests.answer(fn_pb.StateRequest(state_key=fn_pb.StateKey(**entries), **GET)).get
    rest = fn_pb.StateGetRequest(continuation_token=first.continuation_token)
    assert {first.data, answered(requests, entries, get=rest)} == both
    refused = requests.answer(fn_pb.StateRequest(state_key=fn_pb.StateKey(**entries), **CLEAR))
    assert "'multimap_entries_user_state' cannot be written" in refused.error


@pytest.mark.parametrize("kind", ["map_spec", "multimap_spec"])
def test_entries_without_known_lengths_are_refused_by_name(kind: str) -> None:
    """A Java worker has a map's coders from the DoFn, and writes no lengths."""
    requests, transform = serving(kind, "java17")
    common = {"transform_id": transform, "user_state_id": "kept", "window": b"", "key": b"\1a"}
    at = {"multimap_user_state": fn_pb.StateKey.MultimapUserState(map_key=b"xy", **common)}
    answered(requests, at, **append(b"any"))
    assert answered(requests, at, **GET) == b"any"
    keys = {"multimap_keys_user_state": fn_pb.StateKey.MultimapKeysUserState(**common)}
    assert answered(requests, keys, **GET) == b"xy"
    entries = {"multimap_entries_user_state": fn_pb.StateKey.MultimapEntriesUserState(**common)}
    answer = requests.answer(fn_pb.StateRequest(state_key=fn_pb.StateKey(**entries), **GET))
    assert "entries of the state 'kept' cannot be read" in answer.error


def test_side_input_is_not_read_with_all_keys_and_values(stage: Stage) -> None:
    """An SDK then looks up one key after the other; no capability offers it."""
    (side,) = stage.side_inputs
    key = fn_pb.StateKey.MultimapKeysValuesSideInput(transform_id=side.transform, side_input_id=side.tag)
    request = fn_pb.StateRequest(state_key=fn_pb.StateKey(multimap_keys_values_side_input=key), **GET)
    assert "'multimap_keys_values_side_input' are not supported" in requests(stage, Sides()).answer(request).error
    offered = Provision().info(runner_pb.Environment(), "localhost:1").runner_capabilities
    assert not any("multimap_keys_values" in each for each in offered)


@pytest.mark.parametrize("sdk", ["go", "python", "java17"])
def test_ordered_list_is_kept_by_sort_key(sdk: str) -> None:
    requests, transform = serving("ordered_list_spec", sdk)
    common = {"transform_id": transform, "user_state_id": "kept", "window": b"", "key": b"\1a"}

    def between(start: int, end: int) -> dict[str, Any]:
        at = fn_pb.OrderedListRange(start=start, end=end)
        return {"ordered_list_user_state": fn_pb.StateKey.OrderedListUserState(range=at, **common)}

    early = VarIntCoder().encode(-3)
    all_times = between(-(1 << 63), (1 << 63) - 1)
    # Workers of Python and Java prefix elements of any coder by their length, others those of an unknown one.
    answered(requests, all_times, **append(b"\7\1x" + early + b"\1e" + b"\2\0"))
    listed = (early + b"\1e", b"\2\0", b"\7\1x")
    assert answered(requests, all_times, **GET) == b"".join(listed)
    assert answered(requests, between(-3, 7), **GET) == b"".join(listed[:2])
    answered(requests, between(0, 3), **CLEAR)
    assert answered(requests, all_times, **GET) == listed[0] + listed[2]
    for key in (-(1 << 63), 1 << 62):
        entry = VarIntCoder().encode(key) + b"\1f"
        answered(requests, all_times, **append(entry))
        assert answered(requests, between(key, key + 1), **GET) == entry
