"""Scripts that are submitted with the folder of a job that has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from click.testing import CliRunner

from arcbeam import ArcbeamRunner
from arcbeam.cli import main
from arcbeam.runner.resume import resume
from arcbeam.store.blobs.errors import IncompatibleStateError
from tests.notes import note, noted

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.contract("END-01", "STORE-05")]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_copied_scripts_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def submit(out: str, factor: int, *more: str, count: bool = False) -> Any:
        arguments = ["--streaming", "--shards=2", f"--checkpoint_dir={state}", *more]
        (tmp_path / out).mkdir(exist_ok=True)
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(arguments))
        numbers = p | beam.Create([1, 2, 3]) | "Times" >> beam.Map(lambda n: n * factor)
        if count:
            numbers = numbers | "Count" >> beam.combiners.Count.Globally()
        _ = numbers | "Write" >> beam.Map(note, str(tmp_path / out))
        return p.run()

    assert submit("one", 10).wait_until_finish() == "DONE"
    left = files(state)
    for out, factor, count, what in (
        ("one", 20, False, "'Times' has other code"),
        ("two", 10, False, "'Write' has other code"),
        ("one", 10, True, "'Count/"),
    ):
        with pytest.raises(IncompatibleStateError, match=what):
            submit(out, factor, count=count).wait_until_finish()
        assert files(state) == left
    # The script restarts with other options, and from the folder alone.
    assert submit("one", 10, "--job_name=again", "--no_fusion", "--micro_batch_seconds=1").wait_until_finish() == "DONE"
    assert resume(str(state)).wait_until_finish() == "DONE"
    assert files(state) == left
    assert sorted(noted(tmp_path / "one")) == [10, 20, 30]
    shown = CliRunner().invoke(main.main, ["status", str(state)])
    assert shown.exit_code == 0, shown.output
    # On request, the other pipeline continues the job: its source has been read.
    assert submit("two", 10, "--force_resume").wait_until_finish() == "DONE"
    assert noted(tmp_path / "two") == []
