"""The range of event time is Beam's."""

from __future__ import annotations

import pytest
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils import timestamp as beam

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, behind_shown, shifted


def test_the_range_is_that_of_beam() -> None:
    assert beam.MIN_TIMESTAMP.micros == MIN_TIMESTAMP
    assert beam.MAX_TIMESTAMP.micros == MAX_TIMESTAMP
    assert GlobalWindow().max_timestamp().micros == END_OF_GLOBAL_WINDOW


def test_a_shift_stays_within_the_range() -> None:
    assert shifted(MAX_TIMESTAMP, Duration(1)) == MAX_TIMESTAMP
    assert shifted(MIN_TIMESTAMP, Duration(-1)) == MIN_TIMESTAMP
    assert shifted(MIN_TIMESTAMP, Duration(5)) == MIN_TIMESTAMP + 5


@pytest.mark.contract("OPS-02")
@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5.0, "0.0 s behind"),
        (1.55, "1.6 s behind"),
        (119.0, "119.0 s behind"),
        (120.0, "2 min behind"),
        (7200.0, "2 h behind"),
        (86_400.0 * 365 * 9, "3,285 days behind"),
        (1.79e9, "far from the clock"),
    ],
)
def test_distance_is_shown_in_readable_units(seconds: float, shown: str) -> None:
    assert behind_shown(seconds) == shown
