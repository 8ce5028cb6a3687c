"""The command line: `arcbeam <command>`, text for people and `--json` for programs.

Owns the commands' names, arguments and exit codes: 0 well, 1 failed with a message, 2 wrong usage, 130 ended by Ctrl-C,
143 by SIGTERM.
Each command is one function; it imports what it needs inside, so that `arcbeam doctor` is quick and works when Beam or
Spark is missing.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from arcbeam.cli import control
from arcbeam.cli import server as job_commands
from arcbeam.cli.explain import explain
from arcbeam.cli.inspect import inspect
from arcbeam.cli.parts import parts
from arcbeam.cli.savepoints import savepoints
from arcbeam.cli.script import run_script, tell
from arcbeam.cli.status import status
from arcbeam.console.output import JsonOutput, Output, TextOutput
from arcbeam.errors import ArcbeamError, JobCancelledError

if TYPE_CHECKING:
    from arcbeam.jobs.execution import ExecutorFactory

_LOG = logging.getLogger("arcbeam.cli")

_INTERRUPTED = 130
"""By custom of shells: 128, and the number of SIGINT."""


def speaks(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command `--json`, an `Output` as its first argument, and exit codes for errors of ours and Ctrl-C.

    `--json` may stand before or after the command's name.
    """

    @click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
    @click.pass_context
    @functools.wraps(command)
    def with_output(context: click.Context, /, *args: Any, as_json: bool, **kwargs: Any) -> None:
        out: Output = JsonOutput() if as_json or context.obj else TextOutput()
        logging.getLogger().addFilter(_is_of_use)
        try:
            command(out, *args, **kwargs)
        except ArcbeamError as error:
            out.error(error)
            context.exit(1)
        except KeyboardInterrupt:
            # What was running has been cancelled on the interrupt's way up here, what was asked for is withdrawn.
            out.error(JobCancelledError("interrupted"))
            context.exit(_INTERRUPTED)

    return with_output


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]  # of whatever stderr is
    """Lines of their own on a terminal, too, on which a progress line may stand."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Handler`."""
        return ("\r\x1b[K" if self.stream.isatty() else "") + super().format(record)


def _verbose(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """Has our loggers speak from INFO on, whatever becomes of others.

    They have a handler of their own: what the script says of the root logger holds for all else as before.
    """
    if not wanted:
        return
    logger, handler = logging.getLogger("arcbeam"), _Lines()
    level, propagates = logger.level, logger.propagate

    def as_before() -> None:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates

    context.call_on_close(as_before)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


VERBOSE = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_verbose,
    help="Say where it stands on stderr: of a streaming job a line a micro-batch, the port of --metrics_address=0.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="arcbeam", prog_name="arcbeam")
@click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
@click.pass_context
def main(context: click.Context, as_json: bool) -> None:
    """Apache Beam pipelines on Apache Spark, in Python, through PySpark."""
    context.obj = as_json


@main.command()
@speaks
def doctor(out: Output) -> None:
    """Check Python, Java, Spark, Beam, memory and disk; say what to do for each that is not right."""
    from arcbeam.cli.doctor import checks

    found = checks()
    rows = [dataclasses.asdict(check) for check in found]
    if isinstance(out, TextOutput):
        out.table(
            ["", "check", "found"], [{"": "ok" if c.ok else "NO", "check": c.name, "found": c.found} for c in found]
        )
        for check in found:
            if not check.ok:
                out.text(f"\n{check.name}: {check.remedy}")
    else:
        out.table(["name", "ok", "found", "remedy"], rows)
    if not all(check.ok for check in found):
        click.get_current_context().exit(1)


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@VERBOSE
@speaks
def run(out: Output, script: Path, arguments: tuple[str, ...]) -> None:
    """Run the pipelines in SCRIPT on Spark: as `python SCRIPT ARGUMENTS`, with arcbeam as the default runner.

    Pipeline options among ARGUMENTS reach every pipeline, also one made without options. A pipeline whose runner the
    script names runs there, and a line says so; a --runner among ARGUMENTS is the default instead of arcbeam.
    """
    from arcbeam.cli.scriptoptions import pipelines_of_a_script

    try:
        with pipelines_of_a_script(arguments) as pipelines:
            run_script(script, list(arguments))
    except ArcbeamError:
        raise
    except Exception as error:
        tell(error, script)
        click.get_current_context().exit(1)
    if not pipelines.run:
        _LOG.warning("%s ended without running a pipeline", script)
    for runner in dict.fromkeys(pipelines.elsewhere):
        _LOG.warning("not run on arcbeam, because %s names a runner of its own: %s", script, runner)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("path")
@click.option("--name", default="", help="The job's name from now on, as --job_name (default: as before).")
@click.option("--savepoint", default="", help="Go on from this savepoint, and leave behind what came later.")
@click.option(
    "--stage-mapping",
    multiple=True,
    metavar="OLD=NEW",
    help="A stage that is called otherwise than when the job last ran. May be repeated.",
)
@click.option("--force", is_flag=True, help="Go on also if it was drained, or is done.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@VERBOSE
@speaks
def resume(
    out: Output,
    path: str,
    name: str,
    savepoint: str,
    stage_mapping: tuple[str, ...],
    force: bool,
    options: tuple[str, ...],
) -> None:
    """Go on with the job in PATH: its folder or URL (s3://, gs://, abfs://, hdfs://), or a savepoint's path.

    The pipeline, its options and its files are those that the job was submitted with, and has kept there: the script is
    not needed. OPTIONS are pipeline options that take the place of earlier ones, as --spark_master. Runs until the job
    ends; Ctrl-C cancels it, SIGTERM suspends it (or as its --on_sigterm says), and it can be resumed again.
    """
    from arcbeam.runner.resume import resume as go_on
    from arcbeam.store.jobtemp.location import JobLocation
    from arcbeam.store.log.jobname import called
    from arcbeam.store.log.savepoints import place_of

    more = [*options, *(f"--stage_mapping={each}" for each in stage_mapping), *(["--force_resume"] if force else [])]
    result = go_on(path, more, name=name, savepoint=savepoint)
    job = {"id": result.job_id, "name": result.plan.name}
    shown_as = called(result.plan.name, str(JobLocation(place_of(path, savepoint)[0])))
    out.progress(f"{shown_as} is being resumed", **job, state=result.state)
    ended: SystemExit | None = None
    try:
        result.wait_until_finish()
    except SystemExit as e:
        ended = e
    out.text(f"{shown_as} is {result.state}", **job, state=result.state)
    if ended is not None:
        raise ended


def _is_of_use(record: logging.LogRecord) -> bool:
    """False for what the SDK says at import of an optional package that is not installed."""
    return not str(record.msg).startswith("apitools not found")


def _executors() -> ExecutorFactory:
    """What a job server runs pipelines with; imported when a server starts."""
    from arcbeam.runner.executor import SparkExecutor

    return SparkExecutor


def _start(options: Mapping[str, Any]) -> None:
    """Starts Spark for a job server."""
    from arcbeam.runner.executor import start

    start(options)


main.command(context_settings={"ignore_unknown_options": True})(speaks(explain))
main.command()(speaks(inspect))
main.command()(speaks(status))
main.command(context_settings={"ignore_unknown_options": True})(speaks(parts))
main.command()(speaks(savepoints))
main.command()(speaks(job_commands.serving(_executors, _start)))
main.command()(speaks(job_commands.jobs))
for command in (control.savepoint, control.drain, control.suspend, control.cancel):
    main.command()(speaks(command))
