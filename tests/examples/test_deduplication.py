"""Orders that arrive several times are counted once."""

from __future__ import annotations

from pathlib import Path

import pytest
from apache_beam.utils.timestamp import Timestamp

from examples.deduplication import EVERY, main, sent


@pytest.mark.contract("API-01", "ENG-12")
@pytest.mark.usefixtures("spark")
def test_each_order_is_counted_once(tmp_path: Path) -> None:
    options = ["--runner=arcbeam.ArcbeamRunner", "--streaming", f"--output={tmp_path}"]
    assert main([*options, "--seconds=3"]) == 0
    counts = {int(file.stem): int(file.read_text()) for file in tmp_path.iterdir()}
    begin = min(counts)
    moments = [Timestamp(begin + n * EVERY) for n in range(round(3 / EVERY))]
    assert sum(counts.values()) == len({id for at in moments for id, _ in sent(at)})
    assert len(counts) == 3
