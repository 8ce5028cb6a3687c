"""The range of event time is Beam's."""

from __future__ import annotations

import pytest
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils import timestamp as beam

from arcbeam.model.timestamps import (
    END_OF_GLOBAL_WINDOW,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Duration,
    behind_shown,
    is_far,
    long_shown,
    shifted,
)

_BEHIND = "behind"


def test_range_of_event_time_is_that_of_beam() -> None:
    assert beam.MIN_TIMESTAMP.micros == MIN_TIMESTAMP
    assert beam.MAX_TIMESTAMP.micros == MAX_TIMESTAMP
    assert GlobalWindow().max_timestamp().micros == END_OF_GLOBAL_WINDOW


def test_shift_stays_in_range() -> None:
    assert shifted(MAX_TIMESTAMP, Duration(1)) == MAX_TIMESTAMP
    assert shifted(MIN_TIMESTAMP, Duration(-1)) == MIN_TIMESTAMP
    assert shifted(MIN_TIMESTAMP, Duration(5)) == MIN_TIMESTAMP + 5


@pytest.mark.contract("OPS-02")
@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5.0, f"0.0 s {_BEHIND}"),
        (1.55, f"1.6 s {_BEHIND}"),
        (119.0, f"119.0 s {_BEHIND}"),
        (120.0, f"2 min {_BEHIND}"),
        (7200.0, f"2 h {_BEHIND}"),
        (86_400.0 * 365 * 9, f"3,285 days {_BEHIND}"),
        (1.79e9, "far from the clock"),
    ],
)
def test_distance_is_shown_in_readable_units(seconds: float, shown: str) -> None:
    assert behind_shown(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (119, "119 s"),
        (120, "2 min"),
        (7_199, "120 min"),
        (7_200, "2 h"),
        (2 * 86_400 - 1, "48 h"),
        (2 * 86_400, "2 days"),
    ],
)
def test_span_is_shown_in_largest_unit_contained_twice(seconds: float, shown: str) -> None:
    assert long_shown(seconds) == shown


def test_distance_of_ten_years_is_far() -> None:
    assert is_far(3650 * 86_400)
    assert not is_far(3650 * 86_400 - 1)
