"""What one stage does in one shard in a step, kind by kind."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.delays import Delay
from arcbeam.engine.grouping.effects import DropHeld, DropLate, EmitPane
from arcbeam.engine.grouping.groupings import Elements, WindowedElement
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import AfterTime
from arcbeam.engine.plan.layout import Placed
from arcbeam.engine.plan.markers import Marker
from arcbeam.engine.plan.reports import Awaited, Counts, StageReport
from arcbeam.engine.plan.stagekinds import Grouped, Plain, Splittable, StageKind, StageSpec, Stateful
from arcbeam.engine.plan.stepplan import Handover, StepBudget, StepPlan
from arcbeam.engine.rows import keyspace
from arcbeam.engine.state.agenda import Late
from arcbeam.engine.state.cells import BagCell, Cells, ValueCell
from arcbeam.engine.state.parking import SideInputWindow
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.step.bundles import Budget, BundleResult, CallResult, RestrictionResult, TimerCleared, TimerSet
from arcbeam.engine.step.stagecontext import StageContext
from arcbeam.engine.step.stagestep import StageStep
from arcbeam.engine.watermarks.clocks import Clock, Port
from arcbeam.engine.watermarks.holds import HolderKind
from arcbeam.engine.watermarks.stages import StageFlow, Times
from arcbeam.errors import StateFormatError
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow, PaneInfo, Timing, Window
from arcbeam.testing.views import MemoryView

_W = IntervalWindow(Timestamp(0), Timestamp(10))
_V = IntervalWindow(Timestamp(10), Timestamp(20))
_DECODE = IntervalWindow.from_ordered
_RATES, _NAMES = Port("rates", "main"), Port("names", "main")
_FAMILIES = {"event": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING}


def _end(window: Window) -> Timestamp:
    return window.max_timestamp


class World:
    """A stage in a shard, from step to step; also all that is around it.

    What its user code is told is in `story`; what it does to that, in `on`, by the beginning of the line.
    """

    def __init__(self, kind: StageKind, sides: tuple[tuple[str, Port], ...] = ()) -> None:
        self.view = MemoryView()
        self.spec = StageSpec(Placed(StageFlow("it", (), ("main",)), 1, 0, sides), kind, _DECODE)
        self.story: list[str] = []
        self.on: dict[str, Any] = {}
        self.came: list[tuple[bytes, Sequence[WindowedElement]]] = []
        self.drops: list[DropLate | DropHeld | Late] = []
        self.fired: list[Fired] = []
        self.committed_outputs = {_RATES: MIN_TIMESTAMP, _NAMES: MIN_TIMESTAMP}
        self.full: set[SideInputWindow] = set()
        self.looks = 1000
        self.steps = 0

    def step(
        self, watermark: int, *came: Any, now: int = 0, shard: int = 3, block: Elements | None = None, **of_plan: Any
    ) -> StageReport:
        """A step up to that watermark; of the elements that come: a time, or time and window; or all at once."""
        elements = [each if isinstance(each, tuple) else (each, _W if each < 10 else _V) for each in came]
        self.came = (
            [(b"k", [(b"%d" % time, Timestamp(time), (window,), NO_PANE) for time, window in elements])] if came else []
        )
        if block is not None:
            self.came = [(b"k", block)]
        self.steps += 1
        budget = StepBudget(Duration(1), 1, 1)
        plan = StepPlan(self.steps, 0, Timestamp(now), self.steps - 1, Times(), budget, **of_plan)
        clock = Clock(self.view, 1, ("main",))
        place = StageContext(
            self.spec.placed, shard, self.steps, Timestamp(now), MIN_TIMESTAMP, self.view, clock, self, self, self
        )
        report, _ = StageStep(self.spec, place, self, self.committed_outputs).run(Timestamp(watermark), plan)
        return report

    def told(self) -> list[str]:
        story, self.story = self.story, []
        return story

    def _tell(self, line: str) -> Any:
        self.story.append(line)
        return next((answer for start, answer in self.on.items() if line.startswith(start)), None)

    # Runner.

    def process(self, key: bytes, elements: Elements) -> CallResult:
        return self._tell(" ".join(["process", *(value.decode() for value, _, _, _ in elements)])) or CallResult(
            len(elements)
        )

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        for pane in panes:
            self._tell(" ".join(["pane", *sorted(value.decode() for value in pane.contents)]))
        return CallResult(len(panes))

    def fire(self, fired: Fired) -> CallResult:
        self.fired.append(fired)
        return self._tell(f"fire {fired.family} {fired.fire_at}") or CallResult()

    def expire(self, key: bytes, window: Window) -> CallResult:
        return self._tell(f"expire {window.max_timestamp}") or CallResult()

    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        return Remainder(element[0], 2.0, watermarks={"main": element[1]})

    def resume(self, restriction: Restriction, budget: Budget) -> RestrictionResult:
        return self._tell(f"resume {restriction.remainder.element.decode()}") or RestrictionResult()

    def truncate(self, restriction: Restriction) -> Remainder | None:
        return self._tell(f"truncate {restriction.remainder.element.decode()}")  # type: ignore[no-any-return]

    def prepare(self) -> CallResult:
        return self._tell("prepare") or CallResult()

    def finish(self) -> BundleResult:
        return BundleResult()

    # Exchange, side inputs, budget.

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        return self.came

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        assert (stage, shard) == ("it", 3)
        self.drops.append(drop)

    def markers(self) -> Sequence[Marker]:
        raise AssertionError("a stage reads no markers")

    def send(self, marker: Marker) -> None:
        raise AssertionError("a stage sends no markers")

    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        return [SideInputWindow(name, window.ordered()) for name, _ in self.spec.placed.side_inputs]

    def until(self, stage: str, lot: SideInputWindow) -> Timestamp:
        return _DECODE(lot.window).max_timestamp

    def exists(self, stage: str, lot: SideInputWindow) -> bool:
        return lot in self.full

    def exhausted(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


def _timer(family: str, at: int, hold: int | None = None, window: Window = _W) -> TimerSet:
    return TimerSet(b"k", window, family, Timestamp(at), None if hold is None else Timestamp(hold))


def _stateful(**of_kind: Any) -> World:
    return World(Stateful(_FAMILIES, _DECODE, _end, **of_kind))


# Plain stages and side inputs.


@pytest.mark.contract("ENG-02")
def test_a_plain_stage_processes_what_comes_and_keeps_nothing() -> None:
    world = World(Plain())
    report = world.step(5, 7, 3)
    assert world.told() == ["process 7 3"]
    assert report.counts == Counts(read=2, written=2)
    assert report.input == 5
    assert report.local.pending is None


class _Opaque:
    """Two elements that nobody must look at."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[WindowedElement]:
        raise AssertionError("a plain stage has nothing to look at")


class _Seeing(World):
    """Keeps what it is given."""

    def process(self, key: bytes, elements: Elements) -> CallResult:
        self.seen.append(elements)
        return CallResult(len(elements))

    seen: list[Elements]


def test_a_plain_stage_lets_a_block_through_as_it_is() -> None:
    world, block = _Seeing(Plain()), _Opaque()
    world.seen = []
    assert world.step(5, block=block).counts == Counts(read=2, written=2)
    assert world.seen == [block]


@pytest.mark.contract("ENG-05", "ENG-13")
@pytest.mark.parametrize("waits", ["for a side input", "for its turn"])
def test_an_element_that_waits_keeps_its_pane(waits: str) -> None:
    in_order = Stateful(_FAMILIES, _DECODE, _end, Duration(0))
    world = _Seeing(Plain(), (("rates", _RATES),)) if waits == "for a side input" else _Seeing(in_order)
    world.seen = []
    panes = [NO_PANE, PaneInfo(300, -1, Timing.EARLY, False, False), PaneInfo(301, 0, Timing.ON_TIME, False, True)]
    came = [(b"%d" % n, Timestamp(n), (_W,), pane) for n, pane in enumerate(panes)]
    world.step(0, block=came)
    assert world.seen == []
    world.committed_outputs[_RATES] = MAX_TIMESTAMP
    world.step(5)
    assert [element for elements in world.seen for element in elements] == came


@pytest.mark.contract("ENG-03", "ENG-05")
def test_elements_are_parked_until_all_side_inputs_of_their_window_are_ready() -> None:
    world = World(Plain(), (("rates", _RATES), ("names", _NAMES)))
    report = world.step(50, 7, 3, 12)
    assert world.told() == []
    assert report.awaited == (Awaited(_RATES, Timestamp(9)), Awaited(_RATES, Timestamp(19)))
    assert report.input == 3
    assert report.local.pending is not None
    assert report.local.pending.kind is HolderKind.PARKED
    assert report.local.waits_for == _RATES

    world.full.add(SideInputWindow("rates", _W.ordered()))
    report = world.step(50, 8)
    assert world.told() == []
    assert report.awaited == (Awaited(_NAMES, Timestamp(9)), Awaited(_RATES, Timestamp(19)))
    assert report.input == 3
    assert report.counts == Counts(read=1, unparked=2)

    world.committed_outputs[_NAMES] = Timestamp(10)
    report = world.step(50, 9)
    assert sorted(" ".join(world.told()).replace("process ", "").split()) == ["3", "7", "8", "9"]
    assert report.input == 12
    assert report.counts.unparked == 3
    world.committed_outputs.update({_RATES: MAX_TIMESTAMP, _NAMES: MAX_TIMESTAMP})
    report = world.step(50)
    assert world.told() == ["process 12"]
    assert report.input == 50
    assert report.awaited == ()


def test_a_timer_where_there_can_be_none_is_an_error_that_names_it() -> None:
    world = World(Plain())
    world.on = {"process 7": CallResult(1, (_timer("event", 8),))}
    with pytest.raises(ValueError, match="'it' has set a timer of 'event' where it can set none"):
        world.step(5, 7)


def test_what_does_not_go_together_is_refused_by_name() -> None:
    strategy = Grouped(Strategy(Repeatedly(AfterWatermark())), _DECODE)
    with pytest.raises(ValueError, match="'it' groups, and has side inputs"):
        World(strategy, (("rates", _RATES),))
    with pytest.raises(ValueError, match="'it' has side inputs, so its windows"):
        StageSpec(Placed(StageFlow("it", (), ("main",)), 1, 0, (("rates", _RATES),)), Plain())
    with pytest.raises(ValueError, match="a timer family of 'it' has no name"):
        World(Stateful({"": TimeDomain.EVENT}, _DECODE, _end))


# Groupings.


@pytest.mark.contract("ENG-02", "ENG-10", "WM-09")
def test_a_grouping_fires_when_the_watermark_has_passed_its_windows_and_drops_what_is_late() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark())), _DECODE))
    report = world.step(9, 7, 3)
    assert world.told() == []
    assert report.next_event == 9
    hold = report.local.outputs["main"].hold
    assert hold is not None
    assert (hold.time, hold.kind, hold.key) == (9, HolderKind.STATE, "k")

    report = world.step(10, 8)
    assert world.told() == ["pane 3 7 8"]
    assert report.local.outputs["main"].hold is None
    assert report.next_event is None

    report = world.step(11, 5)
    assert world.told() == []
    assert report.counts.late == 1
    assert isinstance(world.drops[0], DropLate)


@pytest.mark.parametrize("late", [False, True])
def test_a_record_that_cannot_be_read_is_told_with_its_place(late: bool) -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark())), _DECODE))
    world.step(0, 7)
    for row, _ in list(world.view.scan(keyspace.prefix(keyspace.Kind.GROUPING, 1))):
        world.view.put(row, b"\x07")
    told = "the record of a window, of key k of 'it' in shard 3, is of version 07, and 1 is known"
    with pytest.raises(StateFormatError, match=told) as raised:
        world.step(50) if late else world.step(0, 8)
    assert pickle.loads(pickle.dumps(raised.value)).message == raised.value.message


def test_alarms_of_triggers_ring_by_the_clock() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterTime(Delay(Duration(20))))), _DECODE))
    assert world.step(0, 7, now=100).next_due == 120
    world.step(0, now=119)
    assert world.told() == []
    assert world.step(0, 8, now=120).counts.fired == 1
    assert world.told() == ["pane 7 8"]


def test_when_the_budget_is_spent_what_is_due_is_left_but_something_is_always_done() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark())), _DECODE))
    world.step(0, 7, 12)
    world.looks = 0
    report = world.step(50)
    assert world.told() == ["pane 7"]
    assert report.leftover
    assert report.input == 50
    world.looks = 1000
    assert not world.step(50).leftover
    assert world.told() == ["pane 12"]


# State and timers.


class Writing(World):
    """User code that counts elements, and writes the count when the call returns; or when the bundles end."""

    def __init__(self, late: bool) -> None:
        super().__init__(Stateful(_FAMILIES, _DECODE, _end))
        self.late = late
        self.count = ValueCell(Cells(self.view, 1), "count")
        self.unwritten: list[tuple[bytes, Window]] = []

    def process(self, key: bytes, elements: Elements) -> CallResult:
        self.unwritten += [(key, window) for _, _, windows, _ in elements for window in windows]
        if not self.late:
            self.commit()
        return CallResult(timers=(_timer("event", 8),))

    def finish(self) -> BundleResult:
        self.commit()
        return BundleResult()

    def commit(self) -> None:
        while self.unwritten:
            key, window = self.unwritten.pop()
            read = self.count.read(key, window.ordered()) or b"0"
            self.count.write(key, window.ordered(), b"%d" % (int(read) + 1))


@pytest.mark.contract("ENG-12")
def test_what_a_call_has_written_is_dropped_with_its_window_in_the_same_step() -> None:
    world = Writing(late=False)
    world.step(30, 7, 8)
    assert not world.count.exists(b"k", _W.ordered())
    assert [key for key, _ in world.view.scan(b"") if key[0] == keyspace.Kind.KEYED] == []


@pytest.mark.contract("ENG-12")
def test_state_that_is_written_when_bundles_end_is_refused_by_name() -> None:
    world = Writing(late=True)
    with pytest.raises(ValueError, match="user code of 'it' in shard 3 has written state when its bundles ended"):
        world.step(30, 7, 8)


def test_a_timer_that_is_set_when_bundles_end_is_refused_by_name() -> None:
    world = _stateful()
    world.finish = lambda: BundleResult(CallResult(timers=(_timer("event", 8),)))  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="'it' has set a timer of 'event' where it can set none"):
        world.step(3, 7)


@pytest.mark.contract("ENG-04", "ENG-12")
def test_a_key_has_its_data_then_its_timers_in_order_then_its_end_and_its_state_goes() -> None:
    world = _stateful(at_expiration=True)
    bag = BagCell(Cells(world.view, 1), "bag")
    bag.add(b"k", _W.ordered(), b"state")
    world.on = {
        "process 7": CallResult(1, (_timer("event", 8), _timer("clock", 105), _timer("event", 5, 5))),
        "fire event 5": CallResult(1, (_timer("event", 6),)),
        "expire": CallResult(1, (_timer("event", 9),)),
    }
    report = world.step(3, 7, now=100)
    assert world.told() == ["process 7"]
    assert (report.next_event, report.next_due) == (5, 105)
    hold = report.local.outputs["main"].hold
    assert hold is not None
    assert hold.time == 5
    report = world.step(30, 8, now=105)
    assert world.told() == ["process 8", "fire event 5", "fire event 6", "fire clock 105", "expire 9"]
    assert report.counts.fired == 4
    assert (report.next_event, report.next_due) == (None, None)
    assert not bag.exists(b"k", _W.ordered())


@pytest.mark.contract("ENG-12")
def test_timers_are_cleared_and_those_behind_the_end_fire_at_the_end() -> None:
    world = _stateful()
    world.on = {
        "process 7": CallResult(0, (_timer("event", 8), TimerCleared(b"k", _W, "event"), _timer("clock", 50))),
        "process 8": CallResult(0, (_timer("event", 400),)),
        "fire event": CallResult(0, (_timer("event", 500),)),
    }
    assert world.step(0, 7, now=10).next_event == 9
    world.step(0, 8, now=10)
    report = world.step(20, now=10)
    assert world.told() == ["process 7", "process 8", "fire event 9"]
    assert (report.next_event, report.next_due) == (None, None)


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize(
    ("timer", "fires", "hold"),
    [
        (_timer("event", 100, 100), 9, 9),
        (_timer("event", 100, 4), 9, 4),
        (_timer("event", 5, 8), 5, 5),
        (_timer("event", 100), 9, None),
        (_timer("clock", 100, 100), 100, 9),
        (_timer("clock", 100, 4), 100, 4),
        (_timer("clock", 100), 100, None),
    ],
)
def test_a_timer_puts_nothing_out_behind_what_lets_it_fire_nor_behind_its_window(
    timer: TimerSet, fires: int, hold: int | None
) -> None:
    world = _stateful()
    world.on = {"process": CallResult(1, (timer,))}
    reported = world.step(3, 4).local.outputs["main"].hold
    assert (reported.time if reported else None) == hold
    world.step(10 if timer.family == "event" else 3, now=100)
    assert [(fired.fire_at, fired.hold) for fired in world.fired] == [(fires, hold)]


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize("timer", [_timer("", 5), _timer("nope", 5), TimerCleared(b"k", _W, "")])
def test_a_timer_of_a_family_that_the_stage_does_not_have_is_refused_by_name(timer: TimerSet | TimerCleared) -> None:
    world = _stateful()
    world.on = {"process": CallResult(1, (timer,))}
    with pytest.raises(ValueError, match=f"no timer family '{timer.family}'; it has 'event', 'clock'"):
        world.step(3, 4)


@pytest.mark.contract("ENG-05", "ENG-10", "WM-09")
@pytest.mark.parametrize("in_order", [None, Duration(0)])
def test_what_comes_too_late_is_dropped_at_once_and_not_parked(in_order: Duration | None) -> None:
    world = World(Stateful(_FAMILIES, _DECODE, _end, in_order), (("rates", _RATES),))
    world.step(11)
    report = world.step(11, 7, 12)
    assert world.told() == []
    assert report.counts.late == len(world.drops) == 1
    assert report.local.pending is not None
    assert report.local.pending.time == 12
    assert report.awaited == (Awaited(_RATES, Timestamp(19)),)


@pytest.mark.contract("ENG-10", "WM-09")
def test_what_comes_to_a_window_whose_state_is_gone_is_dropped_and_counted() -> None:
    world = _stateful()
    world.step(10)
    report = world.step(11, 7, 12)
    assert world.told() == ["process 12"]
    assert report.counts.late == 1
    (drop,) = world.drops
    assert isinstance(drop, DropLate)
    assert (drop.window, drop.timestamp, drop.watermark) == (_W, 7, 10)


@pytest.mark.contract("ENG-13")
def test_input_in_order_waits_for_its_turn_and_timers_come_in_between() -> None:
    world = _stateful(in_order=Duration(2))
    world.on = {"process 3": CallResult(0, (_timer("event", 5),))}
    report = world.step(4, 7, 3, 4)
    assert world.told() == []
    assert report.next_event == 3
    hold = report.local.outputs["main"].hold
    assert hold is not None
    assert (hold.time, hold.kind) == (3, HolderKind.SORTED)
    world.step(20, 5)
    assert world.told() == ["process 3", "process 4", "process 5", "fire event 5", "process 7"]
    assert world.step(20, 6).counts.late == 1
    assert isinstance(world.drops[0], Late)


def test_the_stages_estimates_hold_until_nothing_comes_any_more() -> None:
    world = World(Plain())
    world.on = {"process 7": CallResult(1, estimates={("delay", "main"): Timestamp(4)})}
    report = world.step(8, 7)
    estimate = report.local.outputs["main"].estimate
    assert estimate is not None
    assert (estimate.time, estimate.source) == (4, "delay")
    assert world.step(MAX_TIMESTAMP).local.outputs["main"].estimate is None


# Restrictions.


@pytest.mark.contract("SDF-04", "SDF-05", "SDF-11")
def test_restrictions_run_once_a_step_and_what_they_leave_waits_with_its_hold() -> None:
    def rest(element: bytes, due: int | None, mark: int) -> Remainder:
        return Remainder(element, 1.0, None if due is None else Timestamp(due), {"main": Timestamp(mark)})

    world = World(Splittable())
    world.on = {
        "resume 3": RestrictionResult(
            (rest(b"half", None, 5),), rest(b"later", 150, 6), {"main": Timestamp(6)}, CallResult(4)
        )
    }
    report = world.step(MAX_TIMESTAMP, 3, now=100)
    assert world.told() == ["resume 3"]
    assert report.leftover
    assert report.next_due == 100
    assert report.input == 5, "what was split off before the estimator went on holds where it was"
    assert (report.restrictions.live, report.restrictions.size) == (2, 2.0)
    assert report.counts == Counts(read=1, written=4, resumed=1)
    report = world.step(MAX_TIMESTAMP, now=149)
    assert world.told() == ["resume half"]
    assert (report.leftover, report.next_due, report.input) == (False, 150, 6)
    report = world.step(MAX_TIMESTAMP, now=150)
    assert world.told() == ["resume later"]
    assert (report.input, report.restrictions.live) == (MAX_TIMESTAMP, 0)


def test_at_least_one_restriction_runs_and_the_rest_waits_if_the_budget_is_spent() -> None:
    world = World(Splittable())
    world.looks = 0
    report = world.step(MAX_TIMESTAMP, 3, 4, 5)
    assert len(world.told()) == 1
    assert report.leftover
    assert report.restrictions.live == 2
    world.looks = 1000
    world.step(MAX_TIMESTAMP)
    assert len(world.told()) == 2


@pytest.mark.contract("SDF-08", "SDF-11")
def test_a_restriction_changes_its_shard_with_its_hold_and_runs_there() -> None:
    world, other = World(Splittable()), World(Splittable())
    later = Remainder(b"later", 3.0, Timestamp(50), {"main": Timestamp(4)})
    world.on = {"resume 3": RestrictionResult((later,), later)}
    report = world.step(MAX_TIMESTAMP, 3)
    (movable,) = report.restrictions.movable
    assert movable.size == 3
    move = Handover("it", movable.id, 3, 4, movable.handed)
    here = world.step(MAX_TIMESTAMP, moves=(move, Handover("else", b"", 3, 4, b"")))
    there = other.step(MAX_TIMESTAMP, shard=4, moves=(move,))
    assert (here.restrictions.live, there.restrictions.live) == (1, 1)
    assert (here.restrictions.movable, there.input, there.next_due) == ((), 4, 50)
    other.step(MAX_TIMESTAMP, shard=4, now=50)
    assert other.told() == ["resume later"]


@pytest.mark.contract("END-02")
def test_a_drain_truncates_what_waits_and_what_comes_and_each_once() -> None:
    world = World(Splittable())
    world.on = {"resume 3": RestrictionResult((), Remainder(b"later", due=Timestamp(900)))}
    world.step(MAX_TIMESTAMP, 3)
    world.on = {"truncate later": Remainder(b"kept")}
    report = world.step(MAX_TIMESTAMP, 4, drain=True)
    assert world.told() == ["resume 3", "truncate later", "truncate 4", "resume kept"]
    assert report.restrictions.live == 0
    assert not report.leftover


@pytest.mark.contract("END-05")
def test_a_step_that_prepares_calls_user_code_behind_all_else() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark())), _DECODE))
    world.step(0, 7)
    world.step(MAX_TIMESTAMP, prepare=True)
    assert world.told() == ["pane 7", "prepare"]
