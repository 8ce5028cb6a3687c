"""Invariants of every grouping, for any input."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from arcbeam.engine.grouping.effects import DropHeld, DropLate, EmitPane
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import Timing
from tests.engine.grouping.grouping_shard import EVENT, PROCESSING, Shard
from tests.engine.grouping.grouping_strategies import groupings, untimed_triggers

KEYS = (b"a", b"ab")
batches = st.lists(st.integers(-10, 40), min_size=1, max_size=8)


def names(contents: Any) -> list[str]:
    return [(value.decode() if isinstance(value, bytes) else value).rstrip(".") for value in contents]


class Watched(Shard):
    """A shard that checks each effect."""

    def carry_out(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, EmitPane):
                self.watch(effect)
        super().carry_out(effects)

    def watch(self, pane: EmitPane) -> None:
        timing, window = pane.pane.timing, pane.window
        if timing is Timing.LATE:
            assert self.output <= self.strategy.expiry(window), "too late for its readers"
        else:
            assert pane.timestamp >= self.output, "late because of a missing hold"
        # The watermark may pass the end of a window without a call.
        assert (timing is Timing.EARLY) <= (self.fired <= window.max_timestamp)
        assert (timing is not Timing.EARLY) <= (self.watermark > window.max_timestamp)

    fired = MIN_TIMESTAMP
    """The watermark at which timers fired last."""


class Groupings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard: Watched
        self.count = 0
        self.arrived: Counter[str] = Counter()
        self.seen: defaultdict[Any, list[EmitPane]] = defaultdict(list)
        self.put_out: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    @initialize(grouping=groupings())
    def begin(self, grouping: tuple[Strategy, Any]) -> None:
        self.shard = Watched(*grouping)

    @rule(times=batches, key=st.sampled_from(KEYS))
    def elements(self, times: list[int], key: bytes) -> None:
        values = []
        for time in times:
            name = f"{key.decode()}{self.count}"
            self.count += 1
            values.append(f"{name:.<180}".encode())  # a few of them exceed a record
            self.arrived[name] = len(self.shard.windowfn.assign(Timestamp(time)))
        self.shard.add(times, key, values)

    @rule(by=st.integers(0, 15))
    def watermark(self, by: int) -> None:
        self.shard.advance(max(self.shard.watermark, -10) + by)
        self.shard.fired = self.shard.watermark

    @rule(by=st.integers(0, 15))
    def watermark_before_timers(self, by: int) -> None:
        """Elements arrive after it has moved, and timers fire later."""
        self.shard.watermark = Timestamp(max(self.shard.watermark, -10) + by)

    @rule(by=st.integers(0, 12))
    def clock(self, by: int) -> None:
        self.shard.tick(self.shard.now + by)

    @rule(data=st.data())
    def a_timer_too_many(self, data: st.DataObject) -> None:
        """Timers only cause checks."""
        names = sorted(self.shard.timers, key=repr)
        if names:
            key, window, domain = data.draw(st.sampled_from(names))
            self.shard.timers.pop((key, window, domain))
            self.shard.carry_out(self.shard.grouping.fire(key, window, domain, self.shard.clocks()))

    @invariant()
    def panes(self) -> None:
        if not hasattr(self, "shard"):
            return
        strategy = self.shard.strategy
        for pane in self.shard.taken():
            before = self.seen[pane.key, pane.window]
            last = before[-1] if before else None
            contents, info = Counter(names(pane.contents)), pane.pane
            assert all(name in self.arrived and name.startswith(pane.key.decode()) for name in contents)
            assert info.index == len(before)
            assert info.is_first == (not before)
            assert last is None or not last.pane.is_last
            late = [one for one in before if one.pane.timing is not Timing.EARLY]
            assert info.nonspeculative_index == (-1 if info.timing is Timing.EARLY else len(late))
            assert (info.timing is Timing.EARLY) <= (not late)
            assert (info.timing is Timing.ON_TIME) <= (not late)
            if strategy.accumulating:
                assert last is None or not Counter(names(last.contents)) - contents
                self.put_out |= contents
            else:
                self.put_out += contents
            if not contents:
                assert strategy.empty_last or (info.timing is Timing.ON_TIME and strategy.empty_on_time)
            before.append(pane)
        for drop in self.shard.dropped():
            if isinstance(drop, DropLate):
                self.lost.update(names([drop.value]))
            else:
                # An accumulating pane may repeat them.
                self.lost += Counter(names(drop.contents)) if not strategy.accumulating else Counter()
                assert isinstance(drop, DropHeld)
                assert drop.count
        if not strategy.accumulating:
            assert not (self.put_out + self.lost) - self.arrived

    @invariant()
    def what_is_asked_for(self) -> None:
        if not hasattr(self, "shard"):
            return
        shard = self.shard
        windows = {(key, window) for key, window, domain in shard.timers if domain is EVENT}
        assert set(shard.holds) <= windows
        assert {(key, window) for key, window, domain in shard.timers if domain is PROCESSING} <= windows
        if not windows:
            assert not len(shard.view)

    def teardown(self) -> None:
        if not hasattr(self, "shard"):
            return
        self.shard.finish()
        self.panes()
        assert not len(self.shard.view)
        assert not self.shard.holds
        assert not self.shard.timers
        assert self.shard.output == MAX_TIMESTAMP
        if not self.shard.strategy.accumulating:
            assert self.put_out + self.lost == self.arrived


TestGroupings = pytest.mark.contract("ENG-01", "ENG-10", "ENG-11")(Groupings.TestCase)
TestGroupings.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)


@pytest.mark.contract("ENG-08", "ENG-11")
@settings(max_examples=150, deadline=None)
@given(
    grouping=groupings(untimed_triggers),
    event_log=st.lists(st.tuples(batches, st.integers(0, 12)), max_size=6),
    cuts=st.lists(st.integers(1, 8), min_size=1),
)
def test_panes_are_independent_of_cuts(grouping: Any, event_log: list[Any], cuts: list[int]) -> None:
    whole, pieces = Shard(*grouping), Shard(*grouping)
    count = turn = 0
    for times, by in event_log:
        values = [f"{n}".encode() for n in range(count, count + len(times))]
        count += len(times)
        whole.add(times, values=values)
        start = 0
        while start < len(times):
            end = start + cuts[turn % len(cuts)]
            pieces.add(times[start:end], values=values[start:end])
            start, turn = end, turn + 1
        for shard in (whole, pieces):
            shard.advance(max(shard.watermark, -10) + by)
    for shard in (whole, pieces):
        shard.finish()

    def facts(shard: Shard) -> Any:
        by_window = defaultdict(list)
        for pane in shard.panes:
            by_window[pane.window].append((names(pane.contents), pane.timestamp, pane.pane))
        return by_window, Counter(
            (drop.window, drop.value) if isinstance(drop, DropLate) else (drop.window, *names(drop.contents))
            for drop in shard.drops
        )

    def ordered(found: Any) -> Any:
        return {w: [(sorted(v), *rest) for v, *rest in panes] for w, panes in found[0].items()}, found[1]

    assert ordered(facts(pieces)) == ordered(facts(whole))
