"""The commands `arcbeam serve` and `arcbeam jobs`, and the connection of commands to a job server.

Owns their arguments and output. Imports gRPC and Beam only when a command runs, so that the command line starts
quickly. The executor of pipelines is a parameter: this module must not know it.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from arcbeam.console.output import CommandOutput, TextOutput
from arcbeam.errors import SetupError
from arcbeam.jobs.termination import await_event, relayed

if TYPE_CHECKING:
    from arcbeam.jobs.client import JobClient
    from arcbeam.jobs.execution import ExecutorFactory
    from arcbeam.jobs.server import JobServer, ServerSettings

PORT = 8099
"""The usual port of Beam's job servers."""

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
TOKEN_FILE = click.option("--token-file", type=FILE, help="File with the token of the server.")
ENDPOINT = click.option(
    "--endpoint", default=f"localhost:{PORT}", show_default=True, metavar="HOST:PORT", help="The job server."
)
TLS_CA = click.option("--tls-ca", type=FILE, help="Use TLS. PEM file with the certificate of the server, or of its CA.")


def default_folder() -> Path:
    """Return the default folder for a server's jobs."""
    return Path.home() / ".arcbeam" / "jobs"


def serving(
    executors: Callable[[], ExecutorFactory], start: Callable[[Mapping[str, Any]], None] = lambda options: None
) -> Callable[..., None]:
    """Return the `serve` command.

    Args:
        executors: returns the executors of pipelines; called when the command runs.
        start: prepares what all pipelines need. It is called with the options for all jobs, before the first job.
    """

    @click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port; 0: a free one.")
    @click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
    @click.option(
        "--folder", type=click.Path(file_okay=False, path_type=Path), help="Folder of jobs (default: ~/.arcbeam/jobs)."
    )
    @click.option("--advertise", metavar="HOST[:PORT]", help="Address for submitters, if it is not --host.")
    @TOKEN_FILE
    @click.option("--tls-cert", type=FILE, help="PEM certificate chain.")
    @click.option("--tls-key", type=FILE, help="PEM key of the certificate.")
    @click.option("--insecure", is_flag=True, help="Accept other users and machines without a token and TLS.")
    @click.option(
        "--page",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Show the jobs in a browser, with the same host, token and TLS.",
    )
    @click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[PIPELINE_OPTIONS]...")
    def serve(
        out: CommandOutput,
        port: int,
        host: str,
        folder: Path | None,
        advertise: str | None,
        token_file: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        insecure: bool,
        page: int | None,
        options: tuple[str, ...],
    ) -> None:
        """Serve Beam's Job API. Submit a pipeline with --runner=arcbeam.ArcbeamRunner --job_endpoint=localhost:PORT.

        PIPELINE_OPTIONS after a -- are for jobs that do not set them: `arcbeam serve -- --shards=8`. Ctrl-C or
        SIGTERM stops the server. It cancels running batch jobs. It suspends streaming jobs, or does what their
        --on_sigterm says; they resume when the server starts again. A second signal cancels streaming jobs, too.
        """
        from arcbeam.jobs.server import JobServer, ServerSettings

        settings = ServerSettings(
            folder=folder or default_folder(),
            host=host,
            port=port,
            advertise=advertise,
            token=token_of(token_file),
            certificate=tls_cert,
            key=tls_key,
            insecure=insecure,
            defaults=_defaults(options),
        )
        # The page is served while Spark starts, which takes a while.
        with _signalled() as (stopped, again), _page(settings, page) as (shown, jobs_known):

            def ready() -> None:
                where = f"; the page is at {shown}" if shown else ""
                out.progress(f"starting Spark{where}", state="starting", **({"page": shown} if shown else {}))
                _unless(stopped, lambda: start(settings.defaults))

            server = JobServer(settings, executors(), ready)
            try:
                if stopped.is_set():
                    return
                jobs_known(server)
                out.text(
                    f"serving Beam's Job API on {server.endpoint}\n"
                    f"  run a pipeline: --runner=arcbeam.ArcbeamRunner --job_endpoint={server.endpoint}\n"
                    + (f"  the page is at {shown}\n" if shown else "")
                    + "  stop: Ctrl-C",
                    endpoint=server.endpoint,
                    port=server.port,
                    folder=str(settings.folder),
                    **({"page": shown} if shown else {}),
                )
                sys.stdout.flush()
                await_event(stopped)
            finally:
                out.progress("stopping", state="stopping")
                server.stop(again=again)

    return serve


@contextlib.contextmanager
def _page(settings: ServerSettings, port: int | None) -> Iterator[tuple[str, Callable[[JobServer], None]]]:
    """Serve the page of a job server's jobs. Yield its address ("": no port), and what to call with the server."""
    if port is None:
        yield "", lambda server: None
        return
    from arcbeam.jobs.overview import Overview
    from arcbeam.page.services import ServiceSource
    from arcbeam.page.serving import PageServer, PageSettings
    from arcbeam.page.sources import Later

    source = Later("This job server starts Spark. Its jobs are listed when it is ready.")
    of = settings
    where = PageSettings(port, of.host, of.token, of.certificate, of.key, of.insecure)
    with PageServer(source, where, "give another --page; 0: a free port") as page:
        yield page.login, lambda server: source.open(ServiceSource(Overview(server.jobs), "this job server"))


def _unless(stopped: threading.Event, work: Callable[[], None]) -> None:
    """Do work and raise its exception, if any. Return early if stopped."""
    failed: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    # SUBTLE: not on this thread, where a new SparkContext would replace our handler of Ctrl-C.
    threading.Thread(target=run, name="start", daemon=True).start()
    while not (done.wait(0.1) or stopped.is_set()):
        pass
    if failed:
        raise failed[0]


@contextlib.contextmanager
def _signalled() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Yield an event for the first Ctrl-C or SIGTERM, and one for the second. The old handlers return at the end."""
    stopped, again = threading.Event(), threading.Event()
    with relayed(lambda _: (again if stopped.is_set() else stopped).set(), signal.SIGINT, signal.SIGTERM):
        yield stopped, again


@click.option("--running", is_flag=True, help="Only jobs that were started and have not ended.")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="Number of jobs; 0: all.")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
def jobs(
    out: CommandOutput, running: bool, limit: int, endpoint: str, token_file: Path | None, tls_ca: Path | None
) -> None:
    """List the jobs of a job server, newest first."""
    with client_of(endpoint, token_file, tls_ca) as client:
        found = client.jobs(limit, running)
    now = datetime.now(UTC)
    people = isinstance(out, TextOutput)
    rows: list[dict[str, Any]] = []
    for job in found.jobs:
        elapsed = job.elapsed(now)
        rows.append(
            {
                "id": job.id,
                "name": job.name,
                "state": job.state,
                "started": _time(job.started, people),
                "elapsed": _duration(elapsed) if people else elapsed,
            }
        )
    out.table(["id", "name", "state", "started", "elapsed"], rows)
    if found.more:
        out.progress(f"{found.more} older jobs are not shown: --limit=0 shows all", more=found.more)


def token_of(file: Path | None) -> str | None:
    """Return the token in a file, without surrounding white space.

    Raises:
        SetupError: the file cannot be read, other users can read it, or it is not one line of printable ASCII.
    """
    if file is None:
        return None
    try:
        if (mode := stat.S_IMODE(file.stat().st_mode)) & (stat.S_IRWXO | stat.S_IWGRP):
            raise SetupError(
                f"other users can read or change the token file {file} (mode {mode:04o})",
                f"if Kubernetes mounts the secret, set defaultMode: 0400; else run: chmod 600 {shlex.quote(str(file))}",
            )
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise SetupError(f"cannot read the token file {file}: {e}") from e
    if not token or not token.isprintable():
        raise SetupError(f"the token file {file} does not hold one line of text")
    return token


def client_of(endpoint: str, token_file: Path | None, tls_ca: Path | None) -> JobClient:
    """Return a client of the server that these options name."""
    from arcbeam.jobs.client import JobClient

    return JobClient(endpoint, token_of(token_file), tls_ca)


def _defaults(options: tuple[str, ...]) -> dict[str, Any]:
    if not options:
        return {}
    from apache_beam.options.pipeline_options import PipelineOptions

    from arcbeam.options import OF_THE_JOB, ArcbeamOptions, given_as

    given = given_as(
        options,
        "remove them, or correct their spelling; docs/reference/options.md lists arcbeam's",
        OF_THE_JOB,
        "an option of one job cannot be a default of a server",
        "give it when you submit the job",
    )
    PipelineOptions.from_dictionary(given).view_as(ArcbeamOptions).check()
    return given


def _time(time: datetime | None, people: bool) -> str | None:
    if time is None:
        return "" if people else None
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if people else time.isoformat()


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {int(rest):02d} s" if minutes else f"{rest:.1f} s"
