"""Text of window functions in errors."""

from __future__ import annotations

import pytest
from apache_beam.transforms.window import FixedWindows, GlobalWindows, Sessions, SlidingWindows, WindowFn

from arcbeam.io.windowfns import describe


class Described(FixedWindows):  # type: ignore[misc]  # Beam is untyped
    def __repr__(self) -> str:
        return "own text"


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (FixedWindows(60), "FixedWindows(size=60)"),
        (FixedWindows(3600, 900), "FixedWindows(size=3600, offset=900)"),
        (SlidingWindows(60, 0.5), "SlidingWindows(size=60, period=0.5)"),
        (FixedWindows(1_000_000.000001), "FixedWindows(size=1000000.000001)"),
        (Sessions(5), "Sessions(gap_size=5)"),
        (GlobalWindows(), "GlobalWindows()"),
        (Described(60), "own text"),
    ],
)
def test_text_is_constructor_call(fn: WindowFn, text: str) -> None:
    assert describe(fn) == text
