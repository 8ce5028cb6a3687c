"""What the pipelines of a script get from the command that runs it: a runner, and the options of the command line.

Owns the rules for both; `run` and `explain` share them. Knows nothing of what a runner does. Imports Beam only when
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
"""What runs a pipeline that names no runner."""


class Arguments(list[str]):
    """A script's `sys.argv`, which knows whether anybody has looked at more than its first entry (`read`)."""

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
class Seen:
    """What became of a script's pipelines.

    Attributes:
        run: how many were run.
        elsewhere: the runners, other than the default one, that the script itself chose.
    """

    run: int = 0
    elsewhere: list[str] = field(default_factory=list)


@contextmanager
def pipelines_of_a_script(arguments: Sequence[str]) -> Iterator[Seen]:
    """Inside, pipelines that name no runner run on arcbeam, and every pipeline gets the options among the arguments.

    A pipeline whose options were made from the command line is left alone: what the script has made of them is its own.
    In others, what the arguments name is set. A pipeline is refused where the script has set such an option to another
    value, and where there are arguments that nobody looks at.

    Args:
        arguments: of the script; a `--runner` among them is the default instead of arcbeam.

    Raises:
        InvalidPipelineError: an argument's value cannot be read; in the body: an argument would not reach a pipeline.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    seen, named = Seen(), _given(arguments).values.get("runner")
    made, run, default = beam.Pipeline.__init__, beam.Pipeline.run, StandardOptions.DEFAULT_RUNNER

    @functools.wraps(made)
    def make(self: Any, runner: Any = None, options: Any = None, argv: Any = None, display_data: Any = None) -> None:
        if options is None and (argv is None or isinstance(argv, list)):
            options = PipelineOptions(argv or [])
        if isinstance(options, PipelineOptions):
            _reach(options, arguments, runner)
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
class _Given:
    """What arguments say.

    Attributes:
        values: of options that a view of Beam's, ours or the script's knows, by name.
        views: the view that knows each.
        flags: how each is written.
        defaults: of each.
        unknown: arguments that belong to none.
    """

    values: dict[str, Any]
    views: dict[str, type[Any]]
    flags: dict[str, str]
    defaults: dict[str, Any]
    unknown: list[str]


def _given(arguments: Sequence[str]) -> _Given:
    import argparse

    from apache_beam.options import pipeline_options

    from arcbeam import options as ours

    assert ours  # its view is known from here on

    class Parser(pipeline_options._BeamArgumentParser):  # type: ignore[misc]  # Beam is untyped
        def error(self, message: str) -> NoReturn:
            raise InvalidPipelineError(f"on the command line: {message}")

    parser = Parser(allow_abbrev=False, add_help=False)
    views: dict[str, type[Any]] = {}
    # As Beam does it: of views with one name, which a script run twice leaves behind, the first.
    for view in {str(view): view for view in reversed(pipeline_options.PipelineOptions.__subclasses__())}.values():
        view._add_argparse_args(parser)
        for action in parser._actions:
            views.setdefault(action.dest, view)
    defaults = {action.dest: action.default for action in parser._actions}
    flags = {action.dest: action.option_strings[0] for action in parser._actions if action.option_strings}
    for action in parser._actions:
        action.default, action.required = argparse.SUPPRESS, False
    values, unknown = parser.parse_known_args(list(arguments))
    return _Given(vars(values), views, flags, defaults, unknown)


def _reach(options: Any, arguments: Sequence[str], runner: Any) -> None:
    """Sets in a pipeline's options what the command line says; see `pipelines_of_a_script`."""
    from apache_beam.options.value_provider import RuntimeValueProvider

    given = _given(arguments)
    if given.unknown and isinstance(sys.argv, Arguments) and not sys.argv.read:
        raise InvalidPipelineError(
            f"no option of Beam or arcbeam, and the script does not look at its arguments: {' '.join(given.unknown)}",
            "leave out what it does not know",
        )
    from_command_line = _given(sys.argv[1:] if options._flags is None else options._flags).values
    refused = []
    for name, value in given.values.items():
        if name == "runner" and runner is not None:
            if not _same(runner, value):
                refused.append(f"--runner={value} (the script says {_name(runner)})")
            continue
        if from_command_line.get(name) == value:
            continue
        view = options.view_as(given.views[name])
        at_present = getattr(view, name)
        if at_present in (given.defaults[name], None) or isinstance(at_present, RuntimeValueProvider):
            setattr(view, name, value)
        elif at_present != value:
            refused.append(f"{given.flags.get(name, name)} (the script says {at_present!r})")
    if refused:
        raise InvalidPipelineError(
            f"given on the command line, but the script itself sets it: {', '.join(refused)}",
            "leave it out here; or make the script's options with PipelineOptions(), which takes the command line's",
        )


def _name(runner: Any) -> str:
    return runner if isinstance(runner, str) else type(runner).__qualname__


def _same(one: Any, other: Any) -> bool:
    """Whether two runners, or names of such, are of one class; Beam takes `direct` for `DirectRunner`."""
    short, other_short = (_name(runner).rpartition(".")[2].lower().removesuffix("runner") for runner in (one, other))
    return short == other_short
