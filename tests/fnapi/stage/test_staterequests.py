"""Side inputs for a worker: pages, windows, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.transforms.window import FixedWindows, IntervalWindow

from arcbeam.fnapi.stage import staterequests
from arcbeam.fnapi.stage.staterequests import StateRequests
from arcbeam.harness.streaming.state import ViewState
from arcbeam.model.plan import Stage
from arcbeam.translate import translate
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
    return next(each for each in translate(proto, bounded=False).stages if each.side_inputs)


def requests(stage: Stage, sides: Any) -> StateRequests:
    state = ViewState(stage.side_channels, {})
    state.read_sides(sides)
    return StateRequests(stage, state)


def asked(stage: Stage, token: bytes = b"") -> Any:
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
        answer = serving.answer(asked(stage, token))
        assert (answer.id, answer.error) == ("7", "")
        pages.append(answer.get.data)
        token = answer.get.continuation_token
        if not token:
            break
    assert pages == [b"abcd", b"efgh", b"i"]
    assert not serving._pages


def test_window_is_encoded_as_it_is_stored(stage: Stage) -> None:
    sides = Sides()
    assert requests(stage, sides).answer(asked(stage)).get.data == b""
    assert [len(window) for window in sides.windows] == [18], "microseconds, nine bytes for each end"


def test_what_cannot_be_answered_is_an_error(stage: Stage) -> None:
    serving = requests(stage, Sides())
    unknown = asked(stage)
    unknown.state_key.iterable_side_input.side_input_id = "other"
    assert "'other' is not a side input" in serving.answer(unknown).error
    list_ = fn_pb.StateRequest(id="8", clear=fn_pb.StateClearRequest())
    list_.state_key.ordered_list_user_state.window = IntervalWindowCoder().encode(WINDOW)
    assert "'ordered_list_user_state' cannot be written" in serving.answer(list_).error
    written = asked(stage)
    written.clear.SetInParent()
    assert "cannot be written" in serving.answer(written).error
    assert "KeyError" in serving.answer(asked(stage, b"99")).error


def test_pages_end_with_their_bundle(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staterequests, "_PAGE", 1)
    serving = requests(stage, Sides(b"a", b"b"))
    token = serving.answer(asked(stage)).get.continuation_token
    assert token
    serving.begin()
    assert serving.answer(asked(stage, token)).error
