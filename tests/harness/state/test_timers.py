"""Timers of a key: the last setting of each counts, and they fire in order."""

from __future__ import annotations

from typing import Any

import pytest
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arcbeam.harness.state.timers import Family, KeyTimers, TimerHandle

END = 10**9


class Operation:
    """Records the registered families."""

    def __init__(self) -> None:
        self.infos: dict[str, Any] = {}

    def add_timer_info(self, name: str, info: Any) -> None:
        self.infos[name] = info


class Key:
    """The timers of a key, and their handles, in three windows."""

    def __init__(self) -> None:
        self.timers, operation = KeyTimers(), Operation()
        families = {"event": TimeDomain.WATERMARK, "clock": TimeDomain.REAL_TIME}
        for name, domain in families.items():
            Family(operation, name, domain == TimeDomain.REAL_TIME, self.timers)
        self.handles = {
            (name, n): TimerHandle(
                # Equal windows count as one, even as different objects.
                *(operation.infos[name], domain, "k", IntervalWindow(n, n + 1), 5_000_000, PANE_INFO_UNKNOWN)
            )
            for name, domain in families.items()
            for n in range(3)
        }

    def fired(self) -> list[tuple[str, str, int, int]]:
        return [(t.family.name, t.tag, int(t.windows[0].start), t.micros) for t in self.timers.event_timers(END)]


slots = st.tuples(st.sampled_from(["event", "clock"]), st.integers(0, 1), st.sampled_from(["", "a"]))
words = st.tuples(slots, st.one_of(st.none(), st.integers(1, 4)))
SUSPEND = None


@st.composite
def stories(draw: st.DrawFn) -> list[Any]:
    """Draw slots to set or clear, mostly repeated ones, with suspensions in between."""
    orders: list[Any] = []
    used: list[Any] = []
    for _ in range(draw(st.integers(0, 15))):
        if draw(st.integers(0, 9)) == 0:
            orders.append(SUSPEND)
            continue
        slot, at = draw(words)
        if used and draw(st.integers(0, 3)):
            slot = draw(st.sampled_from(used[-3:]))
        used.append(slot)
        orders.append((slot, at))
    return orders


@given(stories())
def test_last_setting_counts_and_earliest_fires_first(orders: list[Any]) -> None:
    key, pending = Key(), dict[Any, int]()
    for setting in orders:
        if setting is SUSPEND:
            suspended = key.timers.suspend()
            assert not key.timers
            key.timers.resume(suspended)
            continue
        (family, window, tag), at = setting
        slot = family, tag, window
        if at is None:
            key.handles[family, window].clear(tag)
            pending.pop(slot, None)
        else:
            key.handles[family, window].set(at, tag)
            pending[slot] = at * 1_000_000
    assert bool(key.timers) == bool(pending)
    # Sorting is stable: equal times keep the order of setting.
    events = sorted(((*slot, at) for slot, at in pending.items() if slot[0] == "event"), key=lambda timer: timer[3])
    assert key.fired() == events
    clocks = []
    while (due := key.timers.due()) is not None:
        assert key.timers.take_processing(due - 1) is None
        timer = key.timers.take_processing(due)
        assert timer is not None
        clocks.append((*timer.slot[:2], int(timer.windows[0].start), timer.micros))
        assert (timer.fires_at_hold().micros, timer.for_sdk().hold_timestamp) == (5_000_000, Timestamp(5))
    assert [(f.name, tag, window, at) for f, tag, window, at in clocks] == sorted(
        ((*slot, at) for slot, at in pending.items() if slot[0] == "clock"), key=lambda timer: timer[3]
    )


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.sampled_from(["", "a"]), st.none() | st.integers(1, 4)),
        max_size=20,
    )
)
@example([("a", 0, "", 1), ("a", 1, "", 2), ("c", 1, "", 1), ("a", 1, "", 3)])
@example([("c", 0, "", 1), ("c", 1, "", 1), ("a", 1, "", 1), ("a", 0, "", 2), ("a", 2, "", 3)])
def test_suspended_keys_keep_their_own_timers(orders: list[Any]) -> None:
    """Two keys take turns, in the same windows; a third one ends each time, and is cleared."""
    key, suspended, pending = Key(), dict[str, Any](), dict[str, dict[Any, int]]()

    def leave(name: str) -> None:
        if name == "c":
            key.timers.clear()
            pending.pop(name)
        else:
            suspended[name] = key.timers.suspend()
        assert not key.timers

    def enter(name: str) -> None:
        pending.setdefault(name, {})
        if name in suspended:
            key.timers.resume(suspended.pop(name))
        assert bool(key.timers) == bool(pending[name])

    last = ""
    for name, window, tag, at in orders:
        if name != last:
            if last:
                leave(last)
            enter(name)
            last = name
        slots = pending[name]
        if at is None:
            key.handles["event", window].clear(tag)
            slots.pop((tag, window), None)
        else:
            key.handles["event", window].set(at, tag)
            slots[tag, window] = at * 1_000_000
    if last:
        leave(last)
    for name in pending:
        enter(name)
        assert [(tag, window, at) for _, tag, window, at in key.fired()] == sorted(
            ((*slot, at) for slot, at in pending[name].items()), key=lambda timer: timer[2]
        )


@settings(max_examples=200)
@given(stories(), st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(1, 6)), max_size=12))
def test_settings_by_callbacks_apply_at_once(orders: list[Any], answers: list[Any]) -> None:
    """Each callback sets or clears an earlier timer: a pending one, the one that fires, or another."""
    key, pending, used = Key(), dict[Any, tuple[int, int]](), list[Any]()
    firing = False

    def say(slot: Any, at: int | None) -> None:
        used.append(slot)
        window, tag = slot
        if at is None:
            key.handles["event", window].clear(tag)
            pending.pop(slot, None)
        else:
            key.handles["event", window].set(at, tag)
            # Equal times keep the order of setting; after a firing, a repeated setting counts as new.
            kept = slot in pending and not firing
            pending[slot] = at, pending[slot][1] if kept else len(used)

    for setting in orders:
        if setting is not SUSPEND:
            (_, *slot), at = setting
            say(tuple(slot), at)
    for timer in key.timers.event_timers(END):
        slot = (int(timer.windows[0].start), timer.tag)
        firing = True
        assert slot == min(pending, key=lambda slot: pending[slot])
        assert timer.micros == pending.pop(slot)[0] * 1_000_000
        for _ in range(min(len(answers), 2)):
            which, at = answers.pop()
            say(used[-1 - which % len(used)], at)
    assert not pending
    assert not key.timers


def test_settings_during_firing_apply() -> None:
    key = Key()
    event = key.handles["event", 0]
    for at, tag in ((3, "late"), (1, "first"), (2, "cleared")):
        event.set(at, tag)
    fired = []
    for timer in key.timers.event_timers(END):
        fired.append((timer.tag, timer.micros // 1_000_000))
        if timer.tag == "first":
            event.clear("cleared")
            event.set(2, "new")
            event.set(4, "late")
    assert fired == [("first", 1), ("new", 2), ("late", 4)]


def test_timer_set_again_keeps_its_place_among_equal_times() -> None:
    key = Key()
    event = key.handles["event", 0]
    for at, tag in ((1, "a"), (1, "b"), (1, "a")):
        event.set(at, tag)
    assert [(tag, at) for _, tag, _, at in key.fired()] == [("a", 1_000_000), ("b", 1_000_000)]


def test_only_due_timers_are_taken() -> None:
    key = Key()
    key.handles["event", 0].set(1)
    key.handles["event", 1].set(2)
    assert [timer.micros for timer in key.timers.event_timers(1_000_000)] == [1_000_000]
    assert key.timers
    key.timers.clear()
    assert not key.timers
    assert key.fired() == []


def test_sdk_gets_original_timestamp() -> None:
    key = Key()
    key.handles["event", 0].set(Timestamp(7), "t")
    ((timer),) = key.timers.event_timers(END)
    sdk_timer = timer.for_sdk()
    assert (sdk_timer.user_key, sdk_timer.dynamic_timer_tag, sdk_timer.windows) == ("k", "t", (IntervalWindow(0, 1),))
    assert sdk_timer.fire_timestamp == sdk_timer.hold_timestamp == Timestamp(7)
    key.handles["event", 0].set(7.25)
    ((timer),) = key.timers.event_timers(END)
    assert timer.for_sdk().fire_timestamp == Timestamp(7.25)


def test_time_finer_than_microsecond_is_refused_when_set() -> None:
    with pytest.raises(ValueError, match="microsecond"):
        Key().handles["event", 0].set(Timestamp(1, 1, precision=9))


def test_repeated_setting_takes_no_more_memory() -> None:
    key = Key()
    set_again = key.handles["event", 0].set
    set_again(Timestamp(900), dynamic_timer_tag="end")
    set_again(Timestamp(0), dynamic_timer_tag="loop")
    fired = 0
    for timer in key.timers.event_timers(END):
        fired += 1
        set_again(Timestamp(900), dynamic_timer_tag="end")
        if timer.tag == "loop" and fired < 500:
            set_again(Timestamp(fired), dynamic_timer_tag="loop")
        assert len(key.timers._domains[False]._fresh) < 100
        if fired > 600:
            break
    assert fired > 500
