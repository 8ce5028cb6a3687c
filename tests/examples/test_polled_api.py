"""A polled API: each record once, in the window of its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.polled_api import EVERY, STATIONS, Feed, main, measurements


def test_api_returns_past_records_after_position() -> None:
    whole = measurements(Feed(0.0, 10.0), 0)
    assert [at for at, _, _ in whole] == pytest.approx([n * EVERY for n in range(100)])
    assert measurements(Feed(0.0, 10.0), 97) == whole[97:]
    assert measurements(Feed(1e12, 2e12), 0) == []


@pytest.mark.contract("API-01", "SDF-04", "SDF-06")
@pytest.mark.usefixtures("spark")
def test_each_second_has_its_means(tmp_path: Path) -> None:
    options = ["--runner=arcbeam.ArcbeamRunner", "--streaming", f"--output={tmp_path}"]
    assert main([*options, "--seconds=3"]) == 0
    names = [file.name.split("-") for file in tmp_path.iterdir()]
    seconds = sorted({int(second) for second, _ in names})
    assert seconds == list(range(seconds[0], seconds[0] + len(seconds)))
    assert 3 <= len(seconds) <= 4
    for second in seconds[1:-1]:
        assert {station for at, station in names if int(at) == second} == {f"{each}.txt" for each in STATIONS}
    assert all(9 <= float(file.read_text()) <= 11 for file in tmp_path.iterdir())
