"""Timers fire once, in order, when their time has passed, after any sequence of set and clear."""

from __future__ import annotations

import random
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arcbeam.engine.state.timers import EXPIRATION, Fired, Timers, within
from arcbeam.engine.watermarks.comparison import due, passed
from arcbeam.engine.watermarks.holds import HolderKind, Holds
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

_FAMILIES = {"event": TimeDomain.EVENT, "other": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING}
_KEYS = st.sampled_from([b"", b"a", b"a\0\1", b"l" * 200])
_WINDOWS = st.sampled_from([b"", b"\0\0\1w", b"w" * 90])
_TIMES = st.sampled_from([MIN_TIMESTAMP, *map(Timestamp, range(-2, 6)), END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP])
_EXPECTED = st.sampled_from([*map(Timestamp, range(6)), MAX_TIMESTAMP])
_HOLDS = st.none() | _TIMES
_SLOTS = st.tuples(
    _KEYS, _WINDOWS, st.sampled_from(["event", *_FAMILIES, EXPIRATION]), st.sampled_from(["", "t\0", "u" * 150])
)


_CHOICES = st.integers(0, 999)
"""The index of a known slot."""


class TimersMachine(RuleBasedStateMachine):
    """Timers of one stage, beside those of another, against a dictionary.

    Most rules take a slot that was used before: what is done twice is where the mistakes are. `seen` counts how often.
    """

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.used: list[tuple] = []
        self.soon: Timestamp | None = None
        self.view = MemoryView()
        Timers(self.view, 2, _FAMILIES).set(b"a", b"", "event", Timestamp(0), Timestamp(0))
        self.timers = Timers(self.view, 1, _FAMILIES)
        self.model: dict[tuple, Fired] = {}
        self.expects = False

    @rule(slot=_SLOTS, at=_TIMES, hold=_HOLDS, payload=st.sampled_from([b"", b"pane"]))
    def set(self, slot: tuple, at: Timestamp, hold: Timestamp | None, payload: bytes) -> None:
        key, window, family, tag = slot
        if slot not in self.used:
            self.used.append(slot)
        before = self.model.get(slot)
        if before is not None:
            self.seen["set while pending"] += 1
            if self.soon is not None and family not in ("clock", EXPIRATION):
                was, now = (passed(self.soon, time) for time in (before.fire_at, at))
                self.seen[f"from {_SIDES[was]} to {_SIDES[now]} the expected watermark"] += 1
        self.timers.set(key, window, family, at, hold, tag, payload)
        self.model[slot] = Fired(key, window, family, tag, at, hold, payload)

    @precondition(lambda self: self.used)
    @rule(which=_CHOICES, at=_TIMES, hold=_HOLDS, payload=st.sampled_from([b"", b"pane"]))
    def set_again(self, which: int, at: Timestamp, hold: Timestamp | None, payload: bytes) -> None:
        self.set(self.used[which % len(self.used)], at, hold, payload)

    @precondition(lambda self: self.used and self.soon != MAX_TIMESTAMP)
    @rule(which=_CHOICES, below=st.lists(st.booleans(), min_size=2, max_size=5), cleared=st.booleans(), ends=_HOLDS)
    def set_across_and_back(self, which: int, below: list[bool], cleared: bool, ends: Timestamp | None) -> None:
        """Alternately a timer that fires in this micro-batch and one that does not."""
        assert self.soon is not None
        slot = self.used[which % len(self.used)]
        for each in below:
            at = Timestamp(self.soon - each)
            self.set(slot, at, at, b"")
        if cleared:
            self.clear(slot)
            self.set(slot, Timestamp(self.soon - below[0]), ends, b"again")

    @precondition(lambda self: self.model)
    @rule(which=_CHOICES)
    def clear_one_that_is_set(self, which: int) -> None:
        self.seen["cleared while pending"] += 1
        self.clear(list(self.model)[which % len(self.model)])

    @rule(slot=_SLOTS, at=_TIMES)
    def set_with_the_default_hold(self, slot: tuple, at: Timestamp) -> None:
        self.set(slot, at, at, b"")

    @rule(slot=_SLOTS)
    def clear(self, slot: tuple) -> None:
        self.timers.clear(*slot)
        self.model.pop(slot, None)
        assert self.timers.get(*slot) is None

    @rule(key=_KEYS, window=_WINDOWS)
    def drop(self, key: bytes, window: bytes) -> None:
        dropped = [slot for slot in self.model if slot[:2] == (key, window)]
        for slot in dropped:
            del self.model[slot]
        assert self.timers.drop(key, window) == len(dropped)

    @initialize(watermark=_EXPECTED)
    def begin(self, watermark: Timestamp) -> None:
        self.expect(watermark)

    @rule(watermark=_EXPECTED)
    def expect(self, watermark: Timestamp) -> None:
        self.timers.expect(watermark)
        self.expects, self.soon = True, watermark

    def settle(self) -> None:
        self.timers.settle()
        self.expects, self.soon = False, None

    @rule(watermark=_EXPECTED)
    def next_micro_batch(self, watermark: Timestamp) -> None:
        self.settle()
        self.view = MemoryView(self.view.snapshot())
        self.timers = Timers(self.view, 1, _FAMILIES)
        self.expect(watermark)

    @precondition(lambda self: self.model)
    @rule(watermark=_TIMES, limit=st.integers(1, 4))
    def fire_event(self, watermark: Timestamp, limit: int) -> None:
        for _ in range(limit):
            ready = [t for t in self.of(TimeDomain.EVENT) if passed(watermark, t.fire_at)]
            fired = self.timers.take_event(watermark)
            assert (fired is None) == (not ready)
            if fired is None:
                break
            first = min(ready, key=lambda t: (t.fire_at, t.family == EXPIRATION))
            assert (fired.fire_at, fired.family == EXPIRATION) == (first.fire_at, first.family == EXPIRATION)
            assert self.model.pop((fired.key, fired.window, fired.family, fired.tag)) == fired

    @precondition(lambda self: self.model)
    @rule(now=_TIMES)
    def fire_processing(self, now: Timestamp) -> None:
        ready = [t.fire_at for t in self.of(TimeDomain.PROCESSING) if due(now, t.fire_at)]
        fired = self.timers.take_processing(now)
        assert (fired.fire_at if fired else None) == min(ready, default=None)
        if fired is not None:
            assert self.model.pop((fired.key, fired.window, fired.family, fired.tag)) == fired

    def of(self, domain: TimeDomain) -> list[Fired]:
        families = {**_FAMILIES, EXPIRATION: TimeDomain.EVENT}
        return [timer for timer in self.model.values() if families[timer.family] is domain]

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        self.timers.validate()
        assert sorted(self.timers.pending(), key=repr) == sorted(self.model.values(), key=repr)
        for domain, first in (
            (TimeDomain.EVENT, self.timers.next_event()),
            (TimeDomain.PROCESSING, self.timers.next_processing()),
        ):
            assert first == min((t.fire_at for t in self.of(domain)), default=None)
        if self.expects:
            return
        holds = [t.hold for t in self.model.values() if t.hold is not None and t.hold < MAX_TIMESTAMP]
        earliest = Holds(self.view, 1).earliest()
        assert (earliest.time if earliest and earliest.time < MAX_TIMESTAMP else None) == min(holds, default=None)

    def teardown(self) -> None:
        self.settle()
        for slot in self.model:
            self.timers.clear(*slot)
        assert len(self.view) == 2


_SIDES = {True: "below", False: "above"}


class TestTimers(TimersMachine.TestCase):
    settings = settings(max_examples=100, stateful_step_count=30, deadline=None)

    def runTest(self) -> None:
        TimersMachine.seen.clear()
        super().runTest()
        few = {what: TimersMachine.seen[what] for what in _OFTEN if TimersMachine.seen[what] < 5}
        assert not few, "the machine has done this too rarely to find a mistake in it"


_OFTEN = (
    "set while pending",
    "cleared while pending",
    *(f"from {was} to {now} the expected watermark" for was in _SIDES.values() for now in _SIDES.values()),
)


class Callbacks:
    """A micro-batch whose timers' callbacks move, clear and set timers, as a stage with state takes them.

    Few slots and few times, so that most calls concern a timer that is set, and many cross the expected watermark.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        view = MemoryView()
        self.timers = Timers(view, 1, _FAMILIES)
        self.model: dict[tuple[bytes, str], Fired] = {}
        self.moved = self.taken = 0
        for _ in range(self.chance.randrange(4)):
            # Timers with rows come from an earlier micro-batch.
            self.change()
        self.timers = Timers(view, 1, _FAMILIES)
        self.timers.expect(_SOON)
        for _ in range(6):
            self.change()

    def change(self) -> None:
        chance, slot = self.chance, (self.chance.choice((b"a", b"b", b"c")), self.chance.choice(("event", "other")))
        self.moved += slot in self.model
        key, family = slot
        if chance.random() < 0.2:
            self.timers.clear(key, b"w", family)
            self.model.pop(slot, None)
        else:
            at = Timestamp(_SOON + chance.randrange(-5, 3))
            hold = chance.choice((at, None))
            self.timers.set(key, b"w", family, at, hold, payload=b"%d" % self.moved)
            self.model[slot] = Fired(key, b"w", family, "", at, hold, b"%d" % self.moved)

    def fires(self, fired: Fired) -> None:
        assert fired == self.model.pop((fired.key, fired.family)), "not its last setting"
        assert passed(_SOON, fired.fire_at)
        assert all(fired.fire_at <= other.fire_at for other in self.model.values()), "out of turn"
        for _ in range(self.chance.choice((0, 1, 1, 2))):
            self.change()

    def run(self) -> None:
        """Take due timers alternately, like the engine's loop, and check the rest."""
        for _ in range(12):
            for fired in self.timers.take_imminent(_SOON):
                self.taken += 1
                self.fires(fired)
                if not self.chance.randrange(5):
                    # The budget of the micro-batch ends.
                    break
            fired = self.timers.take_event(_SOON)
            if fired is None:
                assert not [timer for timer in self.model.values() if passed(_SOON, timer.fire_at)], "due, and left"
                break
            self.fires(fired)
        assert sorted(self.timers.pending(), key=_slot_of) == sorted(self.model.values(), key=_slot_of)
        self.timers.settle()
        self.timers.validate()
        assert sorted(self.timers.pending(), key=_slot_of) == sorted(self.model.values(), key=_slot_of)


_SOON = Timestamp(10)


def _slot_of(timer: Fired) -> tuple[bytes, str]:
    return timer.key, timer.family


@pytest.mark.contract("ENG-12")
def test_timers_moved_by_callbacks_fire_once_in_order() -> None:
    moved = taken = 0
    for seed in range(300):
        micro_batch = Callbacks(seed)
        micro_batch.run()
        moved, taken = moved + micro_batch.moved, taken + micro_batch.taken
    assert min(moved, taken) > 300, (moved, taken)


def _timers() -> Timers:
    return Timers(MemoryView(), 0, _FAMILIES)


@pytest.mark.contract("ENG-04", "ENG-12")
def test_event_timer_fires_when_watermark_passed_it() -> None:
    timers = _timers()
    timers.set(b"k", b"w", "event", Timestamp(10), Timestamp(10))
    assert timers.take_event(Timestamp(10)) is None
    fired = timers.take_event(Timestamp(11))
    assert fired == Fired(b"k", b"w", "event", "", Timestamp(10), Timestamp(10), b"")
    assert timers.take_event(Timestamp(12)) is None


@pytest.mark.contract("ENG-04", "ENG-12")
def test_last_watermark_fires_all_timers() -> None:
    timers = _timers()
    timers.set(b"k", b"w", "event", MAX_TIMESTAMP, None)
    assert timers.take_event(MAX_TIMESTAMP) is not None


@pytest.mark.contract("ENG-12")
def test_processing_timer_fires_at_its_time() -> None:
    timers = _timers()
    timers.set(b"k", b"w", "clock", Timestamp(10), Timestamp(3))
    assert timers.take_processing(Timestamp(9)) is None
    assert timers.take_event(MAX_TIMESTAMP) is None
    fired = timers.take_processing(Timestamp(10))
    assert fired is not None
    assert fired.hold == 3


@pytest.mark.contract("ENG-04", "ENG-12")
def test_timer_set_by_callback_takes_its_place() -> None:
    timers = _timers()
    for time in (1, 5):
        timers.set(b"k", b"w", "event", Timestamp(time), None, tag=str(time))
    timers.set(b"k", b"w", EXPIRATION, Timestamp(5), None)
    order = []
    while fired := timers.take_event(Timestamp(6)):
        order.append((fired.fire_at, fired.tag))
        if fired.tag == "1":
            timers.set(b"k", b"w", "event", Timestamp(3), None, tag="3")
            timers.set(b"k", b"w", "event", Timestamp(5), None, tag="again")
            timers.clear(b"k", b"w", "event", tag="5")
        elif fired.tag == "3":
            timers.set(b"k", b"w", "event", Timestamp(0), None, tag="0")
    assert order == [(1, "1"), (3, "3"), (0, "0"), (5, "again"), (5, "")]


@pytest.mark.contract("ENG-12")
def test_timer_is_set_cleared_and_set_in_bundle() -> None:
    timers = _timers()
    timers.set(b"k", b"w", "event", Timestamp(1), None)
    timers.set(b"k", b"w", "event", Timestamp(9), None)
    assert timers.take_event(Timestamp(9)) is None
    timers.clear(b"k", b"w", "event")
    timers.set(b"k", b"w", "event", Timestamp(4), None, payload=b"p")
    assert [timer.fire_at for timer in timers.pending()] == [4]


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize("family", ["event", "clock"])
@pytest.mark.parametrize("hold", [Timestamp(4), Timestamp(2), None], ids=["held", "held earlier", "free"])
def test_timer_set_again_has_new_payload(family: str, hold: Timestamp | None) -> None:
    timers = _timers()

    def set_to(payload: bytes) -> None:
        for key in (b"k", b"long" * 50):
            timers.set(key, b"w", family, Timestamp(4), hold, payload=payload)

    set_to(b"old")
    # The index is read ahead: a replaced row must fire with its new value.
    assert (timers.next_event() if family == "event" else timers.next_processing()) == 4
    for payload in (b"old", b"new", b"", b"newer"):
        set_to(payload)
        timers.validate()
        assert [timer.payload for timer in timers.pending()] == [payload] * 2
    fired = [
        timers.take_event(Timestamp(5)) if family == "event" else timers.take_processing(Timestamp(4)) for _ in "ab"
    ]
    assert [timer and timer.payload for timer in fired] == [b"newer"] * 2


@pytest.mark.contract("ENG-12")
def test_output_timestamp_holds_until_timer_fired() -> None:
    view = MemoryView()
    timers, holds = Timers(view, 0, _FAMILIES), Holds(view, 0)
    timers.set(b"user7", b"w", "event", Timestamp(8), Timestamp(8), tag="x")
    timers.set(b"user8", b"w", "clock", Timestamp(1_000_000), Timestamp(3))
    holds.validate()
    earliest = holds.earliest()
    assert earliest is not None
    assert (earliest.time, earliest.kind, str(earliest)) == (3, HolderKind.TIMER, "timer 'clock' of key 'user8'")
    timers.take_processing(Timestamp(1_000_000))
    assert str(holds.earliest()) == "timer 'event/x' of key 'user7'"
    timers.take_event(Timestamp(9))
    assert holds.earliest() is None


def test_timers_of_one_window_fire_with_their_own_holds() -> None:
    timers = Timers(MemoryView(), 1, _FAMILIES)
    holds = {b"a": 5, b"b": 5, b"c": 3, b"d": None, b"e": 4}
    for key, hold in holds.items():
        timers.set(key, b"w", "event", Timestamp(5), None if hold is None else Timestamp(hold))
    fired = [timers.take_event(Timestamp(6)) for _ in holds]
    assert {timer.key: timer.hold for timer in fired if timer is not None} == holds


def test_timers_fire_in_order_while_others_are_set() -> None:
    timers = _timers()
    for i in range(1000):
        timers.set(b"%d" % (i * 7919 % 1000), b"w", "event", Timestamp(i * 7919 % 1000), None)
    times = []
    while fired := timers.take_event(Timestamp(2000)):
        times.append(fired.fire_at)
        if fired.fire_at < 1000:
            timers.set(fired.key, b"w", "event", Timestamp(fired.fire_at + 1000), None)
    assert times == list(range(2000))


@pytest.mark.contract("ENG-12")
def test_timer_does_not_outlive_its_window() -> None:
    end = Timestamp(100)
    assert within(Timestamp(99), end, None) == 99
    assert within(Timestamp(500), end, None) == end
    assert within(Timestamp(500), end, Timestamp(99)) == end
    assert within(Timestamp(500), end, end) is None
    assert within(Timestamp(50), end, end) == 50


def test_undeclared_family_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no timer family 'flash'; it has 'event', 'other', 'clock'"):
        _timers().set(b"k", b"w", "flash", Timestamp(0), None)


@pytest.mark.parametrize(("fire_at", "hold"), [(1 << 63, 0), (-(1 << 63) - 1, None), (0, 1 << 63)])
def test_time_beyond_64_bits_is_refused(fire_at: int, hold: int | None) -> None:
    view = MemoryView()
    timers = Timers(view, 3, {"alarm": TimeDomain.EVENT})
    with pytest.raises(ValueError, match=f"'alarm' of stage 3 .* {fire_at} µs .* {hold}: "):
        timers.set(b"k", b"w", "alarm", Timestamp(fire_at), None if hold is None else Timestamp(hold))
    assert not len(view)


def test_processing_timer_releases_hold_when_fired() -> None:
    view = MemoryView()
    timers = Timers(view, 1, {"clock": TimeDomain.PROCESSING})
    timers.set(b"k", b"w", "clock", Timestamp(5), Timestamp(5))
    assert timers.take_processing(Timestamp(5)) is not None
    assert not view.snapshot(), "neither a timer nor its hold is left"
