"""One spelling: pipeline options have underscores, options of commands hyphens; both are accepted in both places."""

from __future__ import annotations

import argparse
from typing import Any

import apache_beam as beam
import click
import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from arcbeam.cli.main import main
from arcbeam.cli.scriptoptions import pipelines_of_a_script
from arcbeam.options import ArcbeamOptions, given_as

_VALUES: dict[Any, str] = {int: "7", float: "7.5", None: "a"}


def _actions() -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    ArcbeamOptions._add_argparse_args(parser)
    return parser._actions


def _argument(action: argparse.Action, spelling: str) -> str:
    return spelling if action.nargs == 0 else f"{spelling}={_VALUES[action.type]}"


def _options_of_commands() -> list[tuple[str, click.Option]]:
    return [
        (name, option)
        for name, command in main.commands.items()
        for option in command.params
        if isinstance(option, click.Option)
    ]


@pytest.mark.parametrize("action", _actions(), ids=lambda action: action.dest)
def test_pipeline_option_is_accepted_with_hyphens(action: argparse.Action) -> None:
    assert action.dest == action.option_strings[0].removeprefix("--")
    assert "-" not in action.dest
    values = [
        getattr(PipelineOptions([_argument(action, spelling)]).view_as(ArcbeamOptions), action.dest)
        for spelling in (f"--{action.dest}", f"--{action.dest.replace('_', '-')}")
    ]
    assert values[0] == values[1] != action.default


@pytest.mark.parametrize(("command", "option"), _options_of_commands(), ids=lambda each: getattr(each, "name", each))
def test_command_option_is_accepted_with_underscores(command: str, option: click.Option) -> None:
    spellings = [spelling for spelling in option.opts if spelling.startswith("--")]
    assert not any("_" in spelling for spelling in spellings)
    for spelling in spellings:
        values = ["--" + spelling[2:].replace("-", "_")]
        if not option.is_flag:
            values.append(__file__ if isinstance(option.type, click.Path) else "7")
        found, rest, _ = _parser(command).parse_args(args=values)
        assert option.name in found
        assert rest == []


def _parser(command: str) -> Any:
    group = click.Context(main, info_name="arcbeam", **main.context_settings)
    each = main.commands[command]
    return each.make_parser(click.Context(each, parent=group, info_name=command, **each.context_settings))


def test_resume_has_the_words_of_pipeline_options() -> None:
    known = PipelineOptions.from_dictionary({}).get_all_options().keys()
    firsts = [option.opts[0] for command, option in _options_of_commands() if command == "resume"]
    assert {"--job-name", "--from-savepoint", "--stage-mapping", "--force-resume"} <= set(firsts)
    others = {first for first in firsts if first.removeprefix("--").replace("-", "_") not in known}
    assert others <= {"--json", "-v"}, "options without a pipeline option of the same name"


def test_options_after_a_folder_are_accepted_with_hyphens() -> None:
    found = given_as(["--spark-master=local[2]", "--job-name=a-b", "--s3_region-name=eu-1"], "", (), "", "")
    assert found == {"spark_master": "local[2]", "job_name": "a-b", "s3_region_name": "eu-1"}


def test_options_of_a_script_are_accepted_with_hyphens() -> None:
    with pipelines_of_a_script(["--spark-conf=a=1", "--spark_conf=b=2", "--job_name=mine"]):
        options = beam.Pipeline().options
    assert options.view_as(ArcbeamOptions).spark_conf == ["a=1", "b=2"]
    assert options.view_as(GoogleCloudOptions).job_name == "mine"
