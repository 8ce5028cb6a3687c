"""What people ask of a job that runs, as files in its folder: a request, and what became of it.

Owns the files and the asking side. Whoever runs the job looks for them (`arcbeam.streaming.driver.requests`); it need
not be known where that is. Must not know what a driver does with a request.

    requests/<time>-<token>     stays until it is settled: a driver that dies leaves it to the next one
    answers/<time>-<token>      written by the driver: taken, then done or refused; removed by who asked, or after a day
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from arcbeam.errors import RequestRefusedError
from arcbeam.model.commits import CommitMode, deletion, renaming
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError, StoreError
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.endnote import note_of
from arcbeam.store.log.jobname import job_in
from arcbeam.store.log.savepoints import changed, checked_name
from arcbeam.store.manifest.names import ANSWERS, REQUESTS, answer_name, request_name
from arcbeam.store.manifest.values import ENDED, Manifest

VERSION = 1
_DAY = 24 * 3600 * 1_000_000


class Asked(StrEnum):
    """What may be asked."""

    SAVEPOINT = "savepoint"
    DRAIN = "drain"
    SUSPEND = "suspend"
    CANCEL = "cancel"
    DELETE = "delete"
    """A savepoint's name."""
    RENAME = "rename"
    """A savepoint."""


_DOING = {
    Asked.SAVEPOINT: "take a savepoint of",
    Asked.DELETE: "delete a savepoint of",
    Asked.RENAME: "rename a savepoint of",
}
"""What a request does to a job, where its own word does not say that."""


def refusal(what: Asked, job: str, why: str, remedy: str = "") -> RequestRefusedError:
    """The error for a request that is refused.

    Args:
        what: was requested.
        job: as `jobname` has it: `job 'words' in '/data/words'`; of a server `job 'words-1f0c'`.
        why: the state of the job, or what is wrong with the request.
        remedy: what to do.
    """
    return RequestRefusedError(f"cannot {_DOING.get(what, what)} {job}: {why}", remedy)


def stopped_remedy(what: Asked, folder: str, *, ended: bool) -> str:
    """What to do about a request for a job that has no driver.

    Args:
        what: was requested.
        folder: of the job.
        ended: the job is done or drained; otherwise it can be resumed.
    """
    if ended:
        return "nothing is left to do: to run the pipeline again, submit it with another --checkpoint_dir"
    if what is Asked.CANCEL:
        return "no driver runs it, so there is nothing to cancel; if it is not to be resumed, remove its folder"
    if what is Asked.SUSPEND:
        return f"to resume it: arcbeam resume {folder}"
    return f"resume it first: arcbeam resume {folder}"


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks.

    Attributes:
        id: unique; later ones are greater, as far as clocks agree.
        what: of the job.
        savepoint: the name that a micro-batch is to get; of a savepoint that is there, where its name is to be another,
            or none; "" for a cancellation.
        micro_batch: the newest one when it was asked: a savepoint of that name of a later micro-batch is the answer to
            this.
        epoch: of the driver that ran the job then.
        new: the name that a savepoint is to get instead; "" for all else.
    """

    id: str
    what: Asked
    savepoint: str
    micro_batch: int
    epoch: int
    new: str = ""

    @property
    def wish(self) -> str:
        """What is asked of the next commit; see `name_change`. "" for a cancellation."""
        match self.what:
            case Asked.DELETE:
                return deletion(self.savepoint)
            case Asked.RENAME:
                return renaming(self.savepoint, self.new)
        return self.savepoint


class Said(StrEnum):
    """What became of a request."""

    TAKEN = "taken"
    """A driver is at it."""
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a driver says to a request.

    Attributes:
        said: what became of it. A drain is done when it is committed that the job drains: that lasts longer.
        text: for people.
        micro_batch: that was committed for it; None if none was.
        remedy: what to do about a refusal; "" if the text says it.
    """

    said: Said
    text: str = ""
    micro_batch: int | None = None
    remedy: str = ""

    @property
    def settled(self) -> bool:
        """Whether no other answer follows."""
        return self.said is not Said.TAKEN


def ask(
    blobs: DurableBlobs, what: Asked, savepoint: str, now: Timestamp, new: str = "", *, later: bool = False
) -> Request:
    """Leaves a request in a job's folder.

    Args:
        blobs: the job's folder.
        what: is asked.
        savepoint: as in `Request`.
        now: the time.
        new: as in `Request`.
        later: whoever runs the job next may do it, too.

    Raises:
        RequestRefusedError: the job has ended, is suspended, or its driver has said that it does not run it any more
            (of `later`, only a cancellation is refused for that); the savepoint's name is none, or taken, or, where one
            is to be deleted or renamed, not there.
        StoreError: there is no job; what it says cannot be read.
    """
    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "name the folder that was given as --checkpoint_dir")
    head = known(newest)
    job = job_in(blobs, head)
    if head.mode in ENDED or head.mode is CommitMode.SUSPENDED:
        remedy = stopped_remedy(what, str(blobs), ended=head.mode in ENDED)
        raise refusal(what, job, f"it is {head.mode} at micro-batch {head.micro_batch}", remedy)
    note = note_of(blobs, head)
    if note is not None and (what is Asked.CANCEL or not later):
        remedy = stopped_remedy(what, str(blobs), ended=False)
        if what is not Asked.CANCEL:
            remedy += "; or leave the request for the next driver: --wait=0"
        raise refusal(what, job, f"no driver runs it at micro-batch {head.micro_batch}: it is {note}", remedy)
    request = Request(f"{now:016d}-{uuid.uuid4().hex[:12]}", what, savepoint, newest.micro_batch, head.epoch, new)
    refuse_name(head, request, job)
    record = {
        "version": VERSION,
        "what": request.what,
        "savepoint": request.savepoint,
        "step": request.micro_batch,
        "epoch": request.epoch,
        "new": request.new,
    }
    blobs.put(request_name(request.id), json.dumps(record).encode())
    return request


def refuse_name(head: Manifest, request: Request, job: str = "the job") -> None:
    """Refuses a request for a name that no micro-batch can get any more, and for a change of one that there is not.

    Args:
        head: of the job.
        request: names a savepoint.
        job: as in `refusal`.

    Raises:
        RequestRefusedError: the name is none, is taken, or is not there.
    """
    if (fault := fault_of_name(head, request)) is not None:
        raise refusal(request.what, job, fault.message, fault.remedy)


def fault_of_name(head: Manifest, request: Request) -> StoreError | None:
    """What is wrong with the savepoint's name in a request; None if nothing is."""
    if request.what is Asked.CANCEL or (request.what is Asked.SUSPEND and not request.savepoint):
        return None
    try:
        if request.what in (Asked.DELETE, Asked.RENAME):
            changed(head, request.wish)
        else:
            checked_name(head, request.savepoint)
    except StoreError as e:
        return e
    return None


def answer_to(blobs: DurableBlobs, request: Request) -> Answer | None:
    """What a driver has said; None if none has said anything. A last answer is read once: it is removed."""
    try:
        record = json.loads(blobs.get(answer_name(request.id)))
        found = Answer(Said(record["said"]), record["text"], record["step"], record.get("remedy", ""))
    except MissingFileError:
        return None
    except (ValueError, KeyError, TypeError) as e:
        raise StoreError(f"'{answer_name(request.id)}' in '{blobs}' is no answer: {e!r}") from e
    if found.settled:
        blobs.delete(answer_name(request.id))
    return found


def withdraw(blobs: DurableBlobs, request: Request) -> None:
    """Takes a request back. A driver that has taken it goes on with it."""
    blobs.delete(request_name(request.id))


# The driver's side.


def waiting(blobs: DurableBlobs) -> list[str]:
    """The ids of all requests that are not settled, in order."""
    return [info.name.removeprefix(f"{REQUESTS}/") for info in blobs.list(REQUESTS)]


def read(blobs: DurableBlobs, id: str) -> Request | None:
    """A request; None if it was withdrawn.

    Raises:
        ValueError: it is none, or of a newer version.
    """
    try:
        record = json.loads(blobs.get(request_name(id)))
    except MissingFileError:
        return None
    try:
        if record["version"] > VERSION:
            raise ValueError(f"its format is {record['version']}; this version of arcbeam reads up to {VERSION}")
        what, new = Asked(record["what"]), record.get("new", "")
        found = Request(id, what, record["savepoint"], record["step"], record["epoch"], new)
        texts = isinstance(found.savepoint, str) and isinstance(found.new, str)
        if not texts or type(found.micro_batch) is not int or type(found.epoch) is not int:
            raise ValueError(f"it is no request: {record!r}")
        return found
    except (KeyError, TypeError) as e:
        raise ValueError(f"it is no request: {e!r}") from e


def answer(blobs: DurableBlobs, id: str, said: Answer) -> None:
    """Answers a request, and removes it if that is the last answer."""
    record = {"version": VERSION, "said": said.said, "text": said.text, "step": said.micro_batch, "remedy": said.remedy}
    blobs.put(answer_name(id), json.dumps(record).encode())
    if said.settled:
        blobs.delete(request_name(id))


def forget_old(blobs: DurableBlobs, now: Timestamp) -> None:
    """Removes answers that nobody has read for a day."""
    for name in list(_older(blobs, now - _DAY)):
        blobs.delete(name)


def _older(blobs: DurableBlobs, than: int) -> Iterator[str]:
    for info in blobs.list(ANSWERS):
        time = info.name.removeprefix(f"{ANSWERS}/").partition("-")[0]
        if time.isdecimal() and int(time) < than:
            yield info.name
