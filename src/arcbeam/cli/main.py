"""The command line: `arcbeam <command>`, text for people and `--json` for programs.

Owns the commands' names, arguments and exit codes: 0 success, 1 failed with a message, 2 wrong usage, 130 ended by
Ctrl-C, 143 by SIGTERM. Each command is one function with its imports inside. So `arcbeam doctor` is quick, and works
when Beam or Spark is missing.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from arcbeam.cli import control
from arcbeam.cli import server as job_commands
from arcbeam.cli.explain import explain
from arcbeam.cli.inspect import inspect
from arcbeam.cli.page import page
from arcbeam.cli.parts import parts
from arcbeam.cli.sample import sample
from arcbeam.cli.savepoints import savepoints
from arcbeam.cli.script import print_error, run_script
from arcbeam.cli.status import status
from arcbeam.console.output import CommandOutput, JsonOutput, TextOutput
from arcbeam.errors import ArcbeamError, JobCancelledError

if TYPE_CHECKING:
    from arcbeam.jobs.execution import ExecutorFactory

_LOG = logging.getLogger("arcbeam.cli")

_INTERRUPTED = 130
"""By custom of shells: 128, and the number of SIGINT."""


def with_output(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--json`, a `CommandOutput` as first argument, and exit codes for arcbeam's errors and Ctrl-C.

    `--json` is accepted before and after the command's name.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_context
    @functools.wraps(command)
    def wrapped(context: click.Context, /, *args: Any, as_json: bool, **kwargs: Any) -> None:
        out: CommandOutput = JsonOutput() if as_json or context.obj else TextOutput()
        logging.getLogger().addFilter(_is_useful)
        try:
            command(out, *args, **kwargs)
        except ArcbeamError as error:
            out.error(error)
            context.exit(1)
        except KeyboardInterrupt:
            # The job was cancelled, or the request withdrawn, while the exception passed through their code.
            out.error(JobCancelledError("interrupted"))
            context.exit(_INTERRUPTED)

    return wrapped


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]  # of whatever stderr is
    """A handler whose lines erase the progress line on a terminal first."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return ("\r\x1b[K" if self.stream.isatty() else "") + super().format(record)


def _verbose(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """Show arcbeam's log from INFO up.

    The logger gets its own handler: the script's settings of the root logger stay valid for all other loggers.
    """
    if not wanted:
        return
    logger, handler = logging.getLogger("arcbeam"), _Lines()
    level, propagates = logger.level, logger.propagate

    def restore() -> None:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates

    context.call_on_close(restore)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


VERBOSE = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_verbose,
    help="Log progress to stderr: a line for each micro-batch, and the port of the metrics if --metrics_address is 0.",
)


def _hyphenated(name: str) -> str:
    """Accept underscores in the names of options: pipeline options have underscores, options of commands hyphens."""
    return name.replace("_", "-")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _hyphenated})
@click.version_option(package_name="arcbeam", prog_name="arcbeam")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def main(context: click.Context, as_json: bool) -> None:
    """Apache Beam pipelines on Apache Spark, in Python, through PySpark."""
    context.obj = as_json


@main.command()
@with_output
def doctor(out: CommandOutput) -> None:
    """Check the installation (Python, Java, Spark, Beam, memory, disk) and print fixes."""
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
@with_output
def run(out: CommandOutput, script: Path, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT with arcbeam as the default runner of its pipelines.

    The script runs as with `python SCRIPT ARGUMENTS`. Pipeline options in ARGUMENTS apply to every pipeline, also to
    one created without options. A pipeline for which the script chooses another runner runs on that runner; a warning
    says so. --runner in ARGUMENTS replaces arcbeam as the default.
    """
    from arcbeam.cli.scriptoptions import pipelines_of_a_script
    from arcbeam.runner.unawaited import UNAWAITED

    try:
        with pipelines_of_a_script(arguments) as pipelines, UNAWAITED.finished():
            run_script(script, list(arguments))
    except ArcbeamError:
        raise
    except Exception as error:
        print_error(error, script)
        click.get_current_context().exit(1)
    if not pipelines.run:
        _LOG.warning("%s ended without running a pipeline", script)
    for runner in dict.fromkeys(pipelines.elsewhere):
        _LOG.warning("%s chooses another runner for a pipeline, which did not run on arcbeam: %s", script, runner)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("path")
@click.option("--job-name", "--name", "name", default="", help="New name of the job (default: its present name).")
@click.option(
    "--from-savepoint",
    "--savepoint",
    "savepoint",
    default="",
    help="Resume from this savepoint (default: from the newest micro-batch).",
)
@click.option(
    "--discard-later-micro-batches",
    "discard",
    is_flag=True,
    help="Let a savepoint discard later micro-batches permanently.",
)
@click.option(
    "--stage-mapping",
    multiple=True,
    metavar="OLD=NEW",
    help="Stage NEW gets the state of stage OLD, if this version of arcbeam names the stage differently. May be "
    "repeated.",
)
@click.option(
    "--force-resume",
    "--force",
    "force",
    is_flag=True,
    help="Also resume a job that has ended because it was drained or had read all its input.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[PIPELINE_OPTIONS]...")
@VERBOSE
@with_output
def resume(
    out: CommandOutput,
    path: str,
    name: str,
    savepoint: str,
    stage_mapping: tuple[str, ...],
    force: bool,
    discard: bool,
    options: tuple[str, ...],
) -> None:
    """Resume the job in PATH, without its script. PATH is the job's folder or URL (s3://, gs://, abfs://, hdfs://), or
    the path of a savepoint.

    The folder holds the pipeline, its options and its files. PIPELINE_OPTIONS, such as --spark_master,
    replace the stored ones. The command runs until the job ends. Ctrl-C cancels the job; SIGTERM suspends it, or does
    what the job's --on_sigterm says. After a cancel or a suspension, the job can be resumed again.
    """
    from arcbeam.runner.resume import resume as resume_job
    from arcbeam.store.jobtemp.location import JobLocation
    from arcbeam.store.log.jobname import job_label
    from arcbeam.store.log.savepoints import place_of

    flags = {"force_resume": force, "discard_later_micro_batches": discard}
    given = [f"--stage_mapping={each}" for each in stage_mapping] + [f"--{name}" for name, on in flags.items() if on]
    result = resume_job(path, [*options, *given], name=name, savepoint=savepoint)
    job = {"id": result.job_id, "name": result.plan.name}
    shown_as = job_label(result.plan.name, str(JobLocation(place_of(path, savepoint)[0])))
    out.progress(f"{shown_as} is being resumed", **job, state=result.state)
    ended: SystemExit | None = None
    try:
        result.wait_until_finish()
    except SystemExit as e:
        ended = e
    out.text(f"{shown_as} is {result.state}", **job, state=result.state)
    if ended is not None:
        raise ended


def _is_useful(record: logging.LogRecord) -> bool:
    """Return False for the SDK's message on an optional package that is not installed."""
    return not str(record.msg).startswith("apitools not found")


def _executors() -> ExecutorFactory:
    """Return the executors of a job server; imported when a server starts."""
    from arcbeam.runner.executor import SparkExecutor

    return SparkExecutor


def _start(options: Mapping[str, Any]) -> None:
    """Start Spark for a job server."""
    from arcbeam.runner.executor import start

    start(options)


main.command(context_settings={"ignore_unknown_options": True})(with_output(explain))
main.command()(with_output(inspect))
main.command()(with_output(status))
main.command()(with_output(page))
main.command(context_settings={"ignore_unknown_options": True})(with_output(parts))
main.command(context_settings={"ignore_unknown_options": True})(with_output(savepoints))
main.command()(with_output(sample))
main.command()(with_output(job_commands.serving(_executors, _start)))
main.command()(with_output(job_commands.jobs))
for command in (control.savepoint, control.drain, control.suspend, control.cancel):
    main.command()(with_output(command))
