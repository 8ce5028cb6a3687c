"""The options and the runner that the pipelines of a script get from the command line."""

from __future__ import annotations

import sys
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.testing.test_pipeline import TestPipeline

from arcbeam import ArcbeamRunner
from arcbeam.cli.scriptoptions import Arguments, pipelines_of_a_script
from arcbeam.errors import InvalidPipelineError
from arcbeam.options import ArcbeamOptions
from tests.golden import check_message


def shards(pipeline: Any) -> int | None:
    found: int | None = pipeline.options.view_as(ArcbeamOptions).shards
    return found


@pytest.fixture(autouse=True)
def argv(monkeypatch: pytest.MonkeyPatch) -> Arguments:
    arguments = Arguments(["script.py", "--shards=3"])
    monkeypatch.setattr(sys, "argv", arguments)
    return arguments


def test_pipeline_without_options_gets_them() -> None:
    with pipelines_of_a_script(["--shards=3", "--spark_conf=a=1", "--spark_conf", "b=2"]):
        p = beam.Pipeline()
    assert type(p.runner) is ArcbeamRunner
    assert shards(p) == 3
    assert p.options.view_as(ArcbeamOptions).spark_conf == ["a=1", "b=2"]


def test_every_kind_of_options_gets_them() -> None:
    with pipelines_of_a_script(["--shards=3"]):
        made = [
            beam.Pipeline(options=PipelineOptions()),
            beam.Pipeline(options=PipelineOptions([])),
            beam.Pipeline(options=PipelineOptions(["--streaming"])),
            beam.Pipeline(options=PipelineOptions.from_dictionary({"shards": 3})),
            beam.Pipeline(argv=["--job_name=mine"]),
            TestPipeline(),
        ]
    assert [shards(p) for p in made] == [3] * len(made)


def test_options_of_script_get_them() -> None:
    with pipelines_of_a_script(["--depth=4", "--shards=3"]):

        class Own(PipelineOptions):  # type: ignore[misc]
            @classmethod
            def _add_argparse_args(cls, parser: Any) -> None:
                parser.add_argument("--depth", type=int, default=1)

        assert beam.Pipeline().options.view_as(Own).depth == 4


def test_options_from_command_line_stay_unchanged() -> None:
    with pipelines_of_a_script(["--shards=3"]):
        options = PipelineOptions()
        options.view_as(ArcbeamOptions).shards = 2
        assert shards(beam.Pipeline(options=options)) == 2


def test_conflicting_option_of_script_is_refused() -> None:
    with pipelines_of_a_script(["--shards=3"]), pytest.raises(InvalidPipelineError) as refused:
        beam.Pipeline(options=PipelineOptions(["--shards=2"]))
    check_message("script-sets-option", str(refused.value))


def test_runner_of_script_is_kept() -> None:
    with pipelines_of_a_script([]):
        for p in (
            beam.Pipeline(runner="DirectRunner"),
            beam.Pipeline(runner="DirectRunner", options=PipelineOptions([])),
            beam.Pipeline(options=PipelineOptions(["--runner=direct"])),
        ):
            assert type(p.runner).__name__ == "SwitchingDirectRunner"


def test_runner_of_command_line_is_default() -> None:
    with pipelines_of_a_script(["--runner=direct"]):
        assert type(beam.Pipeline().runner).__name__ == "SwitchingDirectRunner"
        assert type(beam.Pipeline("DirectRunner").runner).__name__ == "SwitchingDirectRunner"
        with pytest.raises(InvalidPipelineError) as refused:
            beam.Pipeline(ArcbeamRunner())
    check_message("script-sets-runner", str(refused.value))


@pytest.mark.contract("API-01")
def test_runner_option_reaches_pipeline_without_options_by_arcbeam_run_only(argv: Arguments) -> None:
    argv.append("--runner=arcbeam.ArcbeamRunner")
    assert type(beam.Pipeline().runner) is not ArcbeamRunner, "`python script.py --runner=…`, as with any runner"
    assert type(beam.Pipeline(options=PipelineOptions()).runner) is ArcbeamRunner, "which read the command line"
    with pipelines_of_a_script(list(argv)[1:]):
        assert type(beam.Pipeline().runner) is ArcbeamRunner


def test_unread_arguments_are_refused(argv: Arguments) -> None:
    with pipelines_of_a_script(["--shards=3", "--input=x", "y"]):
        with pytest.raises(InvalidPipelineError) as refused:
            beam.Pipeline()
        check_message("script-ignores-arguments", str(refused.value))
        assert argv[1:]  # as a script's own parser does
        assert shards(beam.Pipeline()) == 3


def test_malformed_value_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match=r"--shards: .*'x'"), pipelines_of_a_script(["--shards=x"]):
        pass


def test_beam_is_restored_after_an_error() -> None:
    before = beam.Pipeline.__init__, beam.Pipeline.run, StandardOptions.DEFAULT_RUNNER
    with pytest.raises(ValueError, match="oh"), pipelines_of_a_script([]):
        raise ValueError("oh")
    assert (beam.Pipeline.__init__, beam.Pipeline.run, StandardOptions.DEFAULT_RUNNER) == before
