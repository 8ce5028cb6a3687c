"""The range of event time is Beam's."""

from __future__ import annotations

from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils import timestamp as beam

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, shifted


def test_the_range_is_that_of_beam() -> None:
    assert beam.MIN_TIMESTAMP.micros == MIN_TIMESTAMP
    assert beam.MAX_TIMESTAMP.micros == MAX_TIMESTAMP
    assert GlobalWindow().max_timestamp().micros == END_OF_GLOBAL_WINDOW


def test_a_shift_stays_within_the_range() -> None:
    assert shifted(MAX_TIMESTAMP, Duration(1)) == MAX_TIMESTAMP
    assert shifted(MIN_TIMESTAMP, Duration(-1)) == MIN_TIMESTAMP
    assert shifted(MIN_TIMESTAMP, Duration(5)) == MIN_TIMESTAMP + 5
