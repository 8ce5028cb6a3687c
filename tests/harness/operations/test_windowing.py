"""Windows are computed once for all times with the same windows, in a table of limited size."""

from __future__ import annotations

import random
from typing import Any

import pytest
from apache_beam.transforms import window
from apache_beam.transforms.window import WindowFn
from apache_beam.utils.timestamp import Timestamp

from arcbeam.harness.encoding.blocks import Each
from arcbeam.harness.transforms import windowing
from arcbeam.harness.transforms.windowing import WindowAssigner


@pytest.mark.parametrize(
    "windowfn",
    [window.FixedWindows(5, 2), window.SlidingWindows(6, 2, 1), window.Sessions(3), window.GlobalWindows()],
    ids=["fixed", "sliding", "sessions", "global"],
)
@pytest.mark.parametrize("most", [1, 4])
def test_windows_are_correct_when_table_is_full(monkeypatch: pytest.MonkeyPatch, windowfn: Any, most: int) -> None:
    """New times arrive together with times whose windows are known: the table must keep these."""
    monkeypatch.setattr(windowing, "_WINDOWS_MAX", most)
    monkeypatch.setattr(windowing, "_SESSIONS_MAX", most)
    windows, chance = WindowAssigner(windowfn), random.Random(most)
    for size in (1, 2, 3, 8, 20) * 6:
        times = [chance.randrange(40) * 1_000_000 for _ in range(size)]
        found = windows.of(Each(times))
        each = list(found) if type(found) is Each else [found] * size
        contexts = [WindowFn.AssignContext(Timestamp(micros=time)) for time in times]
        assert each == [tuple(windowfn.assign(context)) for context in contexts]
        assert windows.of(times[0]) == each[0]
