"""The name of a job in messages: the name in its job graph, and its folder. And how it is resumed.

Owns the words. The folder is the job's identity. The name is for people, and a later submission may change it. Must not
know what a message is about.
"""

from __future__ import annotations

from typing import Final

from arcbeam.console.commandlines import command_line
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.manifest.values import Manifest

NOTHING_LEFT: Final = (
    "its sources are at their end, so nothing more is read; all its windows and timers have fired, so new data would "
    "be late"
)
"""Why a done or drained job is not resumed."""


def kept_name(blobs: DurableBlobs, head: Manifest) -> str:
    """Return the name of a job with a manifest; "" if it has none, or it cannot be read."""
    try:
        job_graph = jobgraphs.readable(blobs, head.job_graph)
    except StoreError:
        return ""
    return "" if job_graph is None else job_graph.name


def job_label(name: str, folder: object) -> str:
    """Return a job's name in messages: `job 'words' in '/data/words'`.

    Args:
        name: of the job; "": it has none.
        folder: of the job, for people; "": it keeps no state.
    """
    if not name:
        return f"the job in '{folder}'" if str(folder) else "the job"
    return f"job '{name}' in '{folder}'" if str(folder) else f"job '{name}'"


def job_in(blobs: DurableBlobs, head: Manifest | None = None) -> str:
    """Return the name in messages of the job in a folder.

    Reads one or more files, so it is for errors and for users' requests.

    Args:
        blobs: the folder.
        head: a manifest of the job; None: the newest, if it can be read.
    """
    if head is None:
        try:
            newest = read_newest(blobs)
            head = None if newest is None else known(newest)
        except StoreError:
            head = None
    return job_label("" if head is None else kept_name(blobs, head), blobs)


DISCARD: Final = "--discard_later_micro_batches"
"""The option without which no job goes back to a savepoint before its newest micro-batch."""


def resume_command(
    path: str, job_graph: bool, savepoint: bool = False, ended: bool = False, discards: bool = False
) -> str:
    """Return how to resume a job, or to start it from a savepoint.

    Args:
        path: of the folder or savepoint.
        job_graph: whether a job graph is stored, which `arcbeam resume` needs.
        savepoint: it is that of a savepoint.
        ended: it is that of a done or drained job, which is only resumed by force.
        discards: the savepoint is older than the newest micro-batch, and later micro-batches are to be discarded.
    """
    more = (*(("--force_resume",) if ended else ()), *((DISCARD,) if discards else ()))
    if job_graph:
        return command_line("resume", path, *more)
    options = " and ".join(("--from_savepoint" if savepoint else "--checkpoint_dir", *more))
    return f"run its script with {options}" if savepoint else f"run its script again with its {options}"


def has_job_graph(blobs: DurableBlobs) -> bool:
    """Return whether the job in a folder has a job graph; True if that is unknown."""
    try:
        newest = read_newest(blobs)
        return newest is None or bool(known(newest).job_graph)
    except StoreError:
        return True
