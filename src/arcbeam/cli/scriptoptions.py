"""Gives the pipelines of a script a default runner and the options of the command line.

Owns the rules for both; `run` and `explain` share them. Must not know what a runner does. Imports Beam only when
called, so that the command line starts quickly.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from arcbeam.errors import InvalidPipelineError

RUNNER = "arcbeam.ArcbeamRunner"
"""The runner of a pipeline that names no runner."""


class Arguments(list[str]):
    """A script's `sys.argv`. `read` is True once the script has read more than its first entry."""

    read = False

    def __getitem__(self, index: Any) -> Any:
        self.read = self.read or index != 0
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[str]:
        self.read = True
        return super().__iter__()

    def __contains__(self, value: object) -> bool:
        self.read = True
        return super().__contains__(value)


@dataclass(slots=True)
class ScriptPipelines:
    """The pipelines that a script has run.

    Attributes:
        run: their number.
        elsewhere: the other runners that the script itself chose.
    """

    run: int = 0
    elsewhere: list[str] = field(default_factory=list)


@contextmanager
def pipelines_of_a_script(arguments: Sequence[str]) -> Iterator[ScriptPipelines]:
    """Run pipelines of the body without a runner on arcbeam, and set the options in the arguments on every pipeline.

    Options that the script made from the command line stay unchanged: the script may have changed them on purpose. A
    pipeline is refused if the script has set an option in the arguments to another value. It is also refused if there
    are unknown arguments that the script does not read.

    Args:
        arguments: of the script; a `--runner` in them is the default instead of arcbeam.

    Raises:
        InvalidPipelineError: an argument's value cannot be read. In the body: an argument would have no effect.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    seen, named = ScriptPipelines(), _given(arguments).values.get("runner")
    made, run, default = beam.Pipeline.__init__, beam.Pipeline.run, StandardOptions.DEFAULT_RUNNER

    @functools.wraps(made)
    def make(self: Any, runner: Any = None, options: Any = None, argv: Any = None, display_data: Any = None) -> None:
        if options is None and (argv is None or isinstance(argv, list)):
            options = PipelineOptions(argv or [])
        if isinstance(options, PipelineOptions):
            _apply(options, arguments, runner)
        made(self, runner=runner, options=options, argv=argv, display_data=display_data)

    @functools.wraps(run)
    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.run += 1
        if named is None and not _same(self.runner, RUNNER):
            seen.elsewhere.append(type(self.runner).__qualname__)
        return run(self, *args, **kwargs)

    StandardOptions.DEFAULT_RUNNER = named or RUNNER
    beam.Pipeline.__init__, beam.Pipeline.run = make, count
    try:
        yield seen
    finally:
        beam.Pipeline.__init__, beam.Pipeline.run = made, run
        StandardOptions.DEFAULT_RUNNER = default


@dataclass(frozen=True, slots=True)
class _ParsedArguments:
    """Parsed arguments.

    Attributes:
        values: of the options that a view of Beam, arcbeam or the script defines, by name.
        views: the view that defines each option.
        flags: the spelling of each option on the command line.
        defaults: of each option.
        unknown: arguments that belong to no option.
    """

    values: dict[str, Any]
    views: dict[str, type[Any]]
    flags: dict[str, str]
    defaults: dict[str, Any]
    unknown: list[str]


def _given(arguments: Sequence[str]) -> _ParsedArguments:
    import argparse

    from apache_beam.options import pipeline_options

    from arcbeam import options as ours

    assert ours  # the import makes its view known

    class Parser(pipeline_options._BeamArgumentParser):  # type: ignore[misc]  # Beam is untyped
        def error(self, message: str) -> NoReturn:
            raise InvalidPipelineError(f"on the command line: {message}")

    parser = Parser(allow_abbrev=False, add_help=False)
    views: dict[str, type[Any]] = {}
    # As in Beam: a script that runs twice defines a view twice; the first of views with one name counts.
    for view in {str(view): view for view in reversed(pipeline_options.PipelineOptions.__subclasses__())}.values():
        view._add_argparse_args(parser)
        for action in parser._actions:
            views.setdefault(action.dest, view)
    defaults = {action.dest: action.default for action in parser._actions}
    flags = {action.dest: action.option_strings[0] for action in parser._actions if action.option_strings}
    for action in parser._actions:
        action.default, action.required = argparse.SUPPRESS, False
    values, unknown = parser.parse_known_args(list(arguments))
    return _ParsedArguments(vars(values), views, flags, defaults, unknown)


def _apply(options: Any, arguments: Sequence[str], runner: Any) -> None:
    """Set the options of the command line on a pipeline; see `pipelines_of_a_script`."""
    from apache_beam.options.value_provider import RuntimeValueProvider

    given = _given(arguments)
    if given.unknown and isinstance(sys.argv, Arguments) and not sys.argv.read:
        raise InvalidPipelineError(
            f"unknown arguments, and the script does not read its arguments: {' '.join(given.unknown)}",
            "remove them, or correct their spelling",
        )
    from_command_line = _given(sys.argv[1:] if options._flags is None else options._flags).values
    refused = []
    for name, value in given.values.items():
        if name == "runner" and runner is not None:
            if not _same(runner, value):
                refused.append(f"--runner={value} (the script sets {_name(runner)})")
            continue
        if from_command_line.get(name) == value:
            continue
        view = options.view_as(given.views[name])
        at_present = getattr(view, name)
        if at_present in (given.defaults[name], None) or isinstance(at_present, RuntimeValueProvider):
            setattr(view, name, value)
        elif at_present != value:
            refused.append(f"{given.flags.get(name, name)} (the script sets {at_present!r})")
    if refused:
        raise InvalidPipelineError(
            f"the command line and the script set different values: {', '.join(refused)}",
            "omit the option on the command line, or create the script's options with PipelineOptions(), which reads "
            "the command line",
        )


def _name(runner: Any) -> str:
    return runner if isinstance(runner, str) else type(runner).__qualname__


def _same(one: Any, other: Any) -> bool:
    """Return whether two runners, or runners' names, are of one class; in Beam `direct` names `DirectRunner`."""
    short, other_short = (_name(runner).rpartition(".")[2].lower().removesuffix("runner") for runner in (one, other))
    return short == other_short
