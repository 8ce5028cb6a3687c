"""Triggers on a bounded input, compared with the SDK's driver where that is correct, and with its transcripts."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import yaml
from apache_beam.transforms import trigger, trigger_test, window
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.trigger import (
    AccumulationMode,
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterWatermark,
    Always,
    DefaultTrigger,
    GeneralTriggerDriver,
    InMemoryUnmergedState,
    OrFinally,
    Repeatedly,
    TriggerFn,
)
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindows,
    Sessions,
    SlidingWindows,
    TimestampCombiner,
)
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.batch.triggering import (
    ACCUMULATING,
    DISCARDING,
    EARLIEST,
    EARLY,
    EOW,
    LATE,
    LATEST,
    ON_TIME,
    Pane,
    assigned,
    panes_of,
    taken,
)


def sdk_panes(windowing: Windowing, elements: list[WindowedValue]) -> tuple[list[WindowedValue], dict[Any, Any]]:
    """Return the driver's panes for elements that arrive one by one, and its remaining elements by window."""
    driver = GeneralTriggerDriver(windowing, trigger_test.TestClock())
    state = InMemoryUnmergedState(defensive_copy=False)
    out: list[WindowedValue] = []

    def take(panes: Iterable[WindowedValue]) -> None:
        out.extend(pane.with_value(list(pane.value)) for pane in panes)

    for element in elements:
        take(driver.process_elements(state, [element], MIN_TIMESTAMP, MIN_TIMESTAMP))
    while state.timers:
        fired = [(at, id, name, domain) for id, (name, domain, at, _) in state.get_and_clear_timers()]
        for at, id, name, domain in sorted(fired, key=lambda timer: timer[0]):
            take(driver.process_timer(id, name, domain, at, state))
    merged = trigger.MergeableStateAdapter(state)
    left = {
        w: list(merged.get_state(w, driver.ELEMENTS))
        for w in merged.known_windows()
        if not merged.get_state(w, driver.TOMBSTONE)
    }
    return out, left


def place(info: Any) -> tuple[Any, ...]:
    return info.is_first, info.timing, info.index, info.nonspeculative_index


def in_order(panes: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Return the panes of each window, in order; panes of different windows have no order."""
    found = defaultdict(list)
    for of, pane in panes:
        found[of].append(pane)
    return found


triggers: st.SearchStrategy[TriggerFn] = st.recursive(
    st.one_of(
        st.integers(1, 4).map(AfterCount),
        st.just(DefaultTrigger()),
        st.just(AfterWatermark()),
        st.just(Always()),
        st.just(trigger._Never()),
    ),
    lambda inner: st.one_of(
        inner.map(Repeatedly),
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: AfterAny(*ts)),
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: AfterAll(*ts)),
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: AfterEach(*ts)),
        st.builds(OrFinally, inner, st.integers(1, 4).map(AfterCount)),
        st.builds(AfterWatermark, early=inner, late=st.none() | inner),
    ),
    max_leaves=5,
)
windowfns = st.sampled_from([GlobalWindows(), FixedWindows(5), SlidingWindows(6, 3), Sessions(2), Sessions(5)])
times = st.lists(st.integers(-10, 20), max_size=25)


@pytest.mark.contract("ENG-11")
@settings(max_examples=300, deadline=None)
@given(windowfn=windowfns, fn=triggers, mode=st.sampled_from([DISCARDING, ACCUMULATING]), times=times)
def test_early_panes_equal_those_of_sdk(windowfn: Any, fn: TriggerFn, mode: Any, times: list[int]) -> None:
    windowing = Windowing(windowfn, fn, mode)
    elements = assigned(windowfn, times)
    expected, left = sdk_panes(windowing, elements)
    panes = panes_of(windowing)
    panes.add(elements, 0)
    early = taken(panes)
    assert in_order((p.window, (sorted(p.values), place(p.info), p.info.is_last)) for p in early) == in_order(
        (p.windows[0], (sorted(p.value), place(p.pane_info), p.pane_info.is_last))
        for p in expected
        if p.pane_info.timing == EARLY
    )
    panes.finish(0)
    last = taken(panes)
    assert all(p.info.is_last and p.info.timing == ON_TIME and not p.info.nonspeculative_index for p in last)
    assert len({p.window for p in last}) == len(last)
    found = {p.window: sorted(p.values) for p in last if p.values}
    at_end = {p.windows[0]: sorted(p.value) for p in expected if p.pane_info.timing != EARLY and p.value}
    assert {w: found[w] for w in at_end} == at_end
    # Elements that the SDK's driver keeps are in the last pane, unless all were in an early one.
    seen = {v for p in early for v in p.values}
    for w, values in left.items():
        if set(values) - seen:
            assert found[w] == sorted(values)


@pytest.mark.contract("ENG-11")
@settings(max_examples=100, deadline=None)
@given(windowfn=windowfns, fn=triggers, times=times, cuts=st.lists(st.integers(0, 25)))
def test_panes_do_not_depend_on_division(windowfn: Any, fn: TriggerFn, times: list[int], cuts: list[int]) -> None:
    elements = assigned(windowfn, times)
    whole, pieces = (panes_of(Windowing(windowfn, fn, DISCARDING)) for _ in range(2))
    whole.add(elements, 0)
    for start, end in itertools.pairwise([0, *sorted(cuts), None]):  # type: ignore[list-item]
        pieces.add(elements[start:end], 0)
        pieces.tick(0)
    for panes in (whole, pieces):
        panes.finish(0)
    found, expected = (
        in_order((p.window, p._replace(values=sorted(p.values))) for p in panes.out) for panes in (pieces, whole)
    )
    assert found == expected


@pytest.mark.contract("ENG-11")
@settings(max_examples=100, deadline=None)
@given(windowfn=windowfns, fn=triggers.map(Repeatedly), times=times)
def test_discarding_panes_have_each_element_once(windowfn: Any, fn: TriggerFn, times: list[int]) -> None:
    elements = assigned(windowfn, times)
    panes = panes_of(Windowing(windowfn, fn, DISCARDING))
    panes.add(elements, 0)
    panes.finish(0)
    assert Counter(v for p in panes.out for v in p.values) == {e.value: len(e.windows) for e in elements}


@pytest.mark.contract("ENG-10", "ENG-11")
@settings(max_examples=200, deadline=None)
@given(
    windowfn=windowfns,
    fn=triggers,
    mode=st.sampled_from([DISCARDING, ACCUMULATING]),
    times=times,
    size=st.integers(1, 25),
)
def test_elements_without_pane_are_counted_as_dropped(
    windowfn: Any, fn: TriggerFn, mode: Any, times: list[int], size: int
) -> None:
    elements = assigned(windowfn, times)
    panes = panes_of(Windowing(windowfn, fn, mode))
    for start in range(0, len(elements), size):
        panes.add(elements[start : start + size], 0)
    panes.finish(0)
    # Accumulating panes repeat elements in growing windows, so they do not show how often an element has arrived.
    arrived = Counter(v for p in panes.out for v in (p.values if mode == DISCARDING else set(p.values)))
    if mode == DISCARDING:
        assert arrived.total() + panes.dropped_closed == sum(len(e.windows) for e in elements)
    else:
        assert panes.dropped_closed >= sum(e.value not in arrived for e in elements)
    assert not panes.dropped_late


class _SlowSessions(Sessions):
    """The same as sessions, but not recognized."""


@settings(max_examples=100, deadline=None)
@given(fn=triggers, gap=st.integers(1, 6), times=times, output=st.sampled_from([EOW, EARLIEST, LATEST]))
def test_sessions_merge_like_their_window_function(fn: TriggerFn, gap: int, times: list[int], output: Any) -> None:
    out = []
    for windowfn in (Sessions(gap), _SlowSessions(gap)):
        panes = panes_of(Windowing(windowfn, fn, ACCUMULATING, output))
        panes.add(assigned(windowfn, times), 0)
        panes.finish(0)
        out.append([(p.window, sorted(p.values), p.timestamp, p.info) for p in panes.out])
    assert out[0] == out[1]


# The SDK's transcripts.


def transcripts() -> Iterator[Any]:
    path = Path(beam.__file__).parent / "testing" / "data" / "trigger_transcripts.yaml"
    for spec in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if "error" in spec:
            continue  # a test of the SDK's own test
        if spec.get("timestamp_combiner") == "OUTPUT_AT_EARLIEST_TRANSFORMED":
            continue  # not in the proto: a pipeline cannot express it
        yield pytest.param(spec, id=f"{spec['name']}-{spec.get('timestamp_combiner', '')}")


def parsed(text: str, names: dict[str, Any]) -> Any:
    fn = eval(text, {"__builtins__": {}}, names)
    return fn() if isinstance(fn, type) else fn


def windowing_of(spec: dict[str, Any]) -> Windowing:
    custom = {"CustomTimestampingFixedWindowsWindowFn": trigger_test.CustomTimestampingFixedWindowsWindowFn}
    return Windowing(
        parsed(spec.get("window_fn", "GlobalWindows"), {**vars(window), **custom}),
        parsed(spec.get("trigger_fn", "Default"), {**vars(trigger), "Default": DefaultTrigger}),
        getattr(AccumulationMode, spec.get("accumulation_mode", "ACCUMULATING").upper()),
        getattr(TimestampCombiner, spec.get("timestamp_combiner", "OUTPUT_AT_EOW")),
        spec.get("allowed_lateness", 0),
    )


def described(pane: Pane) -> dict[str, Any]:
    return {
        "window": [int(pane.window.start), int(pane.window.max_timestamp())],
        "values": sorted(time for _, time in pane.values),
        "timestamp": int(pane.timestamp),
        "index": pane.info.index,
        "nonspeculative_index": pane.info.nonspeculative_index,
        "early": pane.info.timing == EARLY,
        "late": pane.info.timing == LATE,
        "final": pane.info.is_last,
    }


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize("spec", list(transcripts()))
def test_transcript(spec: dict[str, Any]) -> None:
    windowing = windowing_of(spec)
    panes = panes_of(windowing)
    for line in spec["transcript"]:
        ((action, argument),) = line.items()
        if action == "expect":
            found = [described(pane) for pane in taken(panes)]
            assert len(found) == len(argument)
            for pane in argument:
                assert any(pane.items() <= one.items() for one in found), (pane, found)
            continue
        if action == "state":
            continue  # of the SDK's own state cells
        assert not panes.out
        if action == "input":
            panes.add(assigned(windowing.windowfn, argument), 0)
        elif action == "watermark":
            panes.advance(Timestamp(argument), 0)
        else:
            pytest.fail(f"not known: {action}")
    assert not panes.out


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize("spec", list(transcripts()))
def test_transcript_as_bounded_input(spec: dict[str, Any]) -> None:
    """All elements arrive together: all that is not early is one last pane, and nothing is late."""
    windowing = windowing_of(spec)
    panes = panes_of(windowing)
    times = [time for line in spec["transcript"] for time in line.get("input", ())]
    panes.add(assigned(windowing.windowfn, times), 0)
    panes.finish(0)
    assert LATE not in {pane.info.timing for pane in panes.out}
    indexes = defaultdict(list)
    for pane in panes.out:
        indexes[pane.window].append((pane.info.index, pane.info.timing == EARLY, pane.info.is_last))
    if not windowing.windowfn.is_merging():  # a window that was merged has no last pane
        for places in indexes.values():
            assert [index for index, _, _ in places] == list(range(len(places)))
            assert [last for _, _, last in places] == [False] * (len(places) - 1) + [True]
    if windowing.triggerfn != AfterCount(2):  # which finishes, and drops later elements
        assert {v for pane in panes.out for v in pane.values} == set(enumerate(times))
