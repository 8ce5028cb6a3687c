"""Random stateful streaming pipelines, divided randomly, compared with their bounded run.

The pipeline and the SDK are used unchanged, without Spark. The elements determine what a DoFn does, so a seed
determines a pipeline.
It reads and changes all types of state, sets and clears timers of both domains, and sets them again in their callbacks.

The results must not depend on the division. Therefore all elements of a window arrive before the watermark enters it,
and the clock stands still until all its event-time timers have fired. This is a key's order in the bounded run.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import Coder, PickleCoder, VarIntCoder
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
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.task.bundles import BundleResult
from arcbeam.engine.task.stagerun import StageRun
from arcbeam.harness.streaming.runner import StreamingRunner
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from simulator.playing.buffered import Buffered
from tests.harness.batch.statefulplans import NOW, VirtualClock, require_time_sorted
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard

SECOND = 1_000_000
KEYS = (1, 1.0, True, "a", ("b", 2), b"\0\xff")
"""The first three are equal, but three different keys."""
KINDS = ("bag", "value", "sum", "set", "list")
TIMERS = ("event", "clock")
APART = 1009
"""Minimum distance of timers, in units. Offsets of timers that callbacks set are smaller."""
unit = 1
"""Microseconds. All times are multiples of it."""
in_worker = False
"""Whether an SDK worker runs the pipeline."""


class Halves(window.NonMergingWindowFn):  # type: ignore[misc]  # Beam is untyped
    """Windows of a user-defined type."""

    def assign(self, context: Any) -> list[Any]:
        return [Half(context.timestamp.micros // (15 * SECOND))]

    def get_window_coder(self) -> Any:
        return HalfCoder()


class Half(window.BoundedWindow):  # type: ignore[misc]
    def __init__(self, number: int) -> None:
        super().__init__(at((number + 1) * 15 * SECOND))
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Half) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"Half({self.number})"


class HalfCoder(Coder):  # type: ignore[misc]
    def encode(self, value: Half) -> bytes:
        return bytes((value.number,))

    def decode(self, encoded: bytes) -> Half:
        return Half(encoded[0])

    def is_deterministic(self) -> bool:
        return True


def at(micros: int) -> SdkTimestamp:
    return SdkTimestamp(micros=micros)


def _end(window: Any) -> int:
    """Return the last moment of a window; for the global one, a moment comparable to the others."""
    return min(int(window.max_timestamp().micros) // unit * unit, 40 * SECOND)


def _clock(end: int) -> int:
    """Return the earliest time of a window's processing-time timers: before those of a window that ends later."""
    return NOW * SECOND + 1000 * end


class Interpreter(beam.DoFn):
    """Executes the elements' orders: (what, where, argument)."""

    BAG = BagStateSpec("bag", PickleCoder())
    # Its coder does not accept None: a cleared value must not be written as None.
    VALUE = ReadModifyWriteStateSpec("value", VarIntCoder())
    SUM = CombiningValueStateSpec("sum", PickleCoder(), sum)
    SET = SetStateSpec("set", VarIntCoder())
    LIST = OrderedListStateSpec("list", PickleCoder())
    EVENT = TimerSpec("event", TimeDomain.WATERMARK)
    CLOCK = TimerSpec("clock", TimeDomain.REAL_TIME)

    def process(
        self,
        element: Any,
        window: Any = beam.DoFn.WindowParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        value: Any = beam.DoFn.StateParam(VALUE),
        sum: Any = beam.DoFn.StateParam(SUM),
        set: Any = beam.DoFn.StateParam(SET),
        list: Any = beam.DoFn.StateParam(LIST),
        event: Any = beam.DoFn.TimerParam(EVENT),
        clock: Any = beam.DoFn.TimerParam(CLOCK),
    ) -> Iterator[Any]:
        key, orders = element
        states = {"bag": bag, "value": value, "sum": sum, "set": set, "list": list}
        for order in orders:
            yield from _obey(repr(key), order, window, states, {"event": event, "clock": clock})

    @on_timer(EVENT)
    def on_event(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        window: Any = beam.DoFn.WindowParam,
        time: Any = beam.DoFn.TimestampParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        value: Any = beam.DoFn.StateParam(VALUE),
        sum: Any = beam.DoFn.StateParam(SUM),
        set: Any = beam.DoFn.StateParam(SET),
        list: Any = beam.DoFn.StateParam(LIST),
        event: Any = beam.DoFn.TimerParam(EVENT),
        clock: Any = beam.DoFn.TimerParam(CLOCK),
    ) -> Iterator[Any]:
        states = {"bag": bag, "value": value, "sum": sum, "set": set, "list": list}
        yield repr(key), "event", tag, time.micros
        yield from _fired(repr(key), tag, time.micros, window, states, {"event": event, "clock": clock})

    @on_timer(CLOCK)
    def on_clock(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        window: Any = beam.DoFn.WindowParam,
        time: Any = beam.DoFn.TimestampParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        value: Any = beam.DoFn.StateParam(VALUE),
        sum: Any = beam.DoFn.StateParam(SUM),
        set: Any = beam.DoFn.StateParam(SET),
        list: Any = beam.DoFn.StateParam(LIST),
    ) -> Iterator[Any]:
        states = {"bag": bag, "value": value, "sum": sum, "set": set, "list": list}
        yield repr(key), "clock", tag, time.micros
        yield from _fired(repr(key), tag, time.micros, window, states, {})


def _fired(key: str, tag: str, micros: int, window: Any, states: Any, timers: Any) -> Iterator[Any]:
    """Read all, change something, and set the timer again as often as its tag says; maybe change another timer."""
    for what in KINDS:
        yield from _obey(key, ("read", what, 0), window, states, timers)
    changed = KINDS[micros // unit % len(KINDS)]
    for act in (("add",), ("clear", "add"), ("add", "read", "clear", "read"))[micros // unit % 3]:
        yield from _obey(key, (act, changed, micros // unit % 7), window, states, timers)
    number, _, again = tag.partition("+")
    other = str((int(number) + 1) % 4)
    left = _end(window) - micros - SECOND // 2 - 13 * unit
    if "event" in timers and left > 0:
        # It may be pending, for an earlier or a later time.
        for value in ((None,), (left,), (left, None), (None, left - 7 * unit, left), ())[micros // unit % 5]:
            yield from _obey(key, ("event", other, value), window, states, timers)
    if again and "event" in timers:
        later = f"{number}{again[:-1] and '+'}{again[:-1]}"
        left = _end(window) - micros - SECOND
        if left > 0:
            yield from _obey(key, ("event", later, left), window, states, timers)


def _obey(key: str, order: tuple[str, str, Any], window: Any, states: Any, timers: Any) -> Iterator[Any]:
    what, where, value = order
    if what in timers:
        if value is None:
            timers[what].clear(dynamic_timer_tag=where)
        else:
            end = _end(window)
            timers[what].set(at(end - value if what == "event" else _clock(end) + value), dynamic_timer_tag=where)
        return
    state = states[where]
    match what, where:
        case "read", "list":
            yield key, where, [(time.micros, value) for time, value in state.read()]
        case "read", "bag":
            # The current elements, although they are used much later; but not after a bundle in an SDK worker.
            yield key, where, list(state.read()) if in_worker else state.read()
        case "read", "set":
            yield key, where, sorted(state.read())
        case "read", _:
            yield key, where, state.read()
        case "clear", _:
            state.clear()
        case "clear range", _:
            state.clear_range(at(value * unit), at((value + 3) * unit))
        case "add", "value":
            state.write(value)
        case "add", "list":
            state.add((at(value * unit), str(value)))
        case _:
            state.add(value)


class Pipeline:
    """A random pipeline.

    Attributes:
        elements: (key, orders, time in seconds), in order of arrival.
        windowing: windowing of the input.
        settings: settings of the run.
        clocks: whether it has processing-time timers.

    Args:
        seed: seed of all random choices.
        in_order: whether its input must be sorted by time.
        fn: what executes its orders.
    """

    def __init__(self, seed: int, in_order: bool = False, fn: type[Interpreter] = Interpreter) -> None:
        self.chance, self._fn = random.Random(seed), fn
        self._in_order = in_order
        chance = self.chance
        self.windowing = chance.choice(
            [window.GlobalWindows(), window.FixedWindows(10), window.SlidingWindows(10, 5), Halves()]
        )
        keys = chance.sample(KEYS, chance.randint(1, len(KEYS)))
        # Half of the pipelines use the SDK's operation instead of ours.
        self.settings = {"value_chains": chance.random() < 0.5}
        self.clocks = chance.random() < 0.6
        self._timers = 0
        self.elements = [self._element(chance.choice(keys)) for _ in range(chance.choice([3, 10, 30]))]

    def _element(self, key: Any) -> tuple[Any, Any, float]:
        chance = self.chance
        orders = [self._order() for _ in range(chance.randint(1, 5))]
        # Most mistakes concern repeated operations on the same object.
        for order in orders[: chance.choice([0, 1, 2])]:
            orders += self._again(order)
        return key, orders, chance.randrange(30)

    def _again(self, order: tuple[str, str, Any]) -> list[tuple[str, str, Any]]:
        """Return more orders for the same timer or state, for the same element."""
        chance, (what, where, _) = self.chance, order
        if what in ("event", "clock"):
            return [(what, where, chance.choice([self._moment(), self._moment(), None])) for _ in range(3)]
        return [(chance.choice(["read", "clear", "add", "add"]), where, chance.randrange(10)) for _ in range(3)]

    def _moment(self) -> int:
        # Timers of a window have different times, because the order of equal ones is undefined.
        self._timers += 1
        return self.chance.randrange(5) * SECOND + self._timers * APART * unit

    def _order(self) -> tuple[str, str, Any]:
        chance = self.chance
        moment = self._moment()
        tag = str(chance.randrange(4))
        # With sorted input, timers fire between elements in a streaming job only. So there are none.
        match chance.choice([0, 1, 2, 3, 8, 9]) if self._in_order else chance.randrange(10):
            case 0 | 1:
                return "read", chance.choice(KINDS), 0
            case 2:
                return "clear", chance.choice(KINDS), 0
            case 3:
                return "clear range", "list", chance.randrange(10)
            case 4 | 5:
                return "event", tag + chance.choice(["", "+x", "+xx"]), moment
            case 6 if self.clocks:
                return "clock", tag, moment
            case 7:
                return chance.choice(["event", "clock"] if self.clocks else ["event"]), tag, None
            case _:
                return "add", chance.choice(KINDS), chance.randrange(10)

    def build(self, p: Driven) -> None:
        """Build the pipeline."""
        arrived = p | beam.Create(self.elements, reshuffle=False)
        timed = arrived | beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[Any, Any])
        keyed = timed | beam.WindowInto(self.windowing)
        keyed | beam.ParDo(self._fn()) | Collect()


class Cutting:
    """Divides randomly.

    Args:
        seed: seed of the random choices.
        honest: how far the watermark may advance before an element has arrived.
        jumps: whether the watermark may pass windows in the micro-batch with their last elements.
    """

    def __init__(self, seed: int, honest: Callable[[WindowedElement], Timestamp], jumps: bool) -> None:
        self.chance = random.Random(seed)
        self._honest, self._jumps = honest, jumps

    def __call__(self, shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        chance = self.chance
        self._ends = sorted({window.max_timestamp for _, (_, _, windows, _) in arrived for window in windows})
        self._watermark, self._now = MIN_TIMESTAMP, Timestamp(NOW * SECOND)
        while arrived:
            size = chance.choice([1, 2, 5, len(arrived)])
            now, arrived = arrived[:size], arrived[size:]
            # The watermark does not enter a window before all of its elements have arrived.
            honest = min((self._honest(one) for _, one in arrived), default=MAX_TIMESTAMP)
            if self._jumps:
                self._watermark = max(self._watermark, honest)
            self._settle(shard, [(key, [one]) for key, one in now])
            if not self._jumps and chance.random() < 0.5:
                self._advance(shard, honest)
        self._advance(shard, MAX_TIMESTAMP)

    def _advance(self, shard: Shard, to: Timestamp) -> None:
        """Advance the watermark; before it passes a window, all timers of the window fire."""
        self._ends = [end for end in self._ends if end >= self._watermark]
        for end in [end for end in self._ends if end < to]:
            self._ends.remove(end)
            for _ in range(self.chance.randrange(3)):
                begin = max(self._watermark, -SECOND)
                behind = end if end < END_OF_GLOBAL_WINDOW else max(begin, 50 * SECOND)
                self._watermark = Timestamp(self.chance.randint(begin, behind))
                self._settle(shard)
            self._watermark = end
            self._settle(shard)
            self._now = Timestamp(_clock(min(end, 40 * SECOND)) + 10 * SECOND)
            self._settle(shard)
        if to > self._watermark:
            self._watermark = to
            self._settle(shard)

    def _settle(self, shard: Shard, arrived: Any = ()) -> None:
        chance = self.chance
        looks, runs = chance.choice([1, 3, 1000]), chance.choice([1, 1, 1, 2])
        shard.settle(MicroBatch(arrived, self._watermark, self._now, looks, runs, chance.random() < 0.05))


def _begin(one: WindowedElement) -> Timestamp:
    """Return a time before which an element's windows have no timers."""
    return Timestamp(min(min(window.max_timestamp, 40 * SECOND) for window in one[2]) - 10 * SECOND)


def outputs_of(p: Driven) -> dict[tuple[str, Any], list[Any]]:
    """Return the outputs of each key in each window, in order."""
    found: dict[tuple[str, Any], list[Any]] = defaultdict(list)
    for (key, *rest), time, in_window in p.windowed():
        rest = [list(part) if isinstance(part, Iterable) and not isinstance(part, str) else part for part in rest]
        found[key, in_window].append((rest, time.micros))
    return dict(found)


def bounded(pipeline: Pipeline, edit: Any = lambda proto: None) -> Driven:
    """Run bounded."""
    with Driven(shards=1, prepare=VirtualClock().install, edit=edit, **pipeline.settings) as p:
        pipeline.build(p)
    return p


def streaming(pipeline: Pipeline, seed: int, edit: Any = lambda proto: None, honest: Any = None) -> InMicroBatches:
    """Run the same in streaming."""
    with InMicroBatches(Cutting(seed, honest or _begin, not pipeline.clocks), edit=edit, **pipeline.settings) as p:
        pipeline.build(p)
    return p


SEEDS = range(25)


@pytest.mark.contract("ENG-08", "ENG-12")
@pytest.mark.parametrize("seed", SEEDS)
def test_stateful_pipeline_equals_bounded_run(seed: int) -> None:
    pipeline = Pipeline(seed)
    there, here = bounded(pipeline), streaming(pipeline, seed)
    assert outputs_of(here) == outputs_of(there)
    assert here.left == []
    assert here.drops == []


def test_random_pipelines_repeat_operations() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        for _, orders, _ in Pipeline(seed).elements:
            for n, (what, where, value) in enumerate(orders):
                before = [
                    order for order in orders[:n] if order[1] == where and (order[0] in TIMERS) == (what in TIMERS)
                ]
                if before:
                    now, then = (_kind(each) for each in ((what, where, value), before[-1]))
                    seen[f"{then}, {now}"] += 1
    wanted = [f"{then}, {now}" for then in ("add", "clear", "read") for now in ("add", "clear", "read")]
    wanted += [f"{then}, {now}" for then in ("set", "unset") for now in ("set", "unset")]
    assert {each: seen[each] for each in wanted if seen[each] < 10} == {}


def _kind(order: tuple[str, str, Any]) -> str:
    what, _, value = order
    return what if what not in TIMERS else "unset" if value is None else "set"


@pytest.mark.contract("ENG-13")
@pytest.mark.parametrize("seed", range(8))
def test_time_sorted_input_is_sorted(seed: int) -> None:
    pipeline = Pipeline(seed, in_order=True)
    there = bounded(pipeline, require_time_sorted)
    here = streaming(pipeline, seed, require_time_sorted, lambda arrived: arrived[1])
    assert outputs_of(here) == outputs_of(there)
    assert here.left == []
    assert here.drops == []


def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a mistake: state is written when the SDK would write it, after all firings and expirations."""
    made, finished = StreamingRunner.__init__, StreamingRunner.finish

    def make(self: Any, stage: Any, view: Any, *around: Any) -> None:
        self.writes = Buffered(view)
        made(self, stage, self.writes, *around)

    def finish(self: Any) -> BundleResult:
        closed = finished(self)
        self.writes.commit()
        return closed

    monkeypatch.setattr(StreamingRunner, "__init__", make)
    monkeypatch.setattr(StreamingRunner, "finish", finish)


def test_state_committed_at_bundle_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _late(monkeypatch)
    with pytest.raises(ValueError, match=r"user code of .* in shard \d"):
        streaming(Pipeline(0), 0)


def test_state_committed_at_bundle_end_is_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without the engine's own check: the comparison finds the mistake."""
    _late(monkeypatch)
    monkeypatch.setattr(StageRun, "_finish", _unchecked)
    assert any(streaming(Pipeline(seed), seed).left for seed in (11, 17))


def _unchecked(self: StageRun) -> BundleResult:
    place = self._place
    closed = place.runner.finish()
    place.record(closed.call)
    return closed
