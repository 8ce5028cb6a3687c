"""Requests to a job, as its driver receives them: from this process, and from files in the job's folder.

Owns the handling of each: the machine receives it as an event, and the machine's warnings and the commits settle it.
Must not know when the folder is read, nor what a savepoint is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from arcbeam.engine.coordinator import (
    CancelRequested,
    Command,
    CommitConflicted,
    CommitDecided,
    DrainRequested,
    End,
    EndState,
    Event,
    Overtaken,
    Propose,
    SavepointRequested,
    SuspendRequested,
    Warn,
)
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log import requests as files
from arcbeam.store.log.endnote import EndNote, leave_note
from arcbeam.store.log.requests import Answer, Asked, Request, Said
from arcbeam.store.log.savepoints import is_named_now
from arcbeam.store.manifest.values import ENDED, Manifest
from arcbeam.streaming.driver.samplerequests import SampleRequests
from arcbeam.streaming.interfaces import Clock, Inbox


def _cancelled(now: Timestamp, _: str) -> Event:
    return CancelRequested(now)


_EVENTS: dict[Asked, Callable[[Timestamp, str], Event]] = {
    Asked.CANCEL: _cancelled,
    Asked.SAVEPOINT: SavepointRequested,
    Asked.DRAIN: DrainRequested,
    Asked.SUSPEND: SuspendRequested,
    # For the machine, these are names for the next commit.
    Asked.DELETE: SavepointRequested,
    Asked.RENAME: SavepointRequested,
}


@dataclass
class Ticket:
    """A request that a driver has received.

    Attributes:
        request: the request.
        filed: it is in the folder, and its answers will be there, too.
        answer: the newest answer; None if there is none.
        heard: set when there is an answer.
        settled: set when there is the last answer.
    """

    request: Request
    filed: bool
    answer: Answer | None = None
    heard: threading.Event = field(default_factory=threading.Event)
    settled: threading.Event = field(default_factory=threading.Event)


def settled(answer: Answer) -> Ticket:
    """Return a ticket for a request that is settled already."""
    ticket = Ticket(Request("", Asked.DRAIN, "", -1, 0), filed=False, answer=answer)
    ticket.heard.set()
    ticket.settled.set()
    return ticket


class RequestDesk:
    """The requests to one driver. Any thread may call `ask` and `look`; only the driver's thread may call the others.

    Args:
        inbox: the driver's inbox.
        clock: the time.
        job: the name of the job, for refusals.
        samples: gets the requests for samples.
    """

    def __init__(self, inbox: Inbox, clock: Clock, job: str = "the job", samples: SampleRequests | None = None) -> None:
        self._inbox, self._clock, self._job = inbox, clock, job
        self._samples = samples or SampleRequests(None)
        self._lock = threading.Lock()
        self._blobs: DurableBlobs | None = None
        self._head: Manifest | None = None
        # By id, in order of arrival. A settled one stays until its answer is in the folder.
        self._tickets: dict[str, Ticket] = {}
        self._answered: dict[str, Answer] = {}
        self._asked = 0
        self._proposed: Propose | None = None
        self._fenced = self._closed = False
        self._end: End | None = None
        self._why = ""

    def opened(self, blobs: DurableBlobs | None, head: Manifest) -> None:
        """The driver has taken over the job; `blobs` is its folder, if other processes may file requests there."""
        with self._lock:
            self._blobs, self._head = blobs, head
            held = self._open()
            for ticket in held:
                ticket.request = replace(ticket.request, micro_batch=head.micro_batch, epoch=head.epoch)
                if (fault := files.fault_of_name(head, ticket.request)) is not None:
                    self._settle(ticket, Answer(Said.REFUSED, str(fault)))
        for ticket in held:
            if not ticket.settled.is_set():
                self._inbox.put(self._event(ticket.request))

    def ask(self, what: Asked, savepoint: str = "") -> Ticket:
        """File a request from this process. This is possible before the driver has taken over the job.

        Args:
            what: the kind of request.
            savepoint: the name of the micro-batch that completes it; a suspension needs none ("").

        Raises:
            RequestRefusedError: the job has ended; or the savepoint's name is invalid or taken.
        """
        with self._lock:
            if self._closed:
                raise files.refusal(what, self._job, *self._refusal(what))
            head = self._head
            self._asked += 1
            micro_batch, epoch = (head.micro_batch, head.epoch) if head is not None else (-1, 0)
            ticket = Ticket(Request(f"here-{self._asked}", what, savepoint, micro_batch, epoch), filed=False)
            if head is not None:
                files.refuse_name(head, ticket.request, self._job)
            self._tickets[ticket.request.id] = ticket
        if head is not None:
            self._inbox.put(self._event(ticket.request))
        return ticket

    def draining(self) -> Ticket | None:
        """Return the open request to drain, of any process; it is done once committed. None: there is none."""
        with self._lock:
            if self._closed:
                return None
            if self._head is not None and self._head.mode is CommitMode.DRAINING:
                return settled(Answer(Said.DONE, "the job is draining already", self._head.micro_batch))
            return next((ticket for ticket in self._open() if ticket.request.what is Asked.DRAIN), None)

    def look(self) -> None:
        """Read new requests from the folder, and write answers.

        Raises:
            StoreError: some of that failed; the next call retries it.
        """
        blobs = self._blobs
        if blobs is None or self._fenced:
            return
        waiting = files.waiting(blobs)
        for id in waiting:
            if id not in self._tickets and id not in self._answered:
                self._take(blobs, id)
        self._look_at_samples(blobs, waiting)
        self._write_answers(blobs)
        with self._lock:
            # An id that is no longer listed does not appear again.
            self._answered = {id: said for id, said in self._answered.items() if id in self._tickets or id in waiting}

    def _take(self, blobs: DurableBlobs, id: str) -> None:
        try:
            request = files.read(blobs, id)
        except ValueError as e:
            files.answer(blobs, id, Answer(Said.REFUSED, str(e)))
            return
        if request is None:
            return
        assert self._head is not None
        if request.epoch > self._head.epoch:
            # It was made for a driver that has taken over, which this driver does not know yet.
            return
        ticket = Ticket(request, filed=True)
        if request.what is Asked.SAMPLE:
            with self._lock:
                self._tickets[id] = ticket
                self._settle(ticket, self._samples.take(request))
            return
        with self._lock:
            self._tickets[id] = ticket
            settled = self._before(request)
            if settled is not None:
                self._settle(ticket, settled)
        if settled is None:
            self._inbox.put(self._event(request))

    def _look_at_samples(self, blobs: DurableBlobs, waiting: Sequence[str]) -> None:
        for id, answer in self._samples.look(blobs, waiting, self._clock.now()):
            with self._lock:
                if answer is None:
                    self._tickets.pop(id, None)
                elif (ticket := self._tickets.get(id)) is not None:
                    self._settle(ticket, answer)

    def _before(self, request: Request) -> Answer | None:
        """Return the answer to a request that was done before this driver receives it; None if it is still to do."""
        head = self._head
        assert head is not None
        if request.what is Asked.CANCEL:
            if request.epoch != head.epoch:
                text = "another driver has taken the job over meanwhile; to cancel that one, repeat the command"
                return Answer(Said.REFUSED, text)
            return None
        if (done := _made(request, head)) is not None:
            # The previous driver did it, and died before it could answer.
            return done
        if request.what is Asked.DRAIN and is_named_now(request.what, request.savepoint):
            others = (ticket.request for ticket in self._open() if ticket.request is not request)
            if head.mode is CommitMode.DRAINING or any(other.what is Asked.DRAIN for other in others):
                # A request without a name is satisfied by any drain.
                return Answer(Said.DONE, "the job is draining already", head.micro_batch)
        fault = files.fault_of_name(head, request)
        return None if fault is None else Answer(Said.REFUSED, str(fault))

    def _event(self, request: Request) -> Event:
        return _EVENTS[request.what](self._clock.now(), request.wish)

    def _write_answers(self, blobs: DurableBlobs) -> None:
        """Write new answers to the folder."""
        with self._lock:
            new = {
                id: ticket.answer
                for id, ticket in self._tickets.items()
                if ticket.filed and ticket.answer is not None and self._answered.get(id) != ticket.answer
            }
        for id, answer in new.items():
            files.answer(blobs, id, answer)
            with self._lock:
                self._answered[id] = answer
                if answer.settled:
                    self._tickets.pop(id, None)

    def forget_old(self) -> None:
        """Remove old answers and samples that were never read.

        Raises:
            StoreError: some could not be removed.
        """
        if self._blobs is not None:
            files.forget_old(self._blobs, self._clock.now())
            self._samples.forget_old(self._blobs, self._clock.now())

    # Notifications from the driver.

    def handled(self, event: Event, commands: Sequence[Command], head: Manifest) -> None:
        """The machine has handled an event; `head` is the newest commit after it."""
        with self._lock:
            self._head = head
            warned = [command.text for command in commands if isinstance(command, Warn)]
            match event:
                case SavepointRequested(_, wish) | DrainRequested(_, wish) | SuspendRequested(_, wish):
                    self._taken(type(event), wish, warned)
                case CancelRequested():
                    self._taken(_cancelled, "", [])
                case CommitDecided():
                    for ticket in self._open():
                        self._committed(ticket, head)
                case CommitConflicted() | Overtaken():
                    # The driver that took over has the requests in the folder, too.
                    self._fenced = True
            self._proposed = next((each for each in commands if isinstance(each, Propose)), self._proposed)

    def _open(self) -> list[Ticket]:
        return [ticket for ticket in self._tickets.values() if not ticket.settled.is_set()]

    def _taken(self, kind: Callable[..., Event], wish: str, warned: Iterable[str]) -> None:
        why = "; ".join(warned)
        for ticket in self._open():
            request = ticket.request
            if (_EVENTS.get(request.what), request.wish) == (kind, wish) and ticket.answer is None:
                self._settle(ticket, Answer(Said.REFUSED, why) if why else Answer(Said.TAKEN, "the driver has started"))

    def _committed(self, ticket: Ticket, head: Manifest) -> None:
        request, proposed = ticket.request, self._proposed
        if ticket.answer is None or request.what in (Asked.CANCEL, Asked.SAMPLE):
            return
        if request.what is Asked.DRAIN and head.mode is CommitMode.DRAINING:
            self._settle(ticket, Answer(Said.DONE, "the job is draining", head.micro_batch))
        elif request.what is Asked.SUSPEND and not request.savepoint and head.mode is CommitMode.SUSPENDED:
            self._settle(
                ticket, Answer(Said.DONE, f"the job is suspended with micro-batch {head.micro_batch}", head.micro_batch)
            )
        elif (made := _made(request, head)) is not None:
            self._settle(ticket, made)
        elif proposed is not None and proposed.micro_batch == head.micro_batch and request.wish in proposed.savepoints:
            self._settle(ticket, Answer(Said.REFUSED, _unmade(request, head)))

    def close(self, end: End | None, why: str = "") -> None:
        """The driver has ended. An end that no commit records is noted in the folder.

        Args:
            end: how the job has ended; None: it could not run, or not to its end.
            why: why it could not.
        """
        with self._lock:
            self._closed, self._end, self._why = True, end, why
            for ticket in self._open():
                self._settle(ticket, self._last(ticket.request))
            blobs, head = self._blobs, self._head
        if blobs is None or self._fenced:
            return
        self._write_answers(blobs)
        assert head is not None
        # For a job that has ended, a commit records it; a driver that finds this writes nothing.
        if head.mode not in ENDED and (end is None or end.state in (EndState.FAILED, EndState.CANCELLED)):
            state = EndState.FAILED if end is None else end.state
            leave_note(blobs, EndNote(head.epoch, state.value.upper(), why if end is None else end.why))

    def _last(self, request: Request) -> Answer:
        """Return the answer to a request that is open when the driver ends."""
        end, head = self._end, self._head
        if end is not None and request.what is Asked.CANCEL and end.state is EndState.CANCELLED:
            return Answer(Said.DONE, "the job is cancelled")
        if end is not None and request.what is Asked.DRAIN and head is not None and head.mode in ENDED:
            return Answer(Said.DONE, f"the job is {head.mode}: it was at its end", head.micro_batch)
        why, remedy = self._refusal(request.what)
        return Answer(Said.REFUSED, why, remedy=remedy)

    def _refusal(self, what: Asked) -> tuple[str, str]:
        """Return why a driver that has ended refuses a request, and what to do."""
        end, head = self._end, self._head
        why = (self._why if end is None else end.why).partition("\n")[0]
        if head is None:
            return why or "the driver has ended before it took the job over", ""
        at = f" at micro-batch {head.micro_batch}"
        if self._fenced:
            return why, f"repeat the command; the new driver will answer: arcbeam {what} {self._blobs}"
        ended = end is not None and end.state in (EndState.DONE, EndState.DRAINED)
        if end is None:
            text = f"no driver runs it{at}"
        elif end.state is EndState.FAILED:
            text = f"it failed{at}"
        elif end.state is EndState.CANCELLED:
            text = f"it was cancelled{at}"
        else:
            text = f"it is {'suspended' if end.state is EndState.STOPPED else end.state.value}{at}"
        text += f": {why}" if why else ""
        if self._blobs is None and not ended:
            return text, "it stored no state to resume from: submit it with a --checkpoint_dir"
        return text, files.stopped_remedy(what, str(self._blobs), ended=ended, job_graph=bool(head.job_graph))

    def _settle(self, ticket: Ticket, answer: Answer) -> None:
        ticket.answer = answer
        ticket.heard.set()
        if answer.settled:
            ticket.settled.set()
            if not ticket.filed:
                self._tickets.pop(ticket.request.id, None)


def _made(request: Request, head: Manifest) -> Answer | None:
    """Return the answer to a request that the head shows as done; None if it is not done."""
    pin = head.pin(request.savepoint)
    match request.what:
        case Asked.DELETE:
            if pin is None:
                return Answer(Said.DONE, f"savepoint '{request.savepoint}' does not exist any more", head.micro_batch)
        case Asked.RENAME:
            new = head.pin(request.new)
            if pin is None and new is not None:
                return Answer(Said.DONE, f"savepoint '{request.new}' is micro-batch {new.micro_batch}", new.micro_batch)
        case _:
            if pin is not None and pin.micro_batch > request.micro_batch:
                return Answer(Said.DONE, f"savepoint '{pin.name}' is micro-batch {pin.micro_batch}", pin.micro_batch)
    return None


def _unmade(request: Request, head: Manifest) -> str:
    if request.what in (Asked.DELETE, Asked.RENAME):
        done = "deleted" if request.what is Asked.DELETE else f"renamed to '{request.new}'"
        return (
            f"savepoint '{request.savepoint}' was not {done} in micro-batch {head.micro_batch}: list the savepoints, "
            "and try again"
        )
    return f"micro-batch {head.micro_batch} did not become savepoint '{request.savepoint}': try again"
