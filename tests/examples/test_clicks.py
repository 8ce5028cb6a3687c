"""Views of ads, each once, with their clicks or alone; clicks, each counted in time or kept as late."""

from __future__ import annotations

from pathlib import Path

import pytest
from apache_beam.utils.timestamp import Timestamp

from examples.clicks import EVERY, main, reported


@pytest.mark.contract("WM-01", "WM-05", "WM-08", "WM-09")
@pytest.mark.usefixtures("spark")
def test_each_view_is_output_once_and_clicks_counted(tmp_path: Path) -> None:
    options = ["--runner=arcbeam.ArcbeamRunner", "--streaming", f"--output={tmp_path}"]
    assert main([*options, "--seconds=4"]) == 0
    begin = _begin(tmp_path)
    events = [event for n in range(round(4 / EVERY)) for event in reported(Timestamp(begin + n * EVERY))]
    ads = {file.name: file.read_text().strip() for file in tmp_path.glob("ad-*")}
    assert set(ads) == {event.ad for event in events if event.kind == "view"}
    clicks = {event.ad: event.at for event in events if event.kind == "click"}
    assert {ad for ad, line in ads.items() if line == "clicked"} <= set(clicks)
    counted = sum(int(file.read_text()) for file in tmp_path.glob("second-*"))
    assert counted + len(list(tmp_path.glob("late-*"))) == len(clicks)


def _begin(folder: Path) -> int:
    """Return when the job began, from its first file."""
    return int((folder / "began").read_text())
