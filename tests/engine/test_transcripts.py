"""The SDK's transcripts of triggers, and ours, told to our grouping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam
import pytest

from tests.engine.transcripts import read, tell

SDK = Path(apache_beam.__file__).parent / "testing" / "data" / "trigger_transcripts.yaml"
OURS = Path(__file__).parent / "transcripts.yaml"


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


def test_the_whole_file_was_told() -> None:
    assert len(specs(SDK)) == SDK.read_text(encoding="utf-8").count("\nname: ")


@pytest.mark.contract("ENG-10", "ENG-11")
@pytest.mark.parametrize("spec", specs(OURS))
def test_transcript(spec: dict[str, Any]) -> None:
    tell(spec)
