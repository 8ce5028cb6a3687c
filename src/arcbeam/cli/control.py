"""The commands that steer a job: `arcbeam savepoint`, `drain`, `suspend`, `cancel`.

Owns their arguments and their way of telling. JOB is a job of a job server, or the folder of one, wherever that runs:
then a file in the folder is how it is asked. Imports gRPC and Beam only when a command runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from arcbeam.cli.server import ENDPOINT, TLS_CA, TOKEN_FILE, client_of
from arcbeam.console.output import Output
from arcbeam.errors import ArcbeamError, JobFailedError, SetupError

if TYPE_CHECKING:
    from arcbeam.jobs.client import JobClient
    from arcbeam.store.blobs.durable import DurableBlobs
    from arcbeam.store.log.requests import Answer, Asked, Request
    from arcbeam.store.manifest.values import Manifest

T = TypeVar("T")

_POLL_SECONDS = 0.2
_STATE_SECONDS = 1.0
_STATES = {"done": "DONE", "drained": "DRAINED", "suspended": "STOPPED"}

_WAIT = click.option(
    "--wait",
    "seconds",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds to wait until it is done. 0, of a folder: only leave the request there, for whoever runs the job.",
)


def is_folder(job: str) -> bool:
    """Whether somebody who names a job means its folder, not an id at a job server."""
    return "/" in job or Path(job).is_dir()


@click.argument("job")
@click.argument("name", default="")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
@_WAIT
def savepoint(
    out: Output, job: str, name: str, endpoint: str, token_file: Path | None, tls_ca: Path | None, seconds: float
) -> None:
    """Give the next micro-batch of JOB a name, and keep it; the job goes on. Prints the savepoint's path.

    JOB is the id of a streaming job at the job server, or the folder or URL of one (its --checkpoint_dir). NAME is of
    up to 100 letters, digits, '.', '_' and '-'; without it, one that says when this was.
    """
    from arcbeam.store.log.requests import Asked

    path = _savepoint(out, Asked.SAVEPOINT, job, name, lambda: client_of(endpoint, token_file, tls_ca), seconds)
    if path:
        out.text(path, path=path)


@click.argument("job")
@click.option("--savepoint", "name", default="", help="Name of the micro-batch with which it stops.")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
@_WAIT
def suspend(
    out: Output, job: str, name: str, endpoint: str, token_file: Path | None, tls_ca: Path | None, seconds: float
) -> None:
    """Stop JOB so that it can go on later: no window and no timer fires for it. Prints the savepoint's path.

    JOB is the id of a streaming job at the job server, or the folder or URL of one (its --checkpoint_dir). It goes on
    when its pipeline is submitted again with that folder, or with `arcbeam resume`.
    """
    from arcbeam.store.log.requests import Asked

    def server() -> JobClient:
        return client_of(endpoint, token_file, tls_ca)

    if not is_folder(job):
        path = _savepoint(out, Asked.SUSPEND, job, name, server, seconds)
        out.text(path, path=path, state=_ended(server, job) or "STOPPED")
        return
    # Who asks twice, because an answer was lost, has what was wanted.
    path = _suspended(job, name) or _savepoint(out, Asked.SUSPEND, job, name, server, seconds)
    if path:
        # A job whose last micro-batch ran when it was asked is done with that one, under the same name.
        out.text(path, path=path, state=_state_of(_head(opened(job))))


@click.argument("job")
@click.option("--savepoint", "name", default="", help="Name of the last micro-batch; of a folder only.")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
@_WAIT
def drain(
    out: Output, job: str, name: str, endpoint: str, token_file: Path | None, tls_ca: Path | None, seconds: float
) -> None:
    """Have JOB finish what it has, and take in nothing more: all windows and timers fire. Waits for its end.

    JOB is the id of a streaming job at the job server, or the folder or URL of one (its --checkpoint_dir). A job that
    drains goes on draining whatever happens to whoever runs it. What is left to do is told whenever that changes: which
    restrictions are not done, what fires; with --json an object a line, on stderr.
    """
    if is_folder(job):
        state = _drained(out, job, name, seconds)
    elif name:
        raise click.UsageError("a job server names the last micro-batch itself: leave out --savepoint")
    else:
        with client_of(endpoint, token_file, tls_ca) as client:
            state = client.drain(job, _some(seconds))
            if state in ("DRAINING", "RUNNING"):
                out.progress(f"{job} is draining", id=job, state="DRAINING")
                state = _followed(_Draining(out, job), client, job, seconds) or state
    if state in ("DRAINING", "RUNNING"):
        raise JobFailedError(
            f"{shown_job(job)} is draining, and has not ended within {seconds:g} s",
            "it continues; see what is left: arcbeam status, or wait longer: --wait=SECONDS",
        )
    if state:
        out.text(f"{job} is {state}", id=job, state=state)


@click.argument("job")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
@_WAIT
def cancel(out: Output, job: str, endpoint: str, token_file: Path | None, tls_ca: Path | None, seconds: float) -> None:
    """Cancel JOB and wait for its end.

    JOB is the id of a job at the job server, or the folder or URL of a streaming one (its --checkpoint_dir). What a job
    in micro-batches has committed stays, and it can be resumed.
    """
    from arcbeam.store.log.requests import Asked

    if is_folder(job):
        asked_of_folder(out, job, Asked.CANCEL, "", seconds)
        if seconds > 0:
            out.text(f"{job} is CANCELLED", id=job, state="CANCELLED")
        return
    with client_of(endpoint, token_file, tls_ca) as client:
        state = client.cancel(job)
        if state == "CANCELLING" and seconds > 0:
            out.progress(f"{job} is being cancelled", id=job, state=state)
            state = client.end(job, seconds) or state
            if state == "CANCELLING":
                raise JobFailedError(f"{job} has not ended within {seconds:g} s", "look again with `arcbeam jobs`")
    out.text(f"{job} is {state}", id=job, state=state)


def _head(blobs: DurableBlobs) -> Manifest | None:
    """The newest manifest in a job's folder whose savepoints count."""
    from arcbeam.store.log.chain import known, read_newest

    newest = read_newest(blobs)
    return None if newest is None else known(newest)


def _suspended(folder: str, name: str) -> str:
    """The savepoint with which the job in a folder is suspended, under this name if there is one; "": it is not."""
    from arcbeam.model.commits import CommitMode
    from arcbeam.store.log.savepoints import path_of

    head = _head(opened(folder))
    if head is None or head.mode is not CommitMode.SUSPENDED:
        return ""
    pins = [pin.name for pin in head.pins if pin.micro_batch == head.micro_batch]
    if name:
        return path_of(folder, name) if name in pins else ""
    # Its savepoint may have been deleted, and it has none for SIGTERM.
    return path_of(folder, pins[-1]) if pins else folder


def _state_of(head: Manifest | None) -> str:
    """The state of a job that has ended; "" if it has not."""
    return "" if head is None else _STATES.get(head.mode, "")


def _ended(server: Callable[[], JobClient], job: str) -> str:
    """The state of a job of a server that has ended; "" if it is not known soon."""
    with server() as client:
        state = client.end(job, _STATE_SECONDS)
    return state if state in _STATES.values() else ""


def _savepoint(out: Output, what: Asked, job: str, name: str, server: Callable[[], JobClient], seconds: float) -> str:
    """Asks for what ends with a savepoint; its path, "" if nobody waits for it."""
    if is_folder(job):
        return asked_of_folder(out, job, what, name, seconds)
    with server() as client:
        return client.ask(what, job, name, _some(seconds))


def _some(seconds: float) -> float:
    """A server is always waited for: what it does not say is lost."""
    if seconds <= 0:
        raise click.UsageError("--wait=0 is for a folder, where the request stays")
    return seconds


def _drained(out: Output, folder: str, name: str, seconds: float) -> str:
    """Drains the job in a folder; its state then, "" if nobody waits for it."""
    from arcbeam.model.commits import CommitMode
    from arcbeam.store.log.requests import Asked
    from arcbeam.store.manifest.values import ENDED
    from arcbeam.streaming.status.status import as_record, status_of

    began, blobs, told = time.monotonic(), opened(folder), _Draining(out, shown_job(folder))

    def state() -> str:
        head = _head(blobs)
        if head is not None and head.mode is CommitMode.DRAINING:
            told.stands(as_record(status_of(head)))
        return _state_of(head)

    newest = _head(blobs)
    if newest is not None and newest.mode in ENDED and (not name or newest.pin(name) is not None):
        # Who asks twice, because an answer was lost, has what was wanted.
        return _state_of(newest)
    # Whoever wants no more than that it drains has it if it does already.
    drains = newest is not None and newest.mode is CommitMode.DRAINING
    if (name or not drains) and not asked_of_folder(out, folder, Asked.DRAIN, name, seconds):
        return ""
    out.progress(f"{shown_job(folder)} is draining", id=shown_job(folder), state="DRAINING")
    if seconds <= 0:
        return ""
    # Each look lists the job's manifests.
    return _within(seconds - (time.monotonic() - began), state, every=_STATE_SECONDS) or "DRAINING"


class _Draining:
    """Tells what a job that drains has still to do, whenever that is something else.

    Args:
        out: is told.
        job: as people may see it.
    """

    def __init__(self, out: Output, job: str) -> None:
        self._out, self._job, self._told = out, job, ""

    def stands(self, record: Mapping[str, Any]) -> None:
        """A look at where the job stands; see `arcbeam.streaming.status.status.as_record`."""
        from arcbeam.streaming.status.status import undone

        left = undone(record)
        if left and left != self._told:
            self._told = left
            figures = {name: record.get(name) for name in ("micro_batch", "restrictions", "backlog")}
            text = f"{self._job} is draining, micro-batch {record.get('micro_batch')}: {left}"
            self._out.progress(text, id=self._job, state="DRAINING", **figures, left=left)


def _followed(told: _Draining, client: JobClient, job: str, seconds: float) -> str:
    """Waits for the end of a job of a server that drains; its last state by then."""
    deadline, tells = time.monotonic() + seconds, True
    while True:
        left = deadline - time.monotonic()
        state = client.end(job, max(0.0, min(_STATE_SECONDS, left)))
        if state not in ("", "DRAINING", "RUNNING") or left <= _STATE_SECONDS:
            return state
        if tells:
            try:
                told.stands(client.status(job))
            except ArcbeamError:
                # It may have ended; and other servers than ours have no such call.
                tells = False


def asked_of_folder(out: Output, folder: str, what: Asked, name: str, seconds: float, new: str = "") -> str:
    """Asks the job in a folder, and waits until that is settled.

    Args:
        out: is told that nobody waits.
        folder: of the job.
        what: is asked.
        name: of a savepoint; "" for one that says when this was.
        seconds: to wait at most; 0: not at all.
        new: as in `requests.Request`.

    Returns:
        The savepoint's path, or what stands for it; "" if nobody waits.

    Raises:
        RequestRefusedError: nothing comes of it.
        JobFailedError: nothing has come of it in time.
    """
    from arcbeam.model.timestamps import Timestamp
    from arcbeam.store.blobs.errors import StoreError
    from arcbeam.store.log import requests
    from arcbeam.store.log.jobname import job_in
    from arcbeam.store.log.savepoints import named_now, path_of

    name = "" if what is requests.Asked.CANCEL else name or named_now(what)
    blobs = opened(folder)
    request = requests.ask(blobs, what, name, Timestamp(time.time_ns() // 1000), new, later=seconds <= 0)
    if seconds <= 0:
        out.text(f"{shown_job(folder)} is asked for '{what}'", id=shown_job(folder), request=request.id)
        return ""
    try:
        answer = _answered(blobs, request, seconds)
    except BaseException:
        # Whoever is interrupted would not know of it any more.
        with contextlib.suppress(StoreError):
            requests.withdraw(blobs, request)
        raise
    if answer is None:
        requests.withdraw(blobs, request)
        # Somebody may have taken it meanwhile.
        answer = requests.answer_to(blobs, request)
    if answer is None:
        raise JobFailedError(
            f"no driver of {job_in(blobs)} answered '{what}' within {seconds:g} s: the request is withdrawn",
            f"see whether one runs: arcbeam status {shown_job(folder)}; if not, resume the job: arcbeam resume "
            f"{shown_job(folder)}; or leave the request for the next driver: --wait=0",
        )
    if not answer.settled:
        raise JobFailedError(
            f"'{what}' of {job_in(blobs)} has begun, and was not done within {seconds:g} s",
            f"it continues; see where it is: arcbeam status {shown_job(folder)}",
        )
    if answer.said is requests.Said.REFUSED:
        raise requests.refusal(what, job_in(blobs), answer.text, answer.remedy)
    return path_of(folder, name) if name else folder


def _answered(blobs: DurableBlobs, request: Request, seconds: float) -> Answer | None:
    """The last answer within some seconds; else the newest, if there is any."""
    from arcbeam.store.log.requests import answer_to

    found: list[Answer] = []

    def settled() -> Answer | None:
        answer = answer_to(blobs, request)
        if answer is not None:
            found.append(answer)
        return answer if answer is not None and answer.settled else None

    return _within(seconds, settled) or (found[-1] if found else None)


def _within(seconds: float, look: Callable[[], T], every: float = _POLL_SECONDS) -> T:
    """What somebody sees who looks again and again; the last, if it is nothing, when the time is over."""
    deadline = time.monotonic() + seconds
    while not (seen := look()) and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(every, left))
    return seen


def shown_job(job: str) -> str:
    """A job as people may see it: a folder's URL may hold secrets."""
    from arcbeam.store.blobs.backends import shown

    return shown(job) if "://" in job else job


def opened(folder: str) -> DurableBlobs:
    """A job's folder.

    Raises:
        SetupError: there is none.
    """
    from arcbeam.store.blobs.backends import open_blobs

    job, mark, name = folder.rstrip("/").rpartition("/savepoints/")
    if mark and "/" not in name:
        raise SetupError(f"'{folder}' is the path of a savepoint", f"name the folder of its job: {job}")
    if "://" not in folder and not Path(folder).is_dir():
        raise SetupError(f"there is no folder '{folder}'", "name the folder that was given as --checkpoint_dir")
    return open_blobs(folder)
