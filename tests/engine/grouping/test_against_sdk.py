"""Comparison with the SDK's `GeneralTriggerDriver`, where that is right.

It has no lateness, closing or on-time behaviour. If the watermark has passed a window that then grows, it still treats
the window as passed. So nothing is late here, and nothing expires. It waits for the watermark only if an element has
arrived since its trigger began to wait: panes without new elements are not compared.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from apache_beam.transforms import trigger as sdk
from apache_beam.transforms import trigger_test
from apache_beam.transforms import window as sdk_window
from apache_beam.transforms.core import Windowing
from apache_beam.utils.timestamp import MIN_TIMESTAMP as SDK_MIN
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp
from apache_beam.utils.windowed_value import PaneInfoTiming, WindowedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.grouping import composites, triggers
from arcbeam.engine.grouping.merging import SessionMerging
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.model.timestamps import Duration
from arcbeam.model.windows import IntervalWindow, Timing
from arcbeam.testing.windowfns import FixedWindows, GlobalWindows, Sessions, SlidingWindows
from tests.engine.grouping.grouping_shard import Shard

SECOND = 1_000_000


def _s(seconds: int) -> Duration:
    return Duration(seconds * SECOND)


# Pairs of (the SDK's, ours).
counts = st.integers(1, 4).map(lambda n: (sdk.AfterCount(n), triggers.AfterCount(n)))
leaves = st.one_of(
    counts,
    st.just((sdk.DefaultTrigger(), composites.Repeatedly(composites.AfterWatermark()))),
    st.just((sdk.AfterWatermark(), composites.AfterWatermark())),
    st.just((sdk.Always(), triggers.Always())),
    st.just((sdk._Never(), triggers.Never())),
)


def _both(theirs: Any, ours: Any) -> Any:
    return lambda pairs: (theirs(*(one for one, _ in pairs)), ours(*(other for _, other in pairs)))


def _watermark(pairs: Any) -> Any:
    (early, ours_early), (late, ours_late) = (pair or (None, None) for pair in pairs)
    return sdk.AfterWatermark(early, late), composites.AfterWatermark(ours_early, ours_late)


parts = st.one_of(
    counts,
    st.just((sdk.Always(), triggers.Always())),
    st.lists(counts, min_size=1, max_size=3).map(_both(sdk.AfterEach, composites.AfterEach)),
    st.lists(counts, min_size=1, max_size=3).map(_both(sdk.AfterAll, composites.AfterAll)),
)
pairs = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=1).map(_both(sdk.Repeatedly, composites.Repeatedly)),
        st.lists(inner, min_size=1, max_size=3).map(_both(sdk.AfterAny, composites.AfterAny)),
        # A sequence that is through never lets all of several fire again in the SDK; with us it is no reason to wait.
        st.lists(inner, min_size=1, max_size=3)
        .filter(lambda pairs: not any(isinstance(one, sdk.AfterEach) for one, _ in pairs))
        .map(_both(sdk.AfterAll, composites.AfterAll)),
        st.lists(inner, min_size=1, max_size=3).map(_both(sdk.AfterEach, composites.AfterEach)),
        st.tuples(inner, counts).map(_both(sdk.OrFinally, composites.OrFinally)),
        # What waits for the watermark before it and after it fires twice in the SDK.
        st.tuples(st.none() | parts, st.none() | parts).map(_watermark),
    ),
    max_leaves=5,
)
windowfns = st.sampled_from(
    [
        (sdk_window.GlobalWindows(), GlobalWindows()),
        (sdk_window.FixedWindows(5), FixedWindows(_s(5), _s(0))),
        (sdk_window.SlidingWindows(6, 3), SlidingWindows(_s(6), _s(3), _s(0))),
        (sdk_window.Sessions(2), Sessions(_s(2))),
        (sdk_window.Sessions(5), Sessions(_s(5))),
    ]
)
# Elements, and the following advance of the watermark; the time of an element is relative to it.
stories = st.lists(st.tuples(st.lists(st.integers(0, 12), max_size=6), st.integers(0, 9)), max_size=5)
TIMINGS = {PaneInfoTiming.EARLY: Timing.EARLY, PaneInfoTiming.ON_TIME: Timing.ON_TIME, PaneInfoTiming.LATE: Timing.LATE}


def told_to_sdk(windowing: Windowing, event_log: list[Any]) -> dict[Any, list[Any]]:
    driver, state = sdk.GeneralTriggerDriver(windowing, trigger_test.TestClock()), sdk.InMemoryUnmergedState()
    found = defaultdict(list)
    number = 0
    windowfn = windowing.windowfn

    def take(panes: Any) -> None:
        for pane in panes:
            (window,) = pane.windows
            info = pane.pane_info
            facts = sorted(pane.value), TIMINGS[info.timing], info.is_last
            found["global" if window == sdk_window.GlobalWindow() else (window.start.micros, window.end.micros)].append(
                facts
            )

    watermark = 0
    take(driver.process_elements(state, [], SDK_MIN, SDK_MIN))
    for ahead, by in event_log:
        for time in ahead:
            at = SdkTimestamp(watermark + time)
            windows = tuple(windowfn.assign(windowfn.AssignContext(at)))
            element = WindowedValue(number, at, windows)
            number += 1
            mark = SdkTimestamp(watermark)
            take(driver.process_elements(state, [element], mark, mark))
        watermark += by
        fired = [(at, id, name, domain) for id, (name, domain, at, _) in state.get_and_clear_timers(watermark)]
        for at, id, name, domain in sorted(fired, key=lambda timer: timer[0]):
            take(driver.process_timer(id, name, domain, at, state))
    return found


def told_to_us(strategy: Strategy, windowfn: Any, event_log: list[Any]) -> dict[Any, list[Any]]:
    shard = Shard(strategy, windowfn)
    shard.advance(0)
    number = 0
    for ahead, by in event_log:
        times = [shard.watermark + time * SECOND for time in ahead]
        shard.add(times, values=[str(n).encode() for n in range(number, number + len(times))])
        number += len(times)
        shard.advance(shard.watermark + by * SECOND)
    found = defaultdict(list)
    for pane in shard.panes:
        window: Any = pane.window
        name = (window.start, window.end) if isinstance(window, IntervalWindow) else "global"
        found[name].append((sorted(map(int, pane.contents)), pane.pane.timing, pane.pane.is_last))
    return found


@pytest.mark.contract("ENG-11")
@settings(max_examples=300, deadline=None)
@given(fns=windowfns, pair=pairs, accumulating=st.booleans(), event_log=stories)
def test_panes_equal_those_of_the_sdk(fns: Any, pair: Any, accumulating: bool, event_log: list[Any]) -> None:
    mode = sdk.AccumulationMode.ACCUMULATING if accumulating else sdk.AccumulationMode.DISCARDING
    theirs = told_to_sdk(Windowing(fns[0], pair[0], mode, allowed_lateness=10**6), event_log)
    strategy = Strategy(
        trigger=pair[1],
        merging=SessionMerging() if isinstance(fns[1], Sessions) else None,
        accumulating=accumulating,
        pane_time=PaneTime.END_OF_WINDOW,
        lateness=_s(10**6),
    )
    ours = told_to_us(strategy, fns[1], event_log)

    def with_news(found: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
        kept: dict[Any, list[Any]] = {}
        for window, panes in found.items():
            before: list[int] = []
            for pane in panes:
                if pane[0] and pane[0] != before:
                    kept.setdefault(window, []).append(pane)
                    before = pane[0]
        return kept

    assert with_news(ours) == with_news(theirs)
