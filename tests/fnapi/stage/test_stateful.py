"""State and timers in SDK workers: the same results as embedded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder, VarIntCoder
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.transforms import window
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    OrderedListStateSpec,
    ReadModifyWriteStateSpec,
    SetStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.utils.timestamp import Timestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.fnapi.stage.inworkers import InWorkers, worker_service
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.harness.streaming.test_stable import _stable

WINDOWS = [window.GlobalWindows(), window.FixedWindows(10), window.SlidingWindows(10, 5)]


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with worker_service() as address:
        yield address


class Interpreter(beam.DoFn):
    """Obeys its elements: (what, argument)."""

    BAG = BagStateSpec("bag", PickleCoder())
    VALUE = ReadModifyWriteStateSpec("value", VarIntCoder())
    SUM = CombiningValueStateSpec("sum", PickleCoder(), sum)
    SET = SetStateSpec("set", VarIntCoder())
    EVENT = TimerSpec("event", TimeDomain.WATERMARK)
    CLOCK = TimerSpec("clock", TimeDomain.REAL_TIME)

    def process(
        self,
        element: Any,
        time: Any = beam.DoFn.TimestampParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        value: Any = beam.DoFn.StateParam(VALUE),
        sum: Any = beam.DoFn.StateParam(SUM),
        set: Any = beam.DoFn.StateParam(SET),
        event: Any = beam.DoFn.TimerParam(EVENT),
        clock: Any = beam.DoFn.TimerParam(CLOCK),
    ) -> Iterator[Any]:
        key, (what, n) = element
        match what:
            case "add":
                bag.add((n, str(n)))
                value.write(n)
                sum.add(n)
                set.add(n)
            case "clear":
                (bag, value, sum, set)[n % 4].clear()
            case "event":
                event.set(time + 1 + n % 7, dynamic_timer_tag=str(n % 3))
            case "forget":
                event.clear(dynamic_timer_tag=str(n % 3))
            case "clock":
                clock.set(Timestamp(n))
        yield key, what, n, sorted(bag.read()), value.read(), sum.read(), sorted(set.read())

    @on_timer(EVENT)
    def on_event(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        time: Any = beam.DoFn.TimestampParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        event: Any = beam.DoFn.TimerParam(EVENT),
    ) -> Iterator[Any]:
        yield key, "event", tag, sorted(bag.read())
        bag.add((int(time), tag))
        if tag == "1":
            event.set(time + 1, dynamic_timer_tag="again")

    @on_timer(CLOCK)
    def on_clock(self, key: Any = beam.DoFn.KeyParam, bag: Any = beam.DoFn.StateParam(BAG)) -> Iterator[Any]:
        yield key, "clock", len(list(bag.read()))
        bag.clear()


def _build(p: Any, seed: int) -> None:
    chance = random.Random(seed)
    windows = WINDOWS[seed % len(WINDOWS)]
    whats = ["add", "add", "add", "clear", "event", "event", "forget", *(["clock"] if seed % 2 else [])]
    elements = [
        ((chance.choice([1, "a", ("b", None)])), (chance.choice(whats), chance.randrange(20)), chance.randrange(25))
        for _ in range(chance.choice([3, 30]))
    ]
    arrived = p | beam.Create(elements, reshuffle=False)
    timed = arrived | beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[Any, Any])
    _ = timed | beam.WindowInto(windows) | beam.ParDo(Interpreter()) | Collect()


def _found(p: Any) -> list[str]:
    return sorted(repr((value, time.micros // 1000, at)) for value, time, at in p.windowed())


@pytest.mark.contract("API-03", "ENG-12")
@pytest.mark.parametrize("seed", range(6))
def test_stateful_pipeline_equals_embedded_python(service: str, seed: int) -> None:
    with InMicroBatches(None) as expected:
        _build(expected, seed)
    with InWorkers(service) as p:
        _build(p, seed)
    assert _found(p) == _found(expected)
    assert p.left == expected.left


class Ending(beam.DoFn):
    """Puts out what a key has had, with side inputs, at the end of its window."""

    BAG = BagStateSpec("bag", VarIntCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        more: list[tuple[int, int]],
        of: Any = beam.DoFn.WindowParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        bag.add(element[1] + sum(n for _, n in more))
        end.set(of.end)

    @on_timer(END)
    def on_end(self, key: Any = beam.DoFn.KeyParam, bag: Any = beam.DoFn.StateParam(BAG)) -> Iterator[Any]:
        yield key, sorted(bag.read())


def _with_timers_of_side_input(proto: Any) -> None:
    """Declare the timers with keys and windows of a side input, as Python does in some processes."""
    components = proto.components
    for transform in components.transforms.values():
        if transform.spec.urn != common_urns.primitives.PAR_DO.urn:
            continue
        payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
        if not payload.timer_family_specs:
            continue
        side = components.pcollections[next(transform.inputs[tag] for tag in payload.side_inputs)]
        keys = components.coders[side.coder_id].component_coder_ids[0]
        windows = components.windowing_strategies[side.windowing_strategy_id].window_coder_id
        for spec in payload.timer_family_specs.values():
            components.coders[spec.timer_family_coder_id].component_coder_ids[:] = [keys, windows]


def test_timers_have_keys_and_windows_of_the_main_input(service: str) -> None:
    with InWorkers(service, change=_with_timers_of_side_input) as p:
        side = p | "Side" >> beam.Create([(1, 1), (2, 2)])
        pairs = p | beam.Create([("a", 1), ("a", 2)]).with_output_types(tuple[str, int])
        ended = pairs | beam.WindowInto(window.FixedWindows(5)) | beam.ParDo(Ending(), beam.pvalue.AsList(side))
        _ = ended | Collect()
    assert p.values() == [("a", [4, 5])]


class Ordered(beam.DoFn):
    """Keeps its numbers at times that it derives from them."""

    LIST = OrderedListStateSpec("times", PickleCoder())
    NUMBERS = OrderedListStateSpec("numbers", VarIntCoder())

    def process(
        self,
        element: Any,
        times: Any = beam.DoFn.StateParam(LIST),
        numbers: Any = beam.DoFn.StateParam(NUMBERS),
    ) -> Any:
        _, n = element
        times.add((Timestamp(seconds=n % 7 - 2), (n, str(n))))
        yield list(numbers.read())
        if n % 3 == 2:
            numbers.clear()
        numbers.add((Timestamp(seconds=n % 5), n))
        if n % 5 == 4:
            times.clear_range(Timestamp(seconds=-1), Timestamp(seconds=1))
        yield (
            [value for _, value in times.read_range(Timestamp(seconds=-2), Timestamp(seconds=4))],
            len(list(times.read())),
        )


def test_ordered_list_equals_embedded_python(service: str) -> None:
    def build(p: Any) -> None:
        pairs = p | beam.Create([("kl"[n % 2], n) for n in range(40)], reshuffle=False)
        _ = pairs | beam.ParDo(Ordered()) | Collect()

    with InMicroBatches(None) as expected:
        build(expected)
    with InWorkers(service) as p:
        build(p)
    assert _found(p) == _found(expected)


@pytest.mark.contract("API-03", "ENG-13")
def test_stable_input_waits_for_its_commit(service: str) -> None:
    waited: list[bool] = []

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        report = shard.run(MicroBatch([(key, [one]) for key, one in arrived], MIN_TIMESTAMP, runs=2))
        if shard.of.stable:
            waited.append(report.uncommitted)
        shard.settle(MicroBatch((), MAX_TIMESTAMP))

    with InWorkers(service, cut, _stable) as p:
        numbers = p | beam.Create([1, 2, 3], reshuffle=False)
        _ = numbers | "Stable" >> beam.Map(lambda n: n) | Collect()
    assert sorted(p.values()) == [1, 2, 3]
    assert waited == [True]
