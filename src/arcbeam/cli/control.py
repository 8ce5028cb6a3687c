"""The commands that control a job: `arcbeam savepoint`, `drain`, `suspend`, `cancel`.

Owns their arguments and output. JOB is the id of a job at a job server, or a job's folder. A request to a folder is a
file in it, so the job may run on any machine. Imports gRPC and Beam only when a command runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from arcbeam.cli.server import ENDPOINT, PORT, TLS_CA, TOKEN_FILE, client_of
from arcbeam.console.commandlines import command_line
from arcbeam.console.output import CommandOutput
from arcbeam.errors import ArcbeamError, JobFailedError, SetupError

if TYPE_CHECKING:
    from arcbeam.jobs.client import JobClient
    from arcbeam.store.blobs.durable import DurableBlobs
    from arcbeam.store.log.requests import RequestKind
    from arcbeam.store.manifest.values import Manifest
    from arcbeam.streaming.status.status import Status

T = TypeVar("T")

_POLL_SECONDS = 0.2
_STATE_SECONDS = 1.0

_GOING = frozenset({"STARTING", "RUNNING", "DRAINING"})

_STATES = {"done": "DONE", "drained": "DRAINED", "suspended": "STOPPED"}

_WAIT = click.option(
    "--wait",
    "seconds",
    type=float,
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="Seconds to wait for the result. If JOB is a folder, 0 leaves the request there for the driver and returns at "
    "once.",
)


def is_folder(job: str) -> bool:
    """Return whether JOB is a folder, not an id at a job server."""
    return "/" in job or Path(job).is_dir()


@click.argument("job")
@click.argument("name", default="")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
@_WAIT
def savepoint(
    out: CommandOutput, job: str, name: str, endpoint: str, token_file: Path | None, tls_ca: Path | None, seconds: float
) -> None:
    """Trigger a savepoint of JOB and print its path. The job continues.

    JOB is the id of a streaming job at the job server, or its folder or URL (--checkpoint_dir). The driver
    gives the name to the next micro-batch that it commits. NAME has up to 100 letters, digits, '.', '_' and '-'
    (default: a name with the time).
    """
    from arcbeam.store.log.requests import RequestKind

    path = _savepoint(out, RequestKind.SAVEPOINT, job, name, lambda: client_of(endpoint, token_file, tls_ca), seconds)
    if path:
        out.text(path, path=path)


@click.argument("job")
@click.option("--savepoint", "name", default="", help="Name of the savepoint (default: a name with the time).")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
@_WAIT
def suspend(
    out: CommandOutput, job: str, name: str, endpoint: str, token_file: Path | None, tls_ca: Path | None, seconds: float
) -> None:
    """Take a savepoint, stop JOB, and print the savepoint's path. A suspension fires no windows or timers.

    JOB is the id of a streaming job at the job server, or its folder or URL (--checkpoint_dir). To resume it, run
    `arcbeam resume FOLDER`, or submit its pipeline again with the same --checkpoint_dir.
    """
    from arcbeam.store.log.requests import RequestKind

    def server() -> JobClient:
        return client_of(endpoint, token_file, tls_ca)

    if not is_folder(job):
        path = _savepoint(out, RequestKind.SUSPEND, job, name, server, seconds)
        out.text(path, path=path, state=_ended(server, job) or "STOPPED")
        return
    # A repeated command, after a lost answer, succeeds.
    path = _suspended(job, name) or _savepoint(out, RequestKind.SUSPEND, job, name, server, seconds)
    if path:
        # The job may be done instead: its last micro-batch ran when the request came. It has the same name.
        out.text(path, path=path, state=_state_of(_head(opened(job))))


@click.argument("job")
@click.option("--savepoint", "name", default="", help="Name of the final savepoint; only if JOB is a folder.")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
@_WAIT
def drain(
    out: CommandOutput, job: str, name: str, endpoint: str, token_file: Path | None, tls_ca: Path | None, seconds: float
) -> None:
    """Drain JOB: stop reading, fire all windows and timers, then end. Waits for the end, at most --wait seconds.

    JOB is the id of a streaming job at the job server, or its folder or URL (--checkpoint_dir). If the driver
    dies meanwhile, run `arcbeam resume`: the job then continues to drain. The command prints the remaining work
    (restrictions, windows, timers) to stderr when it changes; with --json, one object a line.
    """
    if is_folder(job):
        state = _drained(out, job, name, seconds)
    elif name:
        raise click.UsageError("a job server chooses the name of the final savepoint: omit --savepoint")
    else:
        with client_of(endpoint, token_file, tls_ca) as client:
            state = client.drain(job, _checked(seconds))
            if state in _GOING:
                out.progress(f"{job} is draining", id=job, state="DRAINING")
                state = _followed(_Draining(out, job), client, job, seconds) or state
    if state in _GOING:
        raise JobFailedError(
            f"{shown_job(job)} is still draining after {seconds:g} s",
            "it continues to drain; wait longer with --wait=SECONDS, or see what is left: "
            + _line("status", job, endpoint),
        )
    if state:
        out.text(f"{job} is {state}", id=job, state=state)


@click.argument("job")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
@_WAIT
def cancel(
    out: CommandOutput, job: str, endpoint: str, token_file: Path | None, tls_ca: Path | None, seconds: float
) -> None:
    """Cancel JOB and wait for its end.

    JOB is the id of a job at the job server, or the folder or URL (--checkpoint_dir) of a streaming job. A streaming
    job keeps what it has committed, and can be resumed.
    """
    from arcbeam.store.log.requests import RequestKind

    if is_folder(job):
        request_of_folder(out, job, RequestKind.CANCEL, "", seconds)
        if seconds > 0:
            out.text(f"{job} is CANCELLED", id=job, state="CANCELLED")
        return
    with client_of(endpoint, token_file, tls_ca) as client:
        state = client.cancel(job)
        if state == "CANCELLING" and seconds > 0:
            out.progress(f"{job} is being cancelled", id=job, state=state)
            state = client.end(job, seconds) or state
            if state == "CANCELLING":
                raise JobFailedError(
                    f"{job} is still being cancelled after {seconds:g} s",
                    f"see its state: {_line('jobs', '', endpoint)}",
                )
    out.text(f"{job} is {state}", id=job, state=state)


def _line(command: str, job: str, endpoint: str) -> str:
    """Return a command line about a job of a server, or in a folder."""
    here = (job and is_folder(job)) or endpoint == f"localhost:{PORT}"
    return command_line(command, shown_job(job), *(() if here else (f"--endpoint={endpoint}",)))


def _head(blobs: DurableBlobs) -> Manifest | None:
    """Return the newest manifest in a job's folder; None if the folder has none."""
    from arcbeam.store.log.chain import known, read_newest

    newest = read_newest(blobs)
    return None if newest is None else known(newest)


def _suspended(folder: str, name: str) -> str:
    """Return the path of the savepoint with which the job in a folder is suspended; "" if it is not suspended.

    Args:
        folder: of the job.
        name: of the savepoint; "" for any.
    """
    from arcbeam.model.commits import CommitMode
    from arcbeam.store.log.savepoints import path_of

    head = _head(opened(folder))
    if head is None or head.mode is not CommitMode.SUSPENDED:
        return ""
    pins = [pin.name for pin in head.pins if pin.micro_batch == head.micro_batch]
    if name:
        return path_of(folder, name) if name in pins else ""
    # The savepoint may have been deleted. A job suspended by SIGTERM has none.
    return path_of(folder, pins[-1]) if pins else folder


def _state_of(head: Manifest | None) -> str:
    """Return the state of a job that has ended; "" if it has not."""
    return "" if head is None else _STATES.get(head.mode, "")


def _ended(server: Callable[[], JobClient], job: str) -> str:
    """Return the final state of a server's job; "" if it does not end within a second."""
    with server() as client:
        state = client.end(job, _STATE_SECONDS)
    return state if state in _STATES.values() else ""


def _savepoint(
    out: CommandOutput, what: RequestKind, job: str, name: str, server: Callable[[], JobClient], seconds: float
) -> str:
    """Request a savepoint or a suspension. Return the savepoint's path; "" without waiting."""
    if is_folder(job):
        return request_of_folder(out, job, what, name, seconds)
    with server() as client:
        return client.ask(what, job, name, _checked(seconds))


def _checked(seconds: float) -> float:
    """Refuse not to wait for a server: its answer would be lost."""
    if seconds <= 0:
        raise click.UsageError("--wait=0 needs a job's folder, where the request is kept")
    return seconds


def _drained(out: CommandOutput, folder: str, name: str, seconds: float) -> str:
    """Drain the job in a folder. Return its state then; "" without waiting."""
    from arcbeam.model.commits import CommitMode
    from arcbeam.store.log.requests import RequestKind
    from arcbeam.store.manifest.values import ENDED
    from arcbeam.streaming.status.status import status_of

    began, blobs, draining = time.monotonic(), opened(folder), _Draining(out, shown_job(folder))

    def state() -> str:
        head = _head(blobs)
        if head is not None and head.mode is CommitMode.DRAINING:
            draining.report(status_of(head))
        return _state_of(head)

    newest = _head(blobs)
    if newest is not None and newest.mode in ENDED and (not name or newest.pin(name) is not None):
        # A repeated command, after a lost answer, succeeds.
        return _state_of(newest)
    # Without a name, a job that drains already needs no request.
    drains = newest is not None and newest.mode is CommitMode.DRAINING
    if (name or not drains) and not request_of_folder(out, folder, RequestKind.DRAIN, name, seconds):
        return ""
    out.progress(f"{shown_job(folder)} is draining", id=shown_job(folder), state="DRAINING")
    if seconds <= 0:
        return ""
    # Each call of `state` lists the job's manifests.
    return _within(seconds - (time.monotonic() - began), state, every=_STATE_SECONDS) or "DRAINING"


class _Draining:
    """Reports the remaining work of a draining job when it changes.

    Args:
        out: gets the reports.
        job: its name for people.
    """

    def __init__(self, out: CommandOutput, job: str) -> None:
        self._out, self._job, self._reported = out, job, ""

    def report(self, status: Status) -> None:
        """Report the remaining work in a job's status."""
        from arcbeam.streaming.status.words import undone

        left = undone(status)
        if left and left != self._reported:
            self._reported = left
            number = status.micro_batch
            figures = {"micro_batch": number, "restrictions": status.restrictions, "backlog": status.backlog}
            text = f"{self._job} is draining, micro-batch {number}: {left}"
            self._out.progress(text, id=self._job, state="DRAINING", **figures, left=left)


def _followed(draining: _Draining, client: JobClient, job: str, seconds: float) -> str:
    """Wait for the end of a server's job that drains. Return its last state; "" if it has not ended in time."""
    from arcbeam.streaming.status.records import status_from

    deadline, has_status = time.monotonic() + seconds, True
    while True:
        left = deadline - time.monotonic()
        state = client.end(job, max(0.0, min(_STATE_SECONDS, left)))
        if state or left <= _STATE_SECONDS:
            return state
        if has_status:
            try:
                draining.report(status_from(client.status(job)))
            except ArcbeamError:
                # The job may have ended. Only arcbeam's servers have this call.
                has_status = False


def request_of_folder(
    out: CommandOutput, folder: str, what: RequestKind, name: str, seconds: float, new: str = ""
) -> str:
    """Leave a request in a job's folder, and wait for the final answer.

    Args:
        out: gets a message if the command does not wait.
        folder: of the job.
        what: the request.
        name: of a savepoint; "" for a name with the time.
        seconds: to wait at most; 0: do not wait.
        new: as in `requests.Request`.

    Returns:
        The savepoint's path; the folder if the request has no savepoint; "" without waiting.

    Raises:
        RequestRefusedError: the request cannot succeed.
        JobFailedError: there is no final answer in time.
    """
    from arcbeam.model.timestamps import Timestamp
    from arcbeam.store.log import requests
    from arcbeam.store.log.savepoints import named_now, path_of

    name = "" if what is requests.RequestKind.CANCEL else name or named_now(what)
    blobs = opened(folder)
    if seconds > 0:
        requests.carried_out(blobs, what, name, seconds, new=new, place=shown_job(folder))
        return path_of(folder, name) if name else folder
    request = requests.ask(blobs, what, name, Timestamp(time.time_ns() // 1000), new, later=True)
    # The next driver ignores a cancellation of this one.
    by = "only the present driver" if what is requests.RequestKind.CANCEL else "the job's present or next driver"
    out.text(
        f"the request '{what}' is stored in {shown_job(folder)}; {by} will handle it",
        id=shown_job(folder),
        request=request.id,
    )
    return ""


def _within(seconds: float, look: Callable[[], T], every: float = _POLL_SECONDS) -> T:
    """Call `look` until its result is true or the time has passed. Return the last result."""
    deadline = time.monotonic() + seconds
    while not (seen := look()) and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(every, left))
    return seen


def shown_job(job: str) -> str:
    """Return a job's name for people: a folder's URL without its secrets."""
    from arcbeam.store.blobs.backends import shown

    return shown(job) if "://" in job else job


def opened(folder: str, *, may_be_missing: bool = False) -> DurableBlobs:
    """Open a job's folder.

    Args:
        folder: its path or URL.
        may_be_missing: open it although it does not exist; each read fails until it does.

    Raises:
        SetupError: it does not exist, or is the path of a savepoint.
    """
    from arcbeam.store.blobs.backends import open_blobs

    job, mark, name = folder.rstrip("/").rpartition("/savepoints/")
    if mark and "/" not in name:
        raise SetupError(f"'{folder}' is the path of a savepoint", f"give the folder of its job: {job}")
    if is_missing(folder) and not may_be_missing:
        raise SetupError(f"there is no folder '{folder}'", "give the folder of the job (its --checkpoint_dir)")
    return open_blobs(folder, made=may_be_missing)


def is_missing(folder: str) -> bool:
    """Return whether a job's folder is on this machine, and does not exist."""
    return "://" not in folder and not Path(folder).is_dir()
