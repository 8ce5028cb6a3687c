"""The SDK's transcripts of triggers, and ours, played with our grouping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam
import pytest

from tests.engine.grouping.transcripts import read, tell

SDK = Path(apache_beam.__file__).parent / "testing" / "data" / "trigger_transcripts.yaml"
OURS = Path(__file__).parent / "transcripts.yaml"
STORIES = [str(spec) for spec in read(OURS)]


def specs(path: Path) -> list[Any]:
    return [pytest.param(spec, id=f"{n}-{spec['name']}") for n, spec in enumerate(read(path))]


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize("spec", specs(SDK))
def test_transcript_of_the_sdk(spec: dict[str, Any]) -> None:
    if "error" in spec:
        with pytest.raises(AssertionError, match=spec["error"]):
            tell(spec)
    else:
        tell(spec)


def test_whole_transcript_file_was_played() -> None:
    assert len(specs(SDK)) == SDK.read_text(encoding="utf-8").count("\nname: ")


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize(
    "piece",
    [
        *("GlobalWindows", "FixedWindows", "SlidingWindows", "Sessions", "Days", "Months", "Years"),
        *("Shifts", "Clumps", "Visits"),
        *("Default", "AfterWatermark", "early=", "late=", "AfterCount", "AfterProcessingTime"),
        *("AfterSynchronizedProcessingTime", "AfterAll", "AfterAny", "AfterEach", "Repeatedly", "OrFinally"),
        *("Always", "Never"),
        *("'accumulation_mode': 'accumulating'", "'accumulation_mode': 'discarding'"),
        *("'closing_behavior': 'EMIT_ALWAYS'", "'closing_behavior': 'EMIT_IF_NONEMPTY'"),
        *("'on_time_behavior': 'FIRE_IF_NONEMPTY'", "'allowed_lateness'", "'final': True", "'final': False"),
        *("OUTPUT_AT_EARLIEST", "OUTPUT_AT_LATEST", "'nonspeculative_index'", "'first': False"),
        *("'early': True", "'on_time': True", "'late': True", "'reason': 'closed'", "'reason': 'expired'"),
    ],
)
def test_each_piece_has_a_transcript(piece: str) -> None:
    assert any(piece in event_log for event_log in STORIES)


@pytest.mark.contract("ENG-10", "ENG-11")
@pytest.mark.parametrize("spec", specs(OURS))
def test_transcript(spec: dict[str, Any]) -> None:
    tell(spec)
