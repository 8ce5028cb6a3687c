"""`arcbeam explain`: runs a script, but translates its pipelines instead of executing them, and shows their plans.

Owns the capture of pipelines. Must not know how a plan is made (`translate`) or drawn (`explain`). Imports Beam only
when called, so that the command line starts quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from arcbeam.cli.script import print_error, run_script
from arcbeam.cli.scriptoptions import pipelines_of_a_script
from arcbeam.console.output import CommandOutput, TextOutput
from arcbeam.errors import ArcbeamError, SetupError, SubmissionError

if TYPE_CHECKING:
    from arcbeam.model.plan import Plan


@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw the plan into this SVG file instead."
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def explain(out: CommandOutput, script: Path, svg: Path | None, arguments: tuple[str, ...]) -> None:
    """Show the plan of each pipeline in SCRIPT: stages, exchanges, coders, state. No pipeline is executed.

    SCRIPT itself runs; its output goes to stderr. ARGUMENTS are passed to SCRIPT; put a -- before them if one is
    also an option of this command, such as --json.
    """
    plans, error = plans_of(
        script,
        arguments,
        lambda: out.progress(f"the pipeline was not executed; {script.name} continues without its results and prints:"),
    )
    if error is not None:
        if not plans and isinstance(error, Exception) and not isinstance(error, ArcbeamError):
            print_error(error, script)
            click.get_current_context().exit(1)
        if isinstance(error, ArcbeamError) or not plans:
            raise error
        out.progress(f"the script continued without the results of its pipeline, and ended with {error!r}")
    if not plans:
        raise SubmissionError(f"{script} ended without running a pipeline", "check its arguments")
    from arcbeam.explain import as_json, as_svg, as_text

    for number, plan in enumerate(plans):
        if svg is not None:
            path = svg if number == 0 else svg.with_stem(f"{svg.stem}-{number + 1}")
            try:
                path.write_text(as_svg(plan), encoding="utf-8")
            except OSError as failure:
                raise SetupError(f"cannot write {path}: {failure}", "choose another file") from failure
            out.text(f"wrote {path}", plan=plan.name, svg=str(path))
        elif isinstance(out, TextOutput):
            out.text(("\n" if number else "") + as_text(plan).rstrip("\n"))
        else:
            out.record(as_json(plan))


def plans_of(
    script: Path, arguments: tuple[str, ...] = (), note: Callable[[], None] = lambda: None
) -> tuple[list[Plan], BaseException | None]:
    """Run a script as `__main__`, where each `Pipeline.run` only translates.

    Args:
        script: the file.
        arguments: of the script.
        note: called once, before the script prints something after a pipeline.

    Returns:
        The plans, in the order of the script's pipelines, and the script's exception, if any. A pipeline that was not
        executed has no results, so the script may fail after it. An exit with status 0 or None is not an error.
    """
    plans: list[Plan] = []
    argv, path = sys.argv, list(sys.path)
    printed: Any = _Printed(plans, note)
    try:
        # The script's output is kept out of the command's, which may be JSON for a program.
        with pipelines_of_a_script(arguments), _capturing(plans, script.stem), redirect_stdout(printed):
            run_script(script, list(arguments))
    except SystemExit as exit:
        return plans, None if exit.code in (0, None) else exit
    except Exception as error:
        return plans, error
    finally:
        sys.argv, sys.path[:] = argv, path
    return plans, None


class _Printed:
    """Standard error, as a script's standard output.

    Args:
        plans: of the script so far.
        note: called when the script first prints something after a pipeline.
    """

    def __init__(self, plans: list[Plan], note: Callable[[], None]) -> None:
        self._plans = plans
        self._note: Callable[[], None] | None = note

    def write(self, text: str) -> int:
        if self._plans and self._note is not None:
            note, self._note = self._note, None
            note()
        return sys.stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


@contextmanager
def _capturing(plans: list[Plan], default_name: str) -> Iterator[None]:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

    from arcbeam.options import ArcbeamOptions
    from arcbeam.translate import ParsedPipeline
    from arcbeam.translate.proto import pipeline_proto, plan_of

    class Translated(PipelineResult):  # type: ignore[misc]  # Beam is untyped
        """The result of a pipeline that was not executed: done, without metrics."""

        def wait_until_finish(self, duration: int | None = None) -> Any:
            return self.state

    class PlanRunner(PipelineRunner):  # type: ignore[misc]
        """Keeps the plan of each pipeline."""

        def is_fnapi_compatible(self) -> bool:
            return True

        def run_pipeline(self, pipeline: Any, options: Any) -> Translated:
            ours = options.view_as(ArcbeamOptions)
            name = options.view_as(GoogleCloudOptions).job_name or default_name
            plans.append(plan_of(ParsedPipeline(pipeline_proto(pipeline, options)), ours, name=name))
            return Translated(PipelineState.DONE)

    run = beam.Pipeline.run

    def translate_only(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.runner = PlanRunner()
        return run(self, *args, **kwargs)

    # SUBTLE: replaces the method, not the --runner argument: a script may choose its runner in its own way.
    beam.Pipeline.run = translate_only
    try:
        yield
    finally:
        beam.Pipeline.run = run
