"""`arcbeam explain`: a script is translated, not run, and its plan is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from arcbeam.cli.main import main

pytest.importorskip("apache_beam")

SCRIPT = """
import sys
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

def fail(element):
    raise AssertionError("this ran")

with beam.Pipeline(options=PipelineOptions(sys.argv[1:])) as p:
    _ = p | beam.Create([("a", 1)]) | beam.GroupByKey() | "Sum" >> beam.Map(fail)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "sums.py"
    path.write_text(SCRIPT)
    return path


def test_text(script: Path) -> None:
    result = CliRunner().invoke(main, ["explain", str(script)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("plan 'sums': ")
    assert "grouped *" in result.output


def test_json_and_arguments_of_the_pipeline(script: Path) -> None:
    result = CliRunner().invoke(main, ["explain", "--json", str(script), "--no_fusion", "--job_name=mine"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["name"] == "mine"
    assert all(len(stage["transforms"]) <= 1 for stage in plan["stages"])


def test_what_the_script_prints_is_not_our_output(script: Path) -> None:
    script.write_text("print('starting')\n" + SCRIPT + "print('done')\n")
    result = CliRunner().invoke(main, ["explain", "--json", str(script)])
    assert json.loads(result.stdout)["name"] == "sums"
    assert result.stderr.endswith(
        'starting\n{"progress": {"message": "nothing is run; without results, sums.py goes on and prints:"}}\ndone\n'
    )


def test_a_script_that_prints_nothing_afterwards(script: Path) -> None:
    script.write_text("print('starting')\n" + SCRIPT)
    assert "nothing is run" not in CliRunner().invoke(main, ["explain", str(script)]).stderr


def test_picture(script: Path) -> None:
    file = script.parent / "plan.svg"
    result = CliRunner().invoke(main, ["explain", str(script), "--svg", str(file)])
    assert result.exit_code == 0, result.output
    assert file.read_text().startswith("<svg")
    assert str(file) in result.output


def test_a_picture_that_cannot_be_written(script: Path) -> None:
    result = CliRunner().invoke(main, ["explain", str(script), "--svg", str(script.parent / "none" / "plan.svg")])
    assert result.exit_code == 1
    assert "cannot write" in result.stderr


def test_a_script_without_a_pipeline(tmp_path: Path) -> None:
    script = tmp_path / "empty.py"
    script.write_text("print('nothing')")
    result = CliRunner().invoke(main, ["explain", str(script)])
    assert result.exit_code == 1
    assert "ended without running a pipeline" in result.stderr


def test_a_script_that_stumbles_over_missing_results(script: Path) -> None:
    script.write_text(SCRIPT + "open('/nowhere/result')")
    result = CliRunner().invoke(main, ["explain", str(script)])
    assert result.exit_code == 0, result.output
    assert "went on after its pipeline" in result.stderr
    assert "plan 'sums'" in result.stdout


def test_what_runs_is_explained_and_what_is_refused_is_refused(script: Path) -> None:
    """Types are inferred as for a run: here, the values of what is grouped are of two types."""
    script.write_text(
        "import sys\n"
        "import apache_beam as beam\n"
        "from apache_beam.options.pipeline_options import PipelineOptions\n"
        "with beam.Pipeline(options=PipelineOptions(sys.argv[1:])) as p:\n"
        "    one = p | beam.Create([1])\n"
        "    a, b = one | 'a' >> beam.Map(lambda x: ('k', 1)), one | 'b' >> beam.Map(lambda x: ('k', 'x'))\n"
        "    {'a': a, 'b': b} | beam.CoGroupByKey()\n"
    )
    result = CliRunner().invoke(main, ["explain", str(script)])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, ["explain", str(script), "--shards=0"])
    assert result.exit_code == 1
    assert "--shards=0 (at least 1)" in result.stderr


def test_options_reach_a_pipeline_that_is_made_without(script: Path) -> None:
    script.write_text(SCRIPT.replace("options=PipelineOptions(sys.argv[1:])", ""))
    fused, apart = (
        CliRunner().invoke(main, ["explain", "--json", str(script), *more]) for more in ([], ["--no_fusion"])
    )
    assert len(json.loads(fused.stdout)["stages"]) < len(json.loads(apart.stdout)["stages"])
