"""`arcbeam savepoints`: those of a streaming job, by its folder: list, describe, rename, delete, copy.

Owns the arguments, and how it is told. What a savepoint is, and how its name changes, is the store's
(`store.log.savepoints`); a job that runs is asked to do it itself (`store.log.requests`).
"""

from __future__ import annotations

import dataclasses
import socket
import time
from typing import TYPE_CHECKING, Any

import click

from arcbeam.cli.control import asked_of_folder, opened, shown_job
from arcbeam.cli.status import bytes_shown, shown
from arcbeam.console.output import Output, TextOutput
from arcbeam.errors import JobFailedError
from arcbeam.store.blobs.claims import work_folder

if TYPE_CHECKING:
    from arcbeam.store.blobs.durable import DurableBlobs
    from arcbeam.store.log.inspection import SavepointReport
    from arcbeam.store.log.requests import Asked

_TAKES = {"list": 0, "describe": 1, "rename": 2, "delete": 1, "copy": 2}
"""How many more words each action wants."""


@click.argument("path")
@click.argument("action", type=click.Choice(list(_TAKES)), default="list")
@click.argument("words", nargs=-1, metavar="[NAME] [NEW|TARGET]")
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for whoever runs the job, to rename or delete. 0: only leave the request there.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Rename or delete here and now, though the job seems to run: whoever does run it is fenced out, and ends.",
)
def savepoints(out: Output, path: str, action: str, words: tuple[str, ...], seconds: float, force: bool) -> None:
    """Show and keep the savepoints of the job in PATH: its folder or URL, or the path of one of them.

    \b
    arcbeam savepoints PATH                      list them
    arcbeam savepoints PATH describe NAME        what one holds, and how to go on with it
    arcbeam savepoints PATH rename NAME NEW
    arcbeam savepoints PATH delete NAME          the job goes on as before; so does one that was suspended with it
    arcbeam savepoints PATH copy NAME TARGET     to an empty folder or URL, where it is a job of its own

    Where PATH is a savepoint's own path, NAME is left out. A job that runs renames and deletes itself, with its next
    commit; of one that is suspended, drained or done it is done here. The files of a deleted savepoint go when the job
    has made some more micro-batches. With --json, times are microseconds since 1970.
    """  # noqa: D301 — click's own mark of lines that stay as they are
    from arcbeam.store.log.savepoints import split_path

    folder, of_path = split_path(path)
    if of_path:
        action = "describe" if action == "list" else action
        words = (of_path, *words)
    if len(words) != _TAKES[action]:
        wanted = ("", "NAME", "NAME NEW" if action == "rename" else "NAME TARGET")[_TAKES[action]]
        raise click.UsageError(
            f"'{action}' takes {wanted or 'no name'}: got {' '.join(map(repr, words)) or 'none'}"
            + (f" (the path names {of_path!r})" if of_path else "")
        )
    blobs = opened(folder)
    match action:
        case "list":
            _list(out, blobs)
        case "describe":
            _describe(out, folder, blobs, words[0])
        case "copy":
            _copy(out, folder, blobs, *words)
        case "rename":
            _change(out, folder, blobs, words[0], words[1], seconds, force)
        case "delete":
            _change(out, folder, blobs, words[0], "", seconds, force)


def _list(out: Output, blobs: DurableBlobs) -> None:
    from arcbeam.store.log.inspection import savepoints as look

    found = look(blobs)
    if not isinstance(out, TextOutput):
        out.table([], [dataclasses.asdict(each) for each in found])
    elif not found:
        out.text("no savepoints")
    else:
        rows = [
            {
                "name": each.name,
                "micro_batch": each.micro_batch,
                "recorded at": shown(each.time),
                "job was": each.mode or "unreadable",
                "size": bytes_shown(each.size),
                "its own": bytes_shown(each.own),
            }
            for each in found
        ]
        out.table(list(rows[0]), rows)
    _complain(found)


def _describe(out: Output, folder: str, blobs: DurableBlobs, name: str) -> None:
    from arcbeam.store.blobs.errors import StoreError
    from arcbeam.store.log.inspection import savepoints as look
    from arcbeam.store.log.savepoints import path_of

    every = {each.name: each for each in look(blobs)}
    found = every.get(name)
    if found is None:
        raise StoreError(f"there is no savepoint '{name}' in '{blobs}'", f"there are: {', '.join(every) or 'none'}")
    path = path_of(shown_job(folder), name)
    if not isinstance(out, TextOutput):
        out.record({**dataclasses.asdict(found), "path": path})
    else:
        out.record(
            {
                "savepoint": name,
                "path": path,
                "micro_batch": f"{found.micro_batch} of epoch {found.epoch}, recorded at {shown(found.time)}",
                "job was": found.mode or "unreadable",
                "state of": ", ".join(found.stages) or "no stage",
                "files": f"{found.files} of {bytes_shown(found.size)}; {bytes_shown(found.own)} are needed by it alone",
                "to publish": found.to_publish,
                "resumed with": f"arcbeam resume {path}" if found.program else "its script, and --from_savepoint",
                "checked with": f"arcbeam inspect {path} --check",
            }
        )
    _complain((found,))


def _complain(found: tuple[SavepointReport, ...]) -> None:
    """Damage is told, and makes the exit code 1."""
    for each in found:
        if each.problem:
            click.echo(f"savepoint '{each.name}': {each.problem}", err=True)
    if any(each.problem for each in found):
        click.get_current_context().exit(1)


def _copy(out: Output, folder: str, blobs: DurableBlobs, name: str, target: str) -> None:
    from arcbeam.store.blobs.backends import open_blobs
    from arcbeam.store.blobs.errors import StoreError
    from arcbeam.store.log.chain import read_newest
    from arcbeam.store.log.savepoints import copy_savepoint

    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "name the folder that was given as --checkpoint_dir")
    out.progress(f"copying '{name}' to {shown_job(target)}", savepoint=name, target=shown_job(target))
    with work_folder("copy") as scratch:
        copied = copy_savepoint(blobs, newest, name, open_blobs(target), scratch)
    out.text(
        f"{shown_job(target)} holds savepoint '{name}' of micro-batch {copied.micro_batch}, as a job of its own",
        path=shown_job(target),
        savepoint=name,
        micro_batch=copied.micro_batch,
        job=copied.job,
    )


def _change(out: Output, folder: str, blobs: DurableBlobs, name: str, new: str, seconds: float, force: bool) -> None:
    """Renames a savepoint, or deletes it if there is no new name."""
    from arcbeam.model.commits import CommitMode, deletion, renaming
    from arcbeam.model.timestamps import Timestamp
    from arcbeam.store.log.chain import known, read_newest
    from arcbeam.store.log.requests import Asked
    from arcbeam.store.log.savepoints import change_stopped
    from arcbeam.store.manifest.values import ENDED

    newest = read_newest(blobs)
    stopped = newest is not None and known(newest).mode in ENDED | {CommitMode.SUSPENDED}
    if stopped or force:
        who = f"{socket.gethostname()}: arcbeam savepoints"
        now = Timestamp(time.time_ns() // 1000)
        change_stopped(blobs, renaming(name, new) if new else deletion(name), now, driver=who, force=force)
    elif not _asked(out, folder, Asked.RENAME if new else Asked.DELETE, name, new, seconds):
        return
    what: dict[str, Any] = {"savepoint": name, **({"new": new} if new else {"deleted": True})}
    out.text(f"savepoint '{name}' is called '{new}' now" if new else f"savepoint '{name}' is deleted", **what)


def _asked(out: Output, folder: str, what: Asked, name: str, new: str, seconds: float) -> bool:
    """Whether whoever runs the job has done it; not, if nobody waits for that."""
    try:
        return bool(asked_of_folder(out, folder, what, name, seconds, new))
    except JobFailedError as e:
        raise JobFailedError(e.message, f"{e.remedy}; --force does it here, if nothing runs the job") from None
