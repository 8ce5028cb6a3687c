"""`arcbeam page`: jobs in a browser.

Owns the command's arguments. The page itself is `arcbeam.page`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

import click

from arcbeam.cli.control import opened
from arcbeam.cli.server import token_of
from arcbeam.console.output import Output
from arcbeam.jobs.termination import await_event


@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option("--port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="Port; 0: a free one.")
@click.option("--open", "browse", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a token for browsers: /?token=TOKEN.",
)
def page(out: Output, folders: tuple[str, ...], port: int, browse: bool, token_file: Path | None) -> None:
    """Show the streaming jobs in each FOLDER in a browser, until Ctrl-C.

    FOLDER is the folder or URL of a streaming job (--checkpoint_dir), also when no driver runs it. The page
    changes nothing. Only this machine can reach it.
    """
    from arcbeam.page.app import app_of
    from arcbeam.page.serving import PageServer
    from arcbeam.page.sources import FolderSource

    source = FolderSource([opened(folder) for folder in folders])
    with PageServer(app_of(source, token_of(token_file) or ""), port) as server:
        out.text(f"the page is at {server.address}\n  stop: Ctrl-C", address=server.address)
        sys.stdout.flush()
        if browse:
            click.launch(server.address)
        # Ctrl-C is the way to end it, not a failure.
        with contextlib.suppress(KeyboardInterrupt):
            await_event(threading.Event())
