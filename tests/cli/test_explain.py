"""`arcbeam explain` translates a script's pipelines and shows their plans, without executing them."""

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


def test_explain_prints_plan_as_text(script: Path) -> None:
    result = CliRunner().invoke(main, ["explain", str(script)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("plan 'sums': ")
    assert "grouped *" in result.output


def test_explain_passes_arguments_to_pipeline(script: Path) -> None:
    result = CliRunner().invoke(main, ["explain", "--json", str(script), "--no_fusion", "--job_name=mine"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["name"] == "mine"
    assert all(len(stage["transforms"]) <= 1 for stage in plan["stages"])


def test_script_output_stays_out_of_json(script: Path) -> None:
    script.write_text("print('starting')\n" + SCRIPT + "print('done')\n")
    result = CliRunner().invoke(main, ["explain", "--json", str(script)])
    assert json.loads(result.stdout)["name"] == "sums"
    before, note, after = result.stderr.splitlines()[-3:]
    assert (before, after) == ("starting", "done")
    assert "sums.py" in json.loads(note)["progress"]["message"]


def test_silent_script_gets_no_note(script: Path) -> None:
    script.write_text("print('starting')\n" + SCRIPT)
    assert "sums.py" not in CliRunner().invoke(main, ["explain", str(script)]).stderr


def test_explain_draws_svg(script: Path) -> None:
    file = script.parent / "plan.svg"
    result = CliRunner().invoke(main, ["explain", str(script), "--svg", str(file)])
    assert result.exit_code == 0, result.output
    assert file.read_text().startswith("<svg")
    assert str(file) in result.output


def test_unwritable_picture_is_refused(script: Path) -> None:
    file = script.parent / "none" / "plan.svg"
    result = CliRunner().invoke(main, ["explain", "--json", str(script), "--svg", str(file)])
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert (error["type"], str(file) in error["message"]) == ("SetupError", True)


def test_script_without_pipeline_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "empty.py"
    script.write_text("print('nothing')")
    result = CliRunner().invoke(main, ["explain", "--json", str(script)])
    assert result.exit_code == 1
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert (error["type"], str(script) in error["message"]) == ("SubmissionError", True)


def test_script_that_misses_results_is_explained(script: Path) -> None:
    script.write_text(SCRIPT + "open('/nowhere/result')")
    result = CliRunner().invoke(main, ["explain", str(script)])
    assert result.exit_code == 0, result.output
    assert "FileNotFoundError" in result.stderr
    assert "plan 'sums'" in result.stdout


def test_explain_accepts_and_refuses_as_a_run(script: Path) -> None:
    """Types are inferred as for a run: here, the grouped values have two types."""
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


def test_options_reach_pipeline_created_without_options(script: Path) -> None:
    script.write_text(SCRIPT.replace("options=PipelineOptions(sys.argv[1:])", ""))
    fused, apart = (
        CliRunner().invoke(main, ["explain", "--json", str(script), *more]) for more in ([], ["--no_fusion"])
    )
    assert len(json.loads(fused.stdout)["stages"]) < len(json.loads(apart.stdout)["stages"])
