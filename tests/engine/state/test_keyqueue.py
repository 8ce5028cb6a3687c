"""Elements in order of time, timers and expirations are processed in Beam's order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.state.keyqueue import Element, KeyQueue, SortedInput
from arcbeam.engine.state.timers import EXPIRATION, Fired, Timers
from arcbeam.engine.watermarks.holds import Holds
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import NO_PANE, PaneInfo, Timing
from arcbeam.testing.views import MemoryView

_PANE = PaneInfo(2, -1, Timing.EARLY, False, False)
_FAMILIES = {"event": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING}


def _at(time: int, value: bytes = b"", key: bytes = b"k") -> Element:
    return Element(key, b"w", Timestamp(time), value)


def _reported(next: Element | Fired | None) -> object:
    match next:
        case Element():
            return (next.time, next.value.decode())
        case Fired():
            return (next.fire_at, next.family)
    return None


@pytest.mark.contract("ENG-13")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b\0", b"l" * 200]),
            st.integers(-3, 9) | st.sampled_from([MIN_TIMESTAMP, MAX_TIMESTAMP]),
            st.integers(-3, 12) | st.just(MAX_TIMESTAMP),
        ),
        max_size=20,
    ),
    st.sampled_from([0, 2]),
)
def test_elements_leave_in_order_of_time(micro_batches: list[tuple], lateness: int) -> None:
    view = MemoryView()
    ordered = SortedInput(view, 0, Duration(lateness))
    watermark = MIN_TIMESTAMP
    arrived: list[Element] = []
    out: list[Element] = []
    late: list[Element] = []
    for i, (key, time, advance) in enumerate(micro_batches):
        element = Element(key, b"w\0", Timestamp(time), b"%d" % i, _PANE if i % 2 else NO_PANE)
        if (refused := ordered.add(element, watermark)) is None:
            arrived.append(element)
        else:
            assert (refused.element, refused.watermark) == (element, watermark)
            late.append(element)
            assert watermark == MAX_TIMESTAMP or time + lateness < watermark
        watermark = max(watermark, Timestamp(advance))
        if i % 3 == 0:
            ordered = SortedInput(view, 0, Duration(lateness))
        while element := ordered.take(watermark):
            out.append(element)
        held = Holds(view, 0).earliest()
        assert (held.time if held else None) == ordered.next()
    while element := ordered.take(MAX_TIMESTAMP):
        out.append(element)
    for key in {element.key for element in arrived}:
        assert [e for e in out if e.key == key] == sorted((e for e in arrived if e.key == key), key=lambda e: e.time)
    assert len(out) + len(late) == len(micro_batches)
    assert len(view) == bool(arrived)  # the count of arrivals


@pytest.mark.contract("ENG-04", "ENG-13")
def test_elements_precede_timers_and_timers_precede_expiration() -> None:
    view = MemoryView()
    timers, ordered = Timers(view, 0, _FAMILIES), SortedInput(view, 0)
    agenda = KeyQueue(timers, ordered)
    for time in (9, 5, 7):
        assert ordered.add(_at(time, b"element"), MIN_TIMESTAMP) is None
    for time in (7, 6, 9):
        timers.set(b"k", b"w", "event", Timestamp(time), None, tag=str(time))
    timers.set(b"k", b"w", EXPIRATION, Timestamp(9), None)
    timers.set(b"k", b"w", "clock", Timestamp(1000), None)
    assert agenda.next(Timestamp(5), Timestamp(999)) is None
    event_log = []
    while next := agenda.next(Timestamp(10), Timestamp(1000)):
        event_log.append(_reported(next))
    assert event_log == [
        (5, "element"),
        (6, "event"),
        (7, "element"),
        (7, "event"),
        (9, "element"),
        (9, "event"),
        (1000, "clock"),
        (9, ""),
    ]


@pytest.mark.contract("ENG-04")
def test_work_that_is_not_due_waits() -> None:
    timers = Timers(MemoryView(), 0, _FAMILIES)
    agenda = KeyQueue(timers)
    timers.set(b"k", b"w", "event", Timestamp(5), None)
    timers.set(b"k", b"w", EXPIRATION, Timestamp(3), None)
    timers.set(b"k", b"w", "clock", Timestamp(1000), None)
    assert agenda.next(Timestamp(3), Timestamp(999)) is None
    assert _reported(agenda.next(Timestamp(4), Timestamp(999))) == (3, EXPIRATION)
    assert agenda.next(Timestamp(5), Timestamp(999)) is None


@pytest.mark.contract("ENG-13")
def test_sorted_stage_waits_for_allowed_lateness() -> None:
    view = MemoryView()
    timers, ordered = Timers(view, 0, _FAMILIES), SortedInput(view, 0, Duration(10))
    agenda = KeyQueue(timers, ordered)
    timers.set(b"k", b"w", "event", Timestamp(5), None)
    assert agenda.next(Timestamp(15), Timestamp(0)) is None
    assert ordered.add(_at(5, b"late, but not too late"), Timestamp(15)) is None
    assert _reported(agenda.next(Timestamp(16), Timestamp(0))) == (5, "late, but not too late")
    assert _reported(agenda.next(Timestamp(16), Timestamp(0))) == (5, "event")
    refused = ordered.add(_at(5), Timestamp(16))
    assert refused is not None
    assert "in order of time" in refused.reason
