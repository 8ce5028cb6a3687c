"""Control of jobs from the page: what each request does, its confirmation, its progress and its result.

Owns the words, the forms, and the requests under way. Complete without JavaScript. Each request goes the way of the
command line: a file in the job's folder, or a call of its job server. Must not know how a job carries it out.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from arcbeam.console.commandlines import command_line
from arcbeam.errors import ArcbeamError
from arcbeam.model import texts
from arcbeam.model.commits import CommitMode
from arcbeam.page import states
from arcbeam.page.access.security import FormTokens, form_of
from arcbeam.page.live import Shown
from arcbeam.page.sources import Control, Listed, Savepoints, Source
from arcbeam.page.states import is_live
from arcbeam.store.log.jobname import resume_command
from arcbeam.store.log.requests import RequestKind
from arcbeam.store.log.savepoints import path_of, split_path
from arcbeam.streaming.status.moment import STOPPED
from arcbeam.streaming.status.words import has_job_graph, shown, silent, without_driver

FOREIGN: Final = "this form is not of this page, or the page was restarted; nothing was done"
"""Refuses a form."""
_KEPT: Final = 200
"""Requests whose results are remembered."""
WAIT_SECONDS: Final = 60.0
"""How long a request waits for its job."""


@dataclass(frozen=True, slots=True)
class Consequences:
    """What a request does, for a user who has to decide.

    Attributes:
        title: of the dialog.
        does: in a sentence.
        effects: on windows and timers, part files, and state.
        after: how to continue; in it are the fields of `_after`.
        named: whether the user may name its savepoint.
    """

    title: str
    does: str
    effects: tuple[tuple[str, str], ...]
    after: str
    named: bool = True


CONSEQUENCES: Final = {
    RequestKind.SAVEPOINT: Consequences(
        "Take a savepoint",
        "The next micro-batch that the job commits gets a name. The job continues.",
        (
            ("windows and timers", "nothing fires because of it"),
            ("part files", "unchanged"),
            ("state", "the savepoint's files are kept until the savepoint is deleted"),
        ),
        "To go back to it, and discard what the job has committed since: {restore}. To delete it: {delete}.",
    ),
    RequestKind.SUSPEND: Consequences(
        "Suspend the job",
        "The job takes a savepoint and stops. It can be resumed where it stopped.",
        (
            ("windows and timers", "none fires because of it; they stay in the state, and fire after the job resumes"),
            ("part files", "all output that is committed is published"),
            ("state", "kept in the job's folder"),
        ),
        "To continue: {again}.",
    ),
    RequestKind.DRAIN: Consequences(
        "Drain the job",
        "The job stops reading, finishes what it has read, and ends. This cannot be undone.",
        (
            ("windows and timers", "all fire, also windows that are incomplete"),
            ("part files", "all output is published"),
            ("state", "no longer needed, also if some is shown; savepoints from before stay"),
        ),
        "To run it again: submit the pipeline with another --checkpoint_dir, or go back to an earlier savepoint.",
    ),
    RequestKind.CANCEL: Consequences(
        "Cancel the job",
        "The job ends at once. What its present micro-batch has done is discarded.",
        (
            ("windows and timers", "none fires because of it"),
            (
                "part files",
                "output of committed micro-batches stays; what is not published yet is when the job resumes",
            ),
            ("state", "as of the last commit; a job without a --checkpoint_dir loses it"),
        ),
        "To continue from the last commit: {resume}. Suspend or drain the job to end it without repeats.",
        named=False,
    ),
}

OF_SAVEPOINTS: Final = {
    RequestKind.RENAME: Consequences(
        "Rename the savepoint",
        "The savepoint gets another name. The job continues.",
        (("commands", "those with the earlier name find nothing"),),
        "On a command line: {command}. If no driver runs the job, and it is neither suspended nor done, add --force.",
    ),
    RequestKind.DELETE: Consequences(
        "Delete the savepoint",
        "No job can go back to it any more. This cannot be undone. The job itself is not changed.",
        (("state", "a later micro-batch removes the files that only this savepoint needs"),),
        "On a command line: {command}. If no driver runs the job, and it is neither suspended nor done, add --force.",
        named=False,
    ),
}

CANCEL_BOUNDED: Final = Consequences(
    "Cancel the job",
    "The job ends at once.",
    (
        ("part files", "they are published when all work is done: if that has begun, some of the output is there"),
        ("state", "a bounded job keeps none"),
    ),
    "To run it again, submit it: it begins from its beginning.",
    named=False,
)


def allowed(job: Listed) -> tuple[RequestKind, ...]:
    """Return the requests that make sense for a job as it is now."""
    if not is_live(job) or job.silent is not None or job.state == "STOPPED":
        return ()
    if (status := job.status) is None:
        return (RequestKind.CANCEL,) if job.state in ("STARTING", "RUNNING") else ()
    if job.state == "CANCELLING":
        return ()
    if silent(status) is not None:
        # A driver answers requests in a folder; a service ends its process, too.
        return (RequestKind.CANCEL,) if job.state else ()
    match status.mode:
        case CommitMode.RUNNING:
            return (RequestKind.SAVEPOINT, RequestKind.SUSPEND, RequestKind.DRAIN, RequestKind.CANCEL)
        case CommitMode.DRAINING:
            return (RequestKind.CANCEL,)
    return ()


def refused(job: Listed) -> str:
    """Return why some requests would be refused now; "" if none would be, or the job has ended."""
    status = job.status
    if status is None or not is_live(job) or job.silent is not None:
        return ""
    if why := without_driver(status):
        return f"{why}: a request would get no answer" if not status.is_suspended else why
    return "the job drains already" if status.mode is CommitMode.DRAINING else ""


def not_now(job: Listed) -> str:
    """Return why a job cannot do now what is not in `allowed`."""
    if why := refused(job):
        return why
    if job.silent is not None and is_live(job):
        return "there is no contact with its service"
    state = states.name_of(job).lower()
    return f"the job has {state}" if state == "failed" else f"the job is {state}"


def consequences(job: Listed, what: RequestKind) -> Consequences:
    """Return what a request does to a job."""
    if job.status is None:
        return CANCEL_BOUNDED
    return CONSEQUENCES[what]


@dataclass(frozen=True, slots=True)
class Operation:
    """A request under way, or its result: as it is at one time, so that a page never shows parts of both.

    Attributes:
        what: the request.
        job: its id.
        state: "running", "done" or "refused".
        text: the result, or the reason.
        remedy: what to do about a refusal.
    """

    what: RequestKind
    job: str
    state: str = "running"
    text: str = ""
    remedy: str = ""


_TOO_OLD: Final = partial(
    Operation, state="refused", text="the form is too old; it may have been sent before", remedy="open it again"
)


class Operations:
    """The requests of this page's users, each on a thread of its own, so that no viewer waits.

    Invariant: a request that is forgotten is not newer than `_forgotten`, in the order of `new`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Operation] = OrderedDict()
        self._numbers = itertools.count(1)
        self._forgotten = 0

    def new(self) -> str:
        """Return the number of a further request. A form has one, so that sending it twice does nothing twice."""
        return f"{next(self._numbers)}-{secrets.token_hex(8)}"

    def begin(self, number: str, job: str, what: RequestKind, call: Callable[[], str]) -> None:
        """Begin a request, unless one of this number has begun. If that may be forgotten, it is refused.

        Args:
            number: from `new`.
            job: its id.
            what: the request.
            call: carries it out, and returns the result for people. Raises ArcbeamError if it is refused.
        """
        with self._lock:
            if number in self._known:
                return
            is_old = _place(number) <= self._forgotten
            self._known[number] = _TOO_OLD(what, job) if is_old else Operation(what, job)
            while len(self._known) > _KEPT:
                self._forgotten = max(self._forgotten, _place(self._known.popitem(last=False)[0]))
            if is_old:
                return

        def work() -> None:
            try:
                ended = Operation(what, job, "done", call())
            except ArcbeamError as e:
                ended = Operation(what, job, "refused", e.message, e.remedy)
            except Exception as e:
                ended = Operation(what, job, "refused", texts.safe_text(repr, e))
            with self._lock:
                if number in self._known:
                    self._known[number] = ended

        threading.Thread(target=work, name=f"page-{what}", daemon=True).start()

    def get(self, number: str) -> Operation | None:
        """Return a request; None if there is no such request, or it is forgotten."""
        with self._lock:
            return self._known.get(number)


def _place(number: str) -> int:
    """Return which of all numbers of a process it is."""
    return int(number.partition("-")[0])


def carry_out(control: Control, what: RequestKind, name: str, job_graph: bool = True) -> str:
    """Carry a request out. Return the result for people.

    Args:
        control: of the job.
        what: the request.
        name: of the savepoint; "": a name with the time.
        job_graph: whether a job graph is stored with the job.

    Raises:
        ArcbeamError: it is refused, or its job does not answer in time.
    """
    place = control.request(what, name, WAIT_SECONDS)
    match what:
        case RequestKind.SAVEPOINT:
            back = resume_command(place, job_graph, savepoint=True, discards=True)
            return f"The savepoint is taken. To go back to it, and discard what the job commits after it: {back}"
        case RequestKind.SUSPEND:
            # Not from the savepoint: repeated after a later failure, the command would go back to it.
            return f"The job is suspended. To continue: {resume_command(split_path(place)[0], job_graph)}"
        case RequestKind.DRAIN:
            return "The job drains. Its page shows what is left."
    return "The job is cancelled, or is about to be."


def change_savepoint(savepoints: Savepoints, name: str, new: str) -> str:
    """Rename a savepoint, or delete it if there is no new name. Return the result for people.

    Raises:
        ArcbeamError: it is refused, or its job does not answer in time.
    """
    savepoints.change(name, new, WAIT_SECONDS)
    return f"Savepoint '{name}' is renamed to '{new}'." if new else f"Savepoint '{name}' is deleted."


def not_changeable(job: Listed) -> str:
    """Return why the savepoints of a job cannot be changed now; "" if they can."""
    status = job.status
    if status is None:
        return "its status is unknown"
    if status.mode in STOPPED or RequestKind.SAVEPOINT in allowed(job):
        return ""
    return not_now(job)


_TITLES: Final = {"running": "is under way", "done": "is done", "refused": "is refused"}


def links(job: Listed) -> dict[str, Any]:
    """Return the values of the template `control.html`, for the page of a job."""
    possible, why = allowed(job), refused(job)
    offered = CONSEQUENCES if possible or why else ()
    return {
        "links": [
            (what.value, consequences(job, what).title, what in possible) for what in offered if what in possible or why
        ],
        "refused": why if len(possible) < len(CONSEQUENCES) else "",
    }


class ControlPages:
    """The pages of requests.

    Args:
        source: of the jobs.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._operations, self._tokens = Operations(), FormTokens()

    def confirmation(self, request: Request) -> Shown:
        """Return what a request does, and its form. Changes nothing."""
        found = self._source.job(request.path_params["id"])
        what = _requested(request)
        if found is None or what is None:
            return missing("There is no such job or request here.")
        number = self._operations.new()
        values = {
            "row": states.row_of(found),
            "action": f"/job/{found.id}/control/{what.value}",
            "back": f"/job/{found.id}",
            "label": "Name of the savepoint",
            "must_name": False,
            "about": consequences(found, what),
            "after": _after(found, what),
            "possible": what in allowed(found),
            "not_now": not_now(found),
            "quiet": found.status is not None and bool(without_driver(found.status)),
            "loaded": shown(round(time.time() * 1e6)),
            "number": number,
            "token": self._tokens.token(request, found.id, what, number),
        }
        return Shown("confirm.html", is_live(found), values)

    async def begin(self, request: Request) -> Response:
        """Begin the request of a form of this page, and lead to its result."""
        form, what, id = await form_of(request), _requested(request), request.path_params["id"]
        number = form.get("number", "")
        if what is None or not self._tokens.holds(form.get("form_token", ""), request, id, what, number):
            return PlainTextResponse(FOREIGN, 403)
        control = await run_in_threadpool(self._source.control, id)
        if control is None:
            return PlainTextResponse("there is no such job here; nothing was done", 404)
        found = await run_in_threadpool(self._source.job, id)
        job_graph, name = found is None or _has_job_graph(found), form.get("name", "").strip()
        self._operations.begin(number, id, what, partial(carry_out, control, what, name, job_graph))
        return RedirectResponse(f"/job/{id}/request/{number}", 303)

    def savepoint(self, request: Request) -> Shown:
        """Return what a change of a savepoint does, and its form. Changes nothing."""
        id, name, what = (request.path_params[each] for each in ("id", "name", "what"))
        found = self._source.job(id)
        if found is None or what not in OF_SAVEPOINTS or self._source.savepoints(id) is None:
            return missing("There is no such job or change here, or its folder cannot be reached from here.")
        number, about, why = self._operations.new(), OF_SAVEPOINTS[RequestKind(what)], not_changeable(found)
        folder = _folder(found)
        new = ("NEW",) if about.named else ()
        values = {
            "row": states.row_of(found),
            "action": f"/job/{id}/savepoint/{name}/{what}",
            "back": f"/job/{id}/details",
            "label": "Its new name",
            "must_name": True,
            "about": replace(about, title=f"{about.title} '{name}'"),
            "after": about.after.format(command=command_line("savepoints", folder, what, name, *new)),
            "possible": not why,
            "not_now": why,
            "quiet": found.status is not None and bool(without_driver(found.status)),
            "loaded": shown(round(time.time() * 1e6)),
            "number": number,
            "token": self._tokens.token(request, id, what, name, number),
        }
        return Shown("confirm.html", is_live(found), values)

    async def change(self, request: Request) -> Response:
        """Begin the change of a savepoint by a form of this page, and lead to its result."""
        form = await form_of(request)
        id, name, what = (request.path_params[each] for each in ("id", "name", "what"))
        number, new = form.get("number", ""), form.get("name", "").strip()
        if not self._tokens.holds(form.get("form_token", ""), request, id, what, name, number):
            return PlainTextResponse(FOREIGN, 403)
        if (what == RequestKind.RENAME) != bool(new):
            return PlainTextResponse("a savepoint is renamed to a name, and deleted without; nothing was done", 400)
        savepoints = await run_in_threadpool(self._source.savepoints, id)
        if savepoints is None:
            return PlainTextResponse("there is no such job here; nothing was done", 404)
        self._operations.begin(number, id, RequestKind(what), partial(change_savepoint, savepoints, name, new))
        return RedirectResponse(f"/job/{id}/request/{number}", 303)

    def result(self, request: Request) -> Shown:
        """Return how far a request is, and its result."""
        id, number = request.path_params["id"], request.path_params["number"]
        operation = self._operations.get(number)
        if operation is None or operation.job != id:
            return missing("There is no such request here, or it is forgotten.")
        values = {
            "id": id,
            "title": (CONSEQUENCES | OF_SAVEPOINTS)[operation.what].title,
            "how": _TITLES[operation.state],
            "operation": operation,
        }
        return Shown("request.html", operation.state == "running", values)


def _after(job: Listed, what: RequestKind) -> str:
    """Return how to continue after a request."""
    folder, job_graph = _folder(job), _has_job_graph(job)
    resume = resume_command(folder, job_graph)
    return consequences(job, what).after.format(
        delete=command_line("savepoints", folder, "delete", "NAME"),
        resume=resume,
        again=f"{resume}, or submit the pipeline again with the same --checkpoint_dir" if job_graph else resume,
        restore=resume_command(path_of(folder, "NAME"), job_graph, savepoint=True, discards=True),
    )


def _has_job_graph(job: Listed) -> bool:
    return job.status is None or has_job_graph(job.status)


def _folder(job: Listed) -> str:
    return (job.status.folder if job.status else "") or "FOLDER"


def missing(what: str) -> Shown:
    """Return the page of something that is not here."""
    return Shown("missing.html", False, {"what": what, "error": ""}, 404)


def _requested(request: Request) -> RequestKind | None:
    what = request.path_params["what"]
    return RequestKind(what) if what in CONSEQUENCES else None
