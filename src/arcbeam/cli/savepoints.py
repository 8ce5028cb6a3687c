"""`arcbeam savepoints`: lists, describes, renames, deletes, copies and rescales the savepoints in a job's folder.

Owns the arguments and the output. `store.log.savepoints` defines savepoints and changes their names,
`streaming.restore.rescaling` rescales. A running job changes its savepoints itself, on request (`store.log.requests`).
"""

from __future__ import annotations

import dataclasses
import re
import socket
import time
from typing import TYPE_CHECKING, Any

import click

from arcbeam.cli.control import opened, request_of_folder, shown_job
from arcbeam.console.commandlines import command_line
from arcbeam.console.output import CommandOutput, TextOutput
from arcbeam.errors import JobFailedError
from arcbeam.model.rows import SHARDS_MAX
from arcbeam.store.blobs.claims import work_folder
from arcbeam.store.log.jobname import NOTHING_LEFT, resume_command
from arcbeam.streaming.status.words import bytes_shown, shown

if TYPE_CHECKING:
    from arcbeam.store.blobs.durable import DurableBlobs
    from arcbeam.store.log.inspection import SavepointReport
    from arcbeam.store.log.requests import RequestKind

_TAKES = {"list": 0, "describe": 1, "rename": 2, "delete": 1, "copy": 2, "rescale": 1}
"""The number of further words of each action."""


@click.argument("path")
@click.argument("action", type=click.Choice(list(_TAKES)), default="list")
@click.argument("words", nargs=-1, metavar="[NAME|SHARDS] [NEW|TARGET]")
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(0),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="For rename and delete: seconds to wait for the job's driver. 0: leave the request in the folder and return.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Rename, delete or rescale at once, also if the job seems to run. Its driver is fenced.",
)
def savepoints(out: CommandOutput, path: str, action: str, words: tuple[str, ...], seconds: float, force: bool) -> None:
    """Manage savepoints of the job in PATH: list, describe, rename, delete, copy, rescale.

    \b
    arcbeam savepoints PATH                      list all
    arcbeam savepoints PATH describe NAME        show what it holds and how to resume from it
    arcbeam savepoints PATH rename NAME NEW
    arcbeam savepoints PATH delete NAME          the job is not changed, and can still be resumed
    arcbeam savepoints PATH copy NAME TARGET     to an empty folder or URL; the copy is an independent job
    arcbeam savepoints PATH rescale SHARDS       the state of the suspended job in another number of shards

    PATH is the job's folder or URL. If PATH is the path of a savepoint, omit NAME. A running job renames and deletes
    its savepoints with its next commit. If the job is suspended, done or drained, this command makes the change itself.
    If it has failed, was cancelled, or its driver was killed, resume it, or use --force. A later micro-batch removes
    the files of a deleted savepoint. To rescale a savepoint, resume it with --shards, or rescale a copy. With --json,
    times are microseconds since 1970.
    """  # noqa: D301 — click's own mark of lines that stay as they are
    from arcbeam.store.log.savepoints import split_path

    # A negative number is a word, not an option: the command accepts unknown options.
    for word in words:
        if word.startswith("-") and not word[1:].isdecimal():
            raise click.NoSuchOption(word)
    folder, of_path = split_path(path)
    if of_path and action == "rescale":
        raise click.UsageError(
            f"'rescale' takes the folder of a job, not the path of savepoint {of_path!r}: resume that with --shards "
            "or rescale a copy"
        )
    if of_path:
        action = "describe" if action == "list" else action
        words = (of_path, *words)
    if len(words) != _TAKES[action]:
        one = "SHARDS" if action == "rescale" else "NAME"
        wanted = ("", one, "NAME NEW" if action == "rename" else "NAME TARGET")[_TAKES[action]]
        raise click.UsageError(
            f"'{action}' takes {wanted or 'no name'}: got {' '.join(map(repr, words)) or 'none'}"
            + (f" (the path names {of_path!r})" if of_path else "")
        )
    shards = _number_of_shards(words[0]) if action == "rescale" else 0
    blobs = opened(folder)
    match action:
        case "list":
            _list(out, blobs)
        case "describe":
            _describe(out, folder, blobs, words[0])
        case "copy":
            _copy(out, folder, blobs, *words)
        case "rescale":
            _rescale(out, folder, blobs, shards, force)
        case "rename":
            _change(out, folder, blobs, words[0], words[1], seconds, force)
        case "delete":
            _change(out, folder, blobs, words[0], "", seconds, force)


def _list(out: CommandOutput, blobs: DurableBlobs) -> None:
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
                "micro-batch started at": shown(each.time),
                "job was": each.mode or "unreadable",
                "size": bytes_shown(each.size),
                "its own": bytes_shown(each.own),
            }
            for each in found
        ]
        out.table(list(rows[0]), rows)
    _complain(found)


def _describe(out: CommandOutput, folder: str, blobs: DurableBlobs, name: str) -> None:
    from arcbeam.store.blobs.errors import StoreError
    from arcbeam.store.log.inspection import savepoints as look
    from arcbeam.store.log.opening import choice_of
    from arcbeam.store.log.savepoints import path_of
    from arcbeam.store.manifest.values import ENDED

    every = {each.name: each for each in look(blobs)}
    found = every.get(name)
    if found is None:
        raise StoreError(f"there is no savepoint '{name}' in '{blobs}'", choice_of(every))
    path = path_of(shown_job(folder), name)
    ended = found.mode in ENDED
    if not isinstance(out, TextOutput):
        out.record({**dataclasses.asdict(found), "path": path})
    else:
        out.record(
            {
                "savepoint": name,
                "path": path,
                "micro_batch": f"{found.micro_batch} of epoch {found.epoch}, which started at {shown(found.time)}",
                "job was": f"{found.mode}: {NOTHING_LEFT}" if ended else found.mode or "unreadable",
                "state of": ", ".join(found.stages) or "no stage",
                "files": f"{found.files} of {bytes_shown(found.size)}; only this savepoint needs "
                f"{bytes_shown(found.own)}",
                "to publish": found.to_publish,
                "resume": resume_command(path, bool(found.job_graph), True, ended, bool(found.later)),
                **({"discards": f"{found.later:,} later committed micro-batch(es)"} if found.later else {}),
                "check": command_line("inspect", path, "--check"),
            }
        )
    _complain((found,))


def _complain(found: tuple[SavepointReport, ...]) -> None:
    """Report damaged savepoints; they make the exit code 1."""
    for each in found:
        if each.problem:
            click.echo(f"savepoint '{each.name}': {each.problem}", err=True)
    if any(each.problem for each in found):
        click.get_current_context().exit(1)


def _copy(out: CommandOutput, folder: str, blobs: DurableBlobs, name: str, target: str) -> None:
    from arcbeam.store.blobs.backends import open_blobs
    from arcbeam.store.blobs.errors import StoreError
    from arcbeam.store.log.chain import read_newest
    from arcbeam.store.log.savepoints import copy_savepoint

    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
    out.progress(f"copying '{name}' to {shown_job(target)}", savepoint=name, target=shown_job(target))
    with work_folder("copy") as scratch:
        copied = copy_savepoint(blobs, newest, name, open_blobs(target), scratch)
    out.text(
        f"copied savepoint '{name}' of micro-batch {copied.micro_batch} to {shown_job(target)}, as a separate job",
        path=shown_job(target),
        savepoint=name,
        micro_batch=copied.micro_batch,
        job=copied.job,
    )


def _number_of_shards(word: str) -> int:
    """Return the number that a word of the command line gives."""
    # Python does not convert numbers of thousands of digits.
    shards = int(word) if re.fullmatch("[0-9]{1,20}", word) else 0
    if not 1 <= shards <= SHARDS_MAX:
        raise click.UsageError(f"'rescale' takes a number of shards, from 1 to {SHARDS_MAX}: got {word!r}")
    return shards


def _rescale(out: CommandOutput, folder: str, blobs: DurableBlobs, shards: int, force: bool) -> None:
    from arcbeam.model.timestamps import Timestamp
    from arcbeam.streaming.restore.rescaling import rescale_stopped

    out.progress(f"rescaling {shown_job(folder)} to {shards} shards", path=shown_job(folder), shards=shards)
    opening, had = rescale_stopped(blobs, shards, Timestamp(time.time_ns() // 1000), force=force)
    size = sum(file.size for shard in opening.shards for file in shard.files)
    out.text(
        f"rescaled the state of {shown_job(folder)} from {had} to {shards} shards: {bytes_shown(size)}",
        path=shown_job(folder),
        shards=shards,
        had=had,
        size=size,
        micro_batch=opening.micro_batch,
    )


def _change(
    out: CommandOutput, folder: str, blobs: DurableBlobs, name: str, new: str, seconds: float, force: bool
) -> None:
    """Rename a savepoint, or delete it if there is no new name."""
    from arcbeam.store.log.requests import RequestKind, changed_at_once

    what_to_do = RequestKind.RENAME if new else RequestKind.DELETE
    driver = f"{socket.gethostname()}: arcbeam savepoints"
    at_once = changed_at_once(blobs, name, new, driver=driver, force=force)
    if not at_once and not _requested(out, folder, what_to_do, name, new, seconds):
        return
    what: dict[str, Any] = {"savepoint": name, **({"new": new} if new else {"deleted": True})}
    out.text(f"savepoint '{name}' is renamed to '{new}'" if new else f"savepoint '{name}' is deleted", **what)


def _requested(out: CommandOutput, folder: str, what: RequestKind, name: str, new: str, seconds: float) -> bool:
    """Request the change from the job's driver. Return whether the driver made it; False without waiting."""
    try:
        return bool(request_of_folder(out, folder, what, name, seconds, new))
    except JobFailedError as e:
        raise JobFailedError(
            e.message, f"{e.remedy}; or, if no driver runs the job, make the change at once: --force"
        ) from None
