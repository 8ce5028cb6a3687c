"""`arcbeam page`: jobs in a browser.

Owns the command's arguments. The page itself is `arcbeam.page`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

import click

from arcbeam.cli.control import is_missing, opened
from arcbeam.cli.server import FILE, TLS_CA, token_of
from arcbeam.console.output import CommandOutput
from arcbeam.jobs.termination import await_event

_CALL_SECONDS = 3.0
"""Limit for a call to the job server: a viewer waits for it."""


@click.argument("folders", nargs=-1, metavar="[FOLDER]...")
@click.option("--endpoint", default="", metavar="HOST:PORT", help="Also show the jobs of this job server.")
@TLS_CA
@click.option("--port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="Port; 0: a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--open", "browse", is_flag=True, help="Open the page in a browser.")
@click.option("--token-file", type=FILE, help="File with the token of browsers, and of the job server if it has one.")
@click.option("--tls-cert", type=FILE, help="PEM certificate chain of the page.")
@click.option("--tls-key", type=FILE, help="PEM key of the certificate.")
@click.option("--insecure", is_flag=True, help="Accept other users and machines without a token and TLS.")
def page(
    out: CommandOutput,
    folders: tuple[str, ...],
    endpoint: str,
    tls_ca: Path | None,
    port: int,
    host: str,
    browse: bool,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
) -> None:
    """Show and control jobs in a browser, until Ctrl-C.

    FOLDER is the folder or URL of a streaming job (--checkpoint_dir), also when no driver runs it. A browser gives the
    token once, in a form or as /?token=TOKEN. Without --token-file the printed address has it.
    """
    if not folders and not endpoint:
        raise click.UsageError("give the folder of a job, or the --endpoint of a job server")
    from arcbeam.page.services import ServiceSource
    from arcbeam.page.serving import PageServer, PageSettings
    from arcbeam.page.sources import FolderSource, Several, Source

    token = token_of(token_file)
    missing = [folder for folder in folders if is_missing(folder)]
    # One of several folders must not hide the jobs in the others.
    others = bool(endpoint) or missing != list(folders)
    sources: list[Source] = (
        [FolderSource([opened(folder, may_be_missing=others) for folder in folders])] if folders else []
    )
    for folder in missing:
        out.progress(f"there is no folder '{folder}': its job is shown as soon as there is", missing=folder)
    with contextlib.ExitStack() as stack:
        if endpoint:
            from arcbeam.jobs.client import JobClient

            client = stack.enter_context(JobClient(endpoint, token, tls_ca, seconds=_CALL_SECONDS))
            sources.append(ServiceSource(client, f"the job server {endpoint}"))
        settings = PageSettings(port, host, token, tls_cert, tls_key, insecure)
        server = stack.enter_context(PageServer(Several(*sources), settings))
        out.text(f"the page is at {server.login}\n  stop: Ctrl-C", address=server.login)
        sys.stdout.flush()
        if browse:
            click.launch(server.login)
        # Ctrl-C is the way to end it, not a failure.
        with contextlib.suppress(KeyboardInterrupt):
            await_event(threading.Event())
