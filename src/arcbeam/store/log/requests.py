"""Requests to a running job, as files in its folder: a request, and its answer.

Owns the files and the requesting side. The job's driver, on any machine, looks for them
(`arcbeam.streaming.driver.requests`). Must not know what a driver does with a request.

    requests/<time>-<token>     stays until it is settled: a driver that dies leaves it to the next one
    answers/<time>-<token>      by the driver: taken, then done or refused; removed by its reader, or after a day
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from arcbeam import documents
from arcbeam.console.commandlines import command_line
from arcbeam.errors import JobFailedError, RequestRefusedError
from arcbeam.model.commits import CommitMode, deletion, renaming
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError, StoreError
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.endnote import note_of
from arcbeam.store.log.jobname import has_job_graph, job_in, resume_command
from arcbeam.store.log.savepoints import change_stopped, changed, checked_name
from arcbeam.store.manifest.names import ANSWERS, REQUESTS, answer_name, request_name
from arcbeam.store.manifest.values import ENDED, Manifest

VERSION = 1
_DAY = 24 * 3600 * 1_000_000
_POLL_SECONDS = 0.2


class RequestKind(StrEnum):
    """The kind of a request."""

    SAVEPOINT = "savepoint"
    DRAIN = "drain"
    SUSPEND = "suspend"
    CANCEL = "cancel"
    DELETE = "delete"
    """Delete a savepoint."""
    RENAME = "rename"
    """Rename a savepoint."""
    SAMPLE = "sample"
    """Take samples of the outputs of a stage."""


_DOING = {
    RequestKind.SAVEPOINT: "take a savepoint of",
    RequestKind.DELETE: "delete a savepoint of",
    RequestKind.RENAME: "rename a savepoint of",
    RequestKind.SAMPLE: "take samples of",
}
"""The words for a request, if its own word is not enough."""


def refusal(what: RequestKind, job: str, why: str, remedy: str = "") -> RequestRefusedError:
    """Return the error for a refused request.

    Args:
        what: the request.
        job: its name, as from `jobname`: `job 'words' in '/data/words'`; for a server's job `job 'words-1f0c'`.
        why: the state of the job, or what is wrong with the request.
        remedy: what to do.
    """
    return RequestRefusedError(f"cannot {_DOING.get(what, what)} {job}: {why}", remedy)


def stopped_remedy(what: RequestKind, folder: str, *, ended: bool, job_graph: bool) -> str:
    """Return what to do about a request for a job that has no driver.

    Args:
        what: the request.
        folder: of the job.
        ended: the job is done or drained; otherwise it can be resumed.
        job_graph: whether the folder has a job graph.
    """
    if ended:
        return "there is nothing to do; to run the pipeline again, submit it with another --checkpoint_dir"
    if what is RequestKind.CANCEL:
        return "there is nothing to cancel; to give up the job, remove its folder"
    how = resume_command(folder, job_graph)
    return f"to resume it: {how}" if what is RequestKind.SUSPEND else f"resume it first: {how}"


def unanswered_remedy(blobs: DurableBlobs, place: str) -> str:
    """Return what to do if no driver answers.

    Args:
        blobs: the job's folder.
        place: the folder, for people.
    """
    resume = resume_command(place, has_job_graph(blobs))
    return f"check whether a driver runs: {command_line('status', place)}; if not, resume the job: {resume}"


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        id: unique; later ones are greater, as far as clocks agree.
        what: its kind.
        savepoint: the name of the savepoint to create; for a deletion or renaming, that of an existing one; "" for a
            cancellation, and for samples.
        micro_batch: the newest one at the time of the request. A savepoint of that name and of a later micro-batch
            answers the request.
        epoch: of the job's driver at that time.
        new: the new name of a savepoint; "" for other requests.
        stage: of which samples are taken; "" for other requests.
    """

    id: str
    what: RequestKind
    savepoint: str
    micro_batch: int
    epoch: int
    new: str = ""
    stage: str = ""

    @property
    def change(self) -> str:
        """The change of names in the next commit; see `name_change`. "" for a cancellation, and for samples."""
        match self.what:
            case RequestKind.DELETE:
                return deletion(self.savepoint)
            case RequestKind.RENAME:
                return renaming(self.savepoint, self.new)
        return self.savepoint


class AnswerKind(StrEnum):
    """The kind of an answer."""

    TAKEN = "taken"
    """A driver has accepted the request."""
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """A driver's answer to a request.

    Attributes:
        kind: its kind. A drain is done when it is committed that the job drains; draining itself takes longer.
        text: for people.
        micro_batch: the one committed for it; None if there is none.
        remedy: what to do about a refusal; "" if the text says it.
    """

    kind: AnswerKind
    text: str = ""
    micro_batch: int | None = None
    remedy: str = ""

    @property
    def settled(self) -> bool:
        """Whether no other answer follows."""
        return self.kind is not AnswerKind.TAKEN


def ask(
    blobs: DurableBlobs,
    what: RequestKind,
    savepoint: str,
    now: Timestamp,
    new: str = "",
    *,
    stage: str = "",
    later: bool = False,
) -> Request:
    """Leave a request in a job's folder.

    Args:
        blobs: the job's folder.
        what: the kind of request.
        savepoint: as in `Request`.
        now: the time.
        new: as in `Request`.
        stage: as in `Request`.
        later: the job's next driver may carry it out, too.

    Raises:
        RequestRefusedError: the job has ended, is suspended, or its driver has reported its end (with `later`, only a
            cancellation is refused for that). Or the savepoint's name is invalid or taken, or missing if it is to be
            deleted or renamed.
        StoreError: there is no job, or it cannot be read.
    """
    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
    head = known(newest)
    job = job_in(blobs, head)
    if head.mode in ENDED or head.mode is CommitMode.SUSPENDED:
        remedy = stopped_remedy(what, str(blobs), ended=head.mode in ENDED, job_graph=bool(head.job_graph))
        raise refusal(what, job, f"it is {head.mode} at micro-batch {head.micro_batch}", remedy)
    note = note_of(blobs, head)
    if note is not None and (what is RequestKind.CANCEL or not later):
        remedy = stopped_remedy(what, str(blobs), ended=False, job_graph=bool(head.job_graph))
        if what not in (RequestKind.CANCEL, RequestKind.SAMPLE):
            remedy += "; or leave the request for the next driver: --wait=0"
        # Only the first line: what follows is a traceback, and what to do about the failure, not about this request.
        ended = str(note).partition("\n")[0]
        raise refusal(what, job, f"no driver is running it (micro-batch {head.micro_batch}; {ended})", remedy)
    id = f"{now:016d}-{uuid.uuid4().hex[:12]}"
    request = Request(id, what, savepoint, newest.micro_batch, head.epoch, new, stage)
    refuse_name(head, request, job)
    record = {
        "what": request.what,
        "savepoint": request.savepoint,
        "micro_batch": request.micro_batch,
        "epoch": request.epoch,
        "new": request.new,
        "stage": request.stage,
    }
    blobs.put(request_name(request.id), documents.encode(VERSION, record))
    return request


def refuse_name(head: Manifest, request: Request, job: str = "the job") -> None:
    """Refuse a request with a name that no micro-batch can get, or that does not exist.

    Args:
        head: of the job.
        request: with the name of a savepoint.
        job: as in `refusal`.

    Raises:
        RequestRefusedError: the name is invalid, taken, or missing.
    """
    if (fault := fault_of_name(head, request)) is not None:
        raise refusal(request.what, job, fault.message, fault.remedy)


def fault_of_name(head: Manifest, request: Request) -> StoreError | None:
    """Return what is wrong with the savepoint's name in a request; None if it is right."""
    if request.what in (RequestKind.CANCEL, RequestKind.SAMPLE) or (
        request.what is RequestKind.SUSPEND and not request.savepoint
    ):
        return None
    try:
        if request.what in (RequestKind.DELETE, RequestKind.RENAME):
            changed(head, request.change)
        else:
            checked_name(head, request.savepoint)
    except StoreError as e:
        return e
    return None


def answer_to(blobs: DurableBlobs, request: Request) -> Answer | None:
    """Return a driver's answer; None if there is none. A final answer is read once: it is removed."""
    try:
        record = documents.decode(blobs.get(answer_name(request.id)), VERSION, "an answer")
        found = Answer(AnswerKind(record["kind"]), record["text"], record["micro_batch"], record["remedy"])
    except MissingFileError:
        return None
    except (ValueError, KeyError, TypeError) as e:
        raise StoreError(f"'{answer_name(request.id)}' in '{blobs}' is not an answer: {e!r}") from e
    if found.settled:
        blobs.delete(answer_name(request.id))
    return found


def withdraw(blobs: DurableBlobs, request: Request) -> None:
    """Withdraw a request. A driver that has accepted it carries it out nevertheless."""
    blobs.delete(request_name(request.id))


def carried_out(
    blobs: DurableBlobs, what: RequestKind, name: str, seconds: float, *, new: str = "", place: str = ""
) -> Answer:
    """Leave a request in a job's folder, and wait for the final answer.

    Args:
        blobs: the job's folder.
        what: the request.
        name: of a savepoint; "" for a cancellation.
        seconds: to wait at most.
        new: as in `Request`.
        place: the folder in remedies, for people; "": as `blobs` names it.

    Raises:
        RequestRefusedError: the request cannot succeed.
        JobFailedError: there is no final answer in time.
    """
    place = place or str(blobs)
    request = ask(blobs, what, name, Timestamp(time.time_ns() // 1000), new)
    try:
        answer = answered(blobs, request, seconds)
    except BaseException:
        # An interrupted user does not expect the request to be carried out later.
        with contextlib.suppress(StoreError):
            withdraw(blobs, request)
        raise
    if answer is None:
        withdraw(blobs, request)
        # A driver may have taken it meanwhile.
        answer = answer_to(blobs, request)
    if answer is None:
        raise JobFailedError(
            f"no driver of {job_in(blobs)} answered '{what}' within {seconds:g} s; the request is withdrawn",
            f"{unanswered_remedy(blobs, place)}; or leave the request for the next driver: --wait=0",
        )
    if not answer.settled:
        raise JobFailedError(
            f"'{what}' of {job_in(blobs)} has begun, but did not finish within {seconds:g} s",
            f"it continues; see its progress: {command_line('status', place)}",
        )
    if answer.kind is AnswerKind.REFUSED:
        raise refusal(what, job_in(blobs), answer.text, answer.remedy)
    return answer


def change_name(blobs: DurableBlobs, name: str, new: str, seconds: float, *, driver: str) -> None:
    """Rename or delete a savepoint: at once if the job is stopped, else by a request to its driver.

    Args:
        blobs: the job's folder.
        name: of the savepoint.
        new: its new name; "": delete it.
        seconds: to wait for the driver at most.
        driver: the name of this process, for people.

    Raises:
        StoreError: there is no such job or savepoint, or the new name is invalid or taken.
        RequestRefusedError: the request cannot succeed.
        JobFailedError: there is no final answer in time.
    """
    if not changed_at_once(blobs, name, new, driver=driver):
        carried_out(blobs, RequestKind.RENAME if new else RequestKind.DELETE, name, seconds, new=new)


def changed_at_once(blobs: DurableBlobs, name: str, new: str, *, driver: str, force: bool = False) -> bool:
    """Rename or delete a savepoint, if the job is suspended, done or drained: then no driver has to.

    Args:
        blobs: the job's folder.
        name: of the savepoint.
        new: its new name; "": delete it.
        driver: the name of this process, for people.
        force: do it in any case.

    Returns:
        Whether it is done.

    Raises:
        StoreError: there is no such job or savepoint, or the new name is invalid or taken.
    """
    newest = read_newest(blobs)
    if not force and (newest is None or known(newest).mode not in ENDED | {CommitMode.SUSPENDED}):
        return False
    change = renaming(name, new) if new else deletion(name)
    change_stopped(blobs, change, Timestamp(time.time_ns() // 1000), driver=driver, force=force)
    return True


def answered(blobs: DurableBlobs, request: Request, seconds: float) -> Answer | None:
    """Wait for the final answer for some seconds, and return it; else the newest answer, if any."""
    deadline, newest = time.monotonic() + seconds, None
    while True:
        answer = answer_to(blobs, request)
        newest = answer or newest
        left = deadline - time.monotonic()
        if (answer is not None and answer.settled) or left <= 0:
            return newest
        time.sleep(min(_POLL_SECONDS, left))


# The driver's side.


def waiting(blobs: DurableBlobs) -> list[str]:
    """Return the ids of all open requests, in order."""
    return [info.name.removeprefix(f"{REQUESTS}/") for info in blobs.list(REQUESTS)]


def read(blobs: DurableBlobs, id: str) -> Request | None:
    """Return a request; None if it was withdrawn.

    Raises:
        ValueError: it is malformed, or of a newer version.
    """
    try:
        record = documents.decode(blobs.get(request_name(id)), VERSION, "a request")
    except MissingFileError:
        return None
    try:
        what, new, stage = RequestKind(record["what"]), record["new"], record["stage"]
        found = Request(id, what, record["savepoint"], record["micro_batch"], record["epoch"], new, stage)
        texts = all(isinstance(each, str) for each in (found.savepoint, found.new, found.stage))
        if not texts or type(found.micro_batch) is not int or type(found.epoch) is not int:
            raise ValueError(f"it is not a request: {record!r}")
        return found
    except (KeyError, TypeError) as e:
        raise ValueError(f"it is not a request: {e!r}") from e


def answer(blobs: DurableBlobs, id: str, reply: Answer) -> None:
    """Answer a request, and remove it if the answer is final."""
    record = {"kind": reply.kind, "text": reply.text, "micro_batch": reply.micro_batch, "remedy": reply.remedy}
    blobs.put(answer_name(id), documents.encode(VERSION, record))
    if reply.settled:
        blobs.delete(request_name(id))


def forget_old(blobs: DurableBlobs, now: Timestamp) -> None:
    """Remove answers that were not read for a day."""
    for name in list(_older(blobs, now - _DAY)):
        blobs.delete(name)


def _older(blobs: DurableBlobs, than: int) -> Iterator[str]:
    for info in blobs.list(ANSWERS):
        if 0 < time_of(info.name.removeprefix(f"{ANSWERS}/")) < than:
            yield info.name


def time_of(id: str) -> int:
    """Return when a request of that id was made, in microseconds since 1970; 0 if it was not made in a folder."""
    time = id.partition("-")[0]
    return int(time) if time.isdecimal() else 0
