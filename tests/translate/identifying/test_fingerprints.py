"""Fingerprints of transforms: equal for two submissions of one script, different where the script changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.translate.identifying import resubmitted

pytestmark = pytest.mark.contract("END-01", "STORE-05")

SCRIPT = Path(resubmitted.__file__)


def submitted(script: Path, seed: int, *arguments: str) -> Any:
    """Return the fingerprints of the script's pipeline, from a process with its own hashes."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    run = subprocess.run(
        [sys.executable, str(script), *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


def test_submissions_differ_only_where_the_script_does(tmp_path: Path) -> None:
    first = submitted(SCRIPT, 1)
    source = SCRIPT.read_text()
    moved = tmp_path / "release 2" / "job.py"
    moved.parent.mkdir()
    moved.write_text(source.replace("def build(", "# A comment, and lines that move all others.\n\n\ndef build("))
    assert submitted(moved, 2, "--spark_master=local[1]") == first
    changes = {
        '"count", sum': ('"count", max', {"ParDo(Keep)"}),
        "n < 2": ("n < 3", {"Side"}),
        '"b", 2': ('"b", 3', {"Pairs/FlatMap(<lambda>)"}),
        '{"q", "w", "e"}': ('{"q", "w", "f"}', {"ParDo(Keep)"}),
        "FixedWindows(10)": ("FixedWindows(20)", {"WindowInto(WindowIntoFn)", "CombinePerKey(sum)/GroupByKey"}),
        "/somewhere/out": ("/somewhere/else", set[str]()),
        "beam.Map(str)": ("beam.Map(repr)", {"Format"}),
        "now + 30": ("now + 30 * 86400", {"PeriodicImpulse/ImpulseElement/FlatMap(<lambda>)"}),
    }
    changed = source
    for old, (new, _) in changes.items():
        assert changed.count(old) == 1, old
        changed = changed.replace(old, new)
    moved.write_text(changed)
    other = submitted(moved, 3)
    assert other.keys() == first.keys()
    differing = {name for name in first if other[name] != first[name]}
    assert differing >= set().union(*(names for _, names in changes.values()))
    assert any(name.startswith("WriteToText/") for name in differing)
    assert not {"Seconds/FlatMap(<lambda>)", "Times/FlatMap(<lambda>)", "Flatten"} & differing
