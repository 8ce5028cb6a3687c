"""A watermark passes strictly earlier moments; the clock reaches a moment when it shows it."""

from __future__ import annotations

import pytest

from arcbeam.engine.watermarks.comparison import due, passed
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp


@pytest.mark.contract("ENG-01", "ENG-04")
@pytest.mark.parametrize(
    ("watermark", "moment", "expected"),
    [
        (Timestamp(9), Timestamp(10), False),
        (Timestamp(10), Timestamp(10), False),
        (Timestamp(11), Timestamp(10), True),
        (MIN_TIMESTAMP, MIN_TIMESTAMP, False),
        (Timestamp(END_OF_GLOBAL_WINDOW + 1), END_OF_GLOBAL_WINDOW, True),
        (Timestamp(MAX_TIMESTAMP - 1), MAX_TIMESTAMP, False),
        (MAX_TIMESTAMP, MAX_TIMESTAMP, True),
    ],
)
def test_watermark_passes_strictly_earlier_moments(watermark: Timestamp, moment: Timestamp, expected: bool) -> None:
    assert passed(watermark, moment) is expected


def test_moment_is_due_when_reached() -> None:
    assert [due(Timestamp(now), Timestamp(10)) for now in (9, 10, 11)] == [False, True, True]
