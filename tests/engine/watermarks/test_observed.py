"""An observed output is at the seen time less the delay, combined with its input's watermark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.watermarks.observed import RootWatermark, decisive, later, observed_time
from arcbeam.model.observers import NOT_OBSERVED, Observer, Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, NOT_BEGUN, Duration, Timestamp

_SAFE = Observer("safe", Duration(10))
_BOLD = Observer("bold", Duration(10), Policy.MAX)
_IMPATIENT = Observer("safe", Duration(10), idle_after=Duration(5))
_NO, _END = MIN_TIMESTAMP, MAX_TIMESTAMP


def _root_watermark(time: int) -> RootWatermark:
    return RootWatermark(Timestamp(time), Timestamp(time))


@pytest.mark.contract("WM-01", "WM-02")
@pytest.mark.parametrize(
    ("observer", "reported", "latest", "there", "by"),
    [
        (_SAFE, _NO, None, _NO, True),
        (_SAFE, _NO, 50, 40, True),
        (_SAFE, 30, 50, 30, False),
        (_SAFE, 45, 50, 40, True),
        (_SAFE, 45, None, _NO, True),
        (_SAFE, _END, 50, _END, False),
        (_SAFE, _END, None, _END, False),
        (_BOLD, _NO, 50, 40, True),
        (_BOLD, 30, 50, 40, True),
        (_BOLD, 45, 50, 45, False),
        (_BOLD, _END, 50, _END, False),
        (_SAFE, NOT_BEGUN, 50, _NO, True),
        (_BOLD, NOT_BEGUN, 50, 40, True),
        (_SAFE, _NO, -50, -60, True),
        (_SAFE, _NO, _NO, _NO, True),
        (_SAFE, _NO, _END, END_OF_GLOBAL_WINDOW, True),
    ],
)
def test_seen_time_is_combined_with_input(
    observer: Observer, reported: int, latest: int | None, there: int, by: bool
) -> None:
    seen = {} if latest is None else {observer.name: Timestamp(latest)}
    assert observed_time((observer,), _root_watermark(reported), seen) == there
    assert decisive((observer,), _root_watermark(reported), seen) == (observer if by else None)


@pytest.mark.contract("WM-02")
def test_earliest_way_counts_and_observers_in_sequence_combine() -> None:
    seen = {"safe": Timestamp(50), "bold": Timestamp(90)}
    assert observed_time((None, _SAFE), _root_watermark(20), seen) == 20
    assert observed_time((None, _SAFE), _root_watermark(60), seen) == 40
    assert observed_time((_SAFE, _BOLD), _root_watermark(60), seen) == 40
    last = Observer("last", Duration(5), Policy.MIN, (_SAFE,))
    assert observed_time((last,), _root_watermark(60), seen) == MIN_TIMESTAMP
    assert observed_time((last,), _root_watermark(60), {**seen, "last": Timestamp(52)}) == 40
    assert decisive((last,), _root_watermark(60), {**seen, "last": Timestamp(52)}) == _SAFE
    assert observed_time((last,), _root_watermark(60), {**seen, "last": Timestamp(42)}) == 37
    assert decisive((last,), _root_watermark(60), {**seen, "last": Timestamp(42)}) == last
    assert observed_time(NOT_OBSERVED, _root_watermark(7), seen) == 7


_SEEN = st.dictionaries(st.sampled_from("ab"), st.integers(-20, 20).map(Timestamp))


@pytest.mark.contract("WM-04")
def test_observer_with_idle_after_ignores_idle_shards() -> None:
    seen, root = {"safe": Timestamp(50)}, RootWatermark(Timestamp(5), Timestamp(30))
    assert observed_time((_SAFE,), root, seen) == 5
    assert observed_time((_IMPATIENT,), root, seen) == 30
    assert observed_time((None, _IMPATIENT), root, seen) == 5, "a way without observers uses all shards"
    assert observed_time((_IMPATIENT,), RootWatermark(Timestamp(5), _NO), seen) == 40, "all shards are idle"
    assert observed_time((_IMPATIENT,), RootWatermark(_END, _NO), seen) == _END
    second = Observer("last", Duration(0), Policy.MAX, (_SAFE,), Duration(5))
    assert observed_time((second,), root, seen) == 30


@given(st.lists(_SEEN, max_size=5))
def test_seen_time_is_maximum_in_any_order(parts: list[dict[str, Timestamp]]) -> None:
    forwards: dict[str, Timestamp] = {}
    backwards: dict[str, Timestamp] = {}
    for part in parts:
        forwards = later(forwards, part)
    for part in reversed(parts):
        backwards = later(part, backwards)
    assert forwards == backwards == {name: max(p[name] for p in parts if name in p) for name in forwards}
