"""Expiry in event time, also on runners whose timers have milliseconds, as with Beam's coders."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from arcbeam.io import DeduplicateWithinWatermark, JoinWithin, deduplication, forgetting, joins
from arcbeam.io.forgetting import between, fired_at

pytestmark = pytest.mark.contract("WM-05")


@pytest.mark.parametrize(
    ("time", "fires", "at"),
    [
        (5_641, 5_641, 5_641),
        (5_000, 5_641, 5_641),
        (5_300, 5_641, 5_641),
        (-6_000, -5_359, -5_359),
        (6_000, 5_641, 6_000),
    ],
)
def test_timer_fires_at_its_set_time(time: int, fires: int, at: int) -> None:
    assert fired_at(Timestamp(micros=time), fires) == at


@pytest.mark.parametrize(
    ("first", "latest", "bounds"),
    [
        (-7, 12, (-7, 13)),
        (0, 0, (0, 1)),
        (-(2**63) - 9, 5, (-(2**63), 6)),
        (5, 2**63 + 9, (5, 2**63 - 1)),
    ],
)
def test_bounds_of_a_list_include_both_times(first: int, latest: int, bounds: tuple[int, int]) -> None:
    start, limit = between(first, latest)
    assert (start.micros, limit.micros) == bounds


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 10])
@pytest.mark.parametrize("micros", [0, 641])
@pytest.mark.parametrize("joins_them", [False, True])
def test_beam_runner_terminates(joins_them: bool, micros: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def a_few(*args: Any) -> int:
        calls.append(args)
        assert len(calls) < 50, "a timer is set again forever"
        return forgetting.fire_at(*args)

    monkeypatch.setattr(joins, "fire_at", a_few)
    monkeypatch.setattr(deduplication, "fire_at", a_few)
    at = Timestamp(micros=micros)
    with beam.Pipeline() as p:
        pairs = p | beam.Create([("a", 1), ("b", 2)], reshuffle=False).with_output_types(tuple[str, int])
        timed = pairs | beam.Map(lambda pair: TimestampedValue(pair, at)).with_output_types(tuple[str, int])
        elements = timed | beam.WindowInto(FixedWindows(size)) if size else timed
        if joins_them:
            _ = (elements, elements) | JoinWithin(after=60, before=-1, how="left")
        else:
            _ = elements | DeduplicateWithinWatermark(60)
    assert calls
