"""Watermarks, holds, timers and blocked elements together: no timer fires early, and no output is late."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from arcbeam.engine.state.blocked import BlockedElement, BlockedElements, SideInputWindow
from arcbeam.engine.state.keyqueue import Element, KeyQueue, SortedInput
from arcbeam.engine.state.timers import Fired, Timers
from arcbeam.engine.watermarks.clocks import Clock, Local, OutputTime, Port
from arcbeam.engine.watermarks.holdreasons import Complete
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import StageFlow, Watermarks, WatermarkTimes
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.testing.views import MemoryView

_FAMILIES = {"event": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING}
_READ, _OUT = Port("read", "main"), Port("sum", "main")
_STAGES = (StageFlow("read", (), ("main",)), StageFlow("sum", (_READ,), ("main",), 2))
_LATENESS = 2
_KEYS = st.sampled_from([b"a", b"b"])
_SHARDS = st.integers(0, 1)


class _Shard:
    def __init__(self, view: MemoryView, head: Timestamp = MIN_TIMESTAMP) -> None:
        self.view = view
        self.clock = Clock(view, 1, ("main",), head)
        self.timers = Timers(view, 1, _FAMILIES)
        self.ordered = SortedInput(view, 1, Duration(_LATENESS))
        self.agenda = KeyQueue(self.timers, self.ordered)
        self.blocked_elements = BlockedElements(view, 1)


class TimeMachine(RuleBasedStateMachine):
    """A source with a correct watermark, and a stage with state in two shards; micro-batches, restarts, failures."""

    def __init__(self) -> None:
        super().__init__()
        self.upstream = Timestamp(0)
        self.now = Timestamp(1000)
        self.shards = [_Shard(MemoryView()), _Shard(MemoryView())]
        self.marks = Watermarks(_STAGES)
        self.reported = WatermarkTimes()
        self.blocked: list[tuple[int, SideInputWindow, Timestamp]] = []
        self.timers_set = self.timers_fired = 0

    @rule(
        shard=_SHARDS,
        elements=st.lists(
            st.tuples(_KEYS, st.integers(0, 5), st.sampled_from(["now", "blocked", "in order"])), min_size=1, max_size=5
        ),
    )
    def elements_come(self, shard: int, elements: list[tuple[bytes, int, str]]) -> None:
        place = self.shards[shard]
        for key, ahead, how in elements:
            element = Element(key, b"w", Timestamp(self.upstream + ahead), b"")
            if how == "blocked":
                lot = SideInputWindow("rates", b"w%d" % (ahead % 2))
                place.blocked_elements.add(lot, BlockedElement(element.time, key))
                self.blocked.append((shard, lot, element.time))
            elif how == "in order":
                assert place.ordered.add(element, place.clock.input) is None
            else:
                self.process(place, element)

    @rule(shard=_SHARDS, number=st.integers(0, 1))
    def a_side_input_is_ready(self, shard: int, number: int) -> None:
        lot = SideInputWindow("rates", b"w%d" % number)
        for element in self.shards[shard].blocked_elements.take(lot):
            self.blocked.remove((shard, lot, element.time))
            self.process(self.shards[shard], Element(element.value, b"w", element.time, b""))

    @rule(by=st.integers(0, 8), passing=st.integers(0, 20), budget=st.integers(0, 6) | st.just(1000))
    def a_micro_batch(self, by: int, passing: int, budget: int) -> None:
        self.upstream = min(Timestamp(self.upstream + by), MAX_TIMESTAMP)
        self.now = Timestamp(self.now + passing)
        self.marks.report(
            "read", 0, Local(None, {"main": OutputTime(None, Hold(self.upstream, HolderKind.STATE, "read"))})
        )
        for number, shard in enumerate(self.shards):
            watermark = shard.clock.advance(self.upstream)
            last: dict[bytes, Timestamp] = {}
            for _ in range(budget):
                next = shard.agenda.next(watermark, self.now)
                match next:
                    case Element():
                        assert next.time >= last.get(next.key, next.time)
                        last[next.key] = next.time
                        self.process(shard, next)
                    case Fired():
                        self.fire(number, shard, next, watermark)
                        if next.family == "event":
                            last[next.key] = max(next.fire_at, last.get(next.key, next.fire_at))
                    case None:
                        break
            self.marks.report("sum", number, shard.clock.local())
        reported = self.marks.advance()
        reported.check_after(self.reported)
        self.reported = reported

    @rule()
    def a_restart(self) -> None:
        head = self.reported.upstream_at(_STAGES[1])
        self.shards = [_Shard(MemoryView(shard.view.snapshot()), head) for shard in self.shards]

    def process(self, shard: _Shard, element: Element) -> None:
        self.put_out(element.time)
        # An output timestamp at the element's time, or at the timer's; and a processing-time timer that keeps the time.
        for family, fire_at, hold in (
            ("event", element.time + 5, element.time + 5),
            ("event", element.time + 3, element.time),
            ("clock", self.now + 10, element.time),
        ):
            tag = f"{element.time}/{hold - element.time}"
            if shard.timers.get(element.key, b"w", family, tag) is None:
                self.timers_set += 1
                shard.timers.set(element.key, b"w", family, Timestamp(fire_at), Timestamp(hold), tag)

    def fire(self, number: int, shard: _Shard, fired: Fired, watermark: Timestamp) -> None:
        self.timers_fired += 1
        assert fired.hold is not None
        self.put_out(fired.hold)
        if fired.family == "event":
            assert watermark == MAX_TIMESTAMP or fired.fire_at + _LATENESS < watermark <= self.upstream
            assert all(time > fired.fire_at for at, _, time in self.blocked if at == number)
            waiting = shard.ordered.next()
            assert waiting is None or waiting > fired.fire_at
        elif fired.hold % 3 == 0:
            later, tag = Timestamp(fired.hold + 1), fired.tag + "+"
            self.timers_set += shard.timers.get(fired.key, b"w", "event", tag) is None
            shard.timers.set(fired.key, b"w", "event", later, later, tag)

    def put_out(self, time: Timestamp) -> None:
        assert time >= self.reported.outputs.get(_OUT, time), "late output"

    @invariant()
    def it_can_be_explained(self) -> None:
        if self.reported.inputs:
            assert not isinstance(self.marks.explain_output(_OUT).cause, Complete)
            for shard in self.shards:
                shard.timers.validate()

    def teardown(self) -> None:
        for shard in (0, 1):
            for number in (0, 1):
                self.a_side_input_is_ready(shard, number)
        self.upstream = MAX_TIMESTAMP
        for _ in range(3):
            self.a_micro_batch(0, 20, 10_000)
        assert self.timers_fired == self.timers_set
        assert self.reported.outputs[_OUT] == MAX_TIMESTAMP


TestTime = TimeMachine.TestCase
TestTime.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
