"""How a worker may read side inputs: a scripted worker does it on command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.transforms.window import FixedWindows, IntervalWindow

from arcbeam.fnapi.stage import staterequests
from arcbeam.harness.encoding import windowcoder
from arcbeam.model import windows
from arcbeam.model.plan import Stage
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import NO_PANE
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.scripted import ScriptedWorker
from tests.fnapi.stage.inworkers import external
from tests.fnapi.stage.traps.test_bundle_traps import SINK
from tests.fnapi.stage.traps.world import World

pytestmark = pytest.mark.contract("API-03")

WINDOW = IntervalWindow(0, 10)
THERE, HERE = IntervalWindowCoder().encode(WINDOW), windowcoder.IntervalWindowCoder().encode(WINDOW)
ELEMENT = b"", MIN_TIMESTAMP, (windows.IntervalWindow(Timestamp(0), Timestamp(10_000_000)),), NO_PANE
_VALUES = {b"\1x": (b"\1", b"\2\3", b"\4"), b"\1y": (b"\5",)}


class Sides:
    """Two side inputs, with contents in one window. Those of the multimap are by encoded key."""

    def __init__(self, multimap: int) -> None:
        self._multimap = multimap

    def chunks(self, channel: int, window: bytes) -> Iterator[bytes]:
        assert channel != self._multimap
        return iter((b"\7", b"\10") if window == HERE else ())

    def values(self, channel: int, window: bytes, key: bytes) -> Iterator[bytes]:
        assert channel == self._multimap
        return iter(_VALUES.get(key, ()) if window == HERE else ())

    def keys(self, channel: int, window: bytes) -> Iterator[bytes]:
        assert channel == self._multimap
        return iter(_VALUES if window == HERE else ())


@pytest.fixture(scope="module")
def of() -> Stage:
    p = beam.Pipeline()
    numbers = p | "Side" >> beam.Create([1]) | beam.WindowInto(FixedWindows(10))
    pairs = numbers | beam.Map(lambda n: (str(n), n)).with_output_types(tuple[str, int])
    some, table = beam.pvalue.AsIter(numbers), beam.pvalue.AsMultiMap(pairs)
    main = p | beam.Impulse() | "In windows" >> beam.WindowInto(FixedWindows(10))
    _ = main | "Look" >> beam.Map(lambda x, y, z: x, some, table) | beam.Reshuffle() | beam.Map(print)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
    return next(stage for stage in translate(ParsedPipeline(proto), bounded=False).stages if stage.side_inputs)


Ask = Callable[..., Any]
"""Asks for a side input, by the kind of key; returns the answer."""


@pytest.fixture
def asking(of: Stage, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Ask], None]], None]:
    """Return what runs a bundle in which a function asks for side inputs."""
    iterable, multimap = sorted(of.side_inputs, key=lambda side: side.tag)

    def run(script: Callable[[Ask], None]) -> None:
        def in_bundle(worker: ScriptedWorker, id: str) -> None:
            number = iter(range(1000))

            def ask(kind: str, token: bytes = b"", **more: Any) -> Any:
                side = iterable if kind == "iterable_side_input" else multimap
                key = fn_pb.StateKey()
                part = getattr(key, kind)
                part.transform_id, part.side_input_id, part.window = side.transform, side.tag, THERE
                for name, value in more.items():
                    setattr(part, name, value)
                get = fn_pb.StateGetRequest(continuation_token=token)
                return worker.state(id=f"{next(number)}", instruction_id=id, state_key=key, get=get)()

            script(ask)
            worker.put_out(id, SINK, b"", last=True)
            worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

        with World(of, monkeypatch, Sides(multimap.channel)) as world:
            world.plays(in_bundle, lambda: (world.runner.process(b"", [ELEMENT]), world.runner.finish()))

    return run


def test_each_access_pattern_is_served(asking: Any) -> None:
    def script(ask: Ask) -> None:
        assert ask("iterable_side_input").get.data == b"\7\10"
        assert ask("multimap_side_input", key=b"\1x").get.data == b"\1\2\3\4"
        assert ask("multimap_side_input", key=b"\1y").get.data == b"\5"
        assert ask("multimap_side_input", key=b"\1z").get.data == b""
        assert ask("multimap_keys_side_input").get.data == b"\1x\1y"

    asking(script)


def test_window_without_contents_is_empty(asking: Any) -> None:
    other = IntervalWindowCoder().encode(IntervalWindow(10, 20))

    def script(ask: Ask) -> None:
        for kind in ("iterable_side_input", "multimap_keys_side_input", "multimap_side_input"):
            answer = ask(kind, window=other)
            assert (answer.error, answer.get.data) == ("", b"")

    asking(script)


def test_side_inputs_are_read_in_pages(asking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staterequests, "_PAGE", 2)

    def script(ask: Ask) -> None:
        first = ask("multimap_side_input", key=b"\1x").get
        assert first.data == b"\1\2\3", "a chunk is not divided"
        # Another one is read between its pages, and a page twice.
        keys = ask("multimap_keys_side_input").get
        assert keys.data == b"\1x"
        for _ in range(2):
            rest = ask("multimap_side_input", first.continuation_token, key=b"\1x").get
            assert (rest.data, rest.continuation_token) == (b"\4", b"")
        assert ask("multimap_keys_side_input", keys.continuation_token).get.data == b"\1y"

    asking(script)


def test_worker_that_is_refused_all_entries_asks_key_by_key(asking: Any) -> None:
    def script(ask: Ask) -> None:
        assert "'multimap_keys_values_side_input' are not supported" in ask("multimap_keys_values_side_input").error
        keys = ask("multimap_keys_side_input").get.data
        assert [ask("multimap_side_input", key=each).get.data for each in (keys[:2], keys[2:])] == [
            b"\1\2\3\4",
            b"\5",
        ]

    asking(script)


def test_each_side_input_has_a_cache_token_of_its_attempt(of: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files may have other contents in the next attempt."""
    seen: list[dict[str, bytes]] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        tokens = worker.last_request.process_bundle.cache_tokens
        seen.append({each.side_input.side_input_id: each.token for each in tokens if each.HasField("side_input")})
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    for _ in range(2):
        with World(of, monkeypatch, Sides(0)) as world:
            for _ in range(2):
                world.plays(script, lambda world=world: (world.runner.process(b"", [ELEMENT]), world.runner.finish()))
    first, same, second, _ = seen
    assert first == same
    assert first.keys() == second.keys() == {side.tag for side in of.side_inputs}
    assert not set(first.values()) & set(second.values())
