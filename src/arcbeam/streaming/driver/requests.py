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
from arcbeam.store.log.endnote import EndNote, record_end
from arcbeam.store.log.requests import Answer, AnswerKind, Request, RequestKind
from arcbeam.store.log.savepoints import is_named_now
from arcbeam.store.manifest.values import ENDED, Manifest
from arcbeam.streaming.driver.samplerequests import SampleRequests
from arcbeam.streaming.interfaces import Clock, Inbox


def _cancelled(now: Timestamp, _: str) -> Event:
    return CancelRequested(now)


_EVENTS: dict[RequestKind, Callable[[Timestamp, str], Event]] = {
    RequestKind.CANCEL: _cancelled,
    RequestKind.SAVEPOINT: SavepointRequested,
    RequestKind.DRAIN: DrainRequested,
    RequestKind.SUSPEND: SuspendRequested,
    # For the machine, these are names for the next commit.
    RequestKind.DELETE: SavepointRequested,
    RequestKind.RENAME: SavepointRequested,
}


@dataclass
class PendingRequest:
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


def settled(answer: Answer) -> PendingRequest:
    """Return a pending request for one that is settled already."""
    pending = PendingRequest(Request("", RequestKind.DRAIN, "", -1, 0), filed=False, answer=answer)
    pending.heard.set()
    pending.settled.set()
    return pending


class RequestQueue:
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
        self._requests: dict[str, PendingRequest] = {}
        self._answered: dict[str, Answer] = {}
        self._requested = 0
        self._proposed: Propose | None = None
        self._fenced = self._closed = False
        self._end: End | None = None
        self._why = ""

    def opened(self, blobs: DurableBlobs | None, head: Manifest) -> None:
        """The driver has taken over the job; `blobs` is its folder, if other processes may file requests there."""
        with self._lock:
            self._blobs, self._head = blobs, head
            held = self._open()
            for pending in held:
                pending.request = replace(pending.request, micro_batch=head.micro_batch, epoch=head.epoch)
                if (fault := files.fault_of_name(head, pending.request)) is not None:
                    self._settle(pending, Answer(AnswerKind.REFUSED, str(fault)))
        for pending in held:
            if not pending.settled.is_set():
                self._inbox.put(self._event(pending.request))

    def ask(self, what: RequestKind, savepoint: str = "") -> PendingRequest:
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
            self._requested += 1
            micro_batch, epoch = (head.micro_batch, head.epoch) if head is not None else (-1, 0)
            pending = PendingRequest(
                Request(f"here-{self._requested}", what, savepoint, micro_batch, epoch), filed=False
            )
            if head is not None:
                files.refuse_name(head, pending.request, self._job)
            self._requests[pending.request.id] = pending
        if head is not None:
            self._inbox.put(self._event(pending.request))
        return pending

    def draining(self) -> PendingRequest | None:
        """Return the open request to drain, of any process; it is done once committed. None: there is none."""
        with self._lock:
            if self._closed:
                return None
            if self._head is not None and self._head.mode is CommitMode.DRAINING:
                return settled(Answer(AnswerKind.DONE, "the job is draining already", self._head.micro_batch))
            return next((pending for pending in self._open() if pending.request.what is RequestKind.DRAIN), None)

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
            if id not in self._requests and id not in self._answered:
                self._take(blobs, id)
        self._look_at_samples(blobs, waiting)
        self._write_answers(blobs)
        with self._lock:
            # An id that is no longer listed does not appear again.
            self._answered = {
                id: answer for id, answer in self._answered.items() if id in self._requests or id in waiting
            }

    def _take(self, blobs: DurableBlobs, id: str) -> None:
        try:
            request = files.read(blobs, id)
        except ValueError as e:
            files.answer(blobs, id, Answer(AnswerKind.REFUSED, str(e)))
            return
        if request is None:
            return
        assert self._head is not None
        if request.epoch > self._head.epoch:
            # It was made for a driver that has taken over, which this driver does not know yet.
            return
        pending = PendingRequest(request, filed=True)
        if request.what is RequestKind.SAMPLE:
            with self._lock:
                self._requests[id] = pending
                self._settle(pending, self._samples.take(request))
            return
        with self._lock:
            self._requests[id] = pending
            settled = self._before(request)
            if settled is not None:
                self._settle(pending, settled)
        if settled is None:
            self._inbox.put(self._event(request))

    def _look_at_samples(self, blobs: DurableBlobs, waiting: Sequence[str]) -> None:
        for id, answer in self._samples.look(blobs, waiting, self._clock.now()):
            with self._lock:
                if answer is None:
                    self._requests.pop(id, None)
                elif (pending := self._requests.get(id)) is not None:
                    self._settle(pending, answer)

    def _before(self, request: Request) -> Answer | None:
        """Return the answer to a request that was done before this driver receives it; None if it is still to do."""
        head = self._head
        assert head is not None
        if request.what is RequestKind.CANCEL:
            if request.epoch != head.epoch:
                text = "another driver has taken the job over meanwhile; to cancel that one, repeat the command"
                return Answer(AnswerKind.REFUSED, text)
            return None
        if (done := _made(request, head)) is not None:
            # The previous driver did it, and died before it could answer.
            return done
        if request.what is RequestKind.DRAIN and is_named_now(request.what, request.savepoint):
            others = (pending.request for pending in self._open() if pending.request is not request)
            if head.mode is CommitMode.DRAINING or any(other.what is RequestKind.DRAIN for other in others):
                # A request without a name is satisfied by any drain.
                return Answer(AnswerKind.DONE, "the job is draining already", head.micro_batch)
        fault = files.fault_of_name(head, request)
        return None if fault is None else Answer(AnswerKind.REFUSED, str(fault))

    def _event(self, request: Request) -> Event:
        return _EVENTS[request.what](self._clock.now(), request.change)

    def _write_answers(self, blobs: DurableBlobs) -> None:
        """Write new answers to the folder."""
        with self._lock:
            new = {
                id: pending.answer
                for id, pending in self._requests.items()
                if pending.filed and pending.answer is not None and self._answered.get(id) != pending.answer
            }
        for id, answer in new.items():
            files.answer(blobs, id, answer)
            with self._lock:
                self._answered[id] = answer
                if answer.settled:
                    self._requests.pop(id, None)

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
                case SavepointRequested(_, change) | DrainRequested(_, change) | SuspendRequested(_, change):
                    self._taken(type(event), change, warned)
                case CancelRequested():
                    self._taken(_cancelled, "", [])
                case CommitDecided():
                    for pending in self._open():
                        self._committed(pending, head)
                case CommitConflicted() | Overtaken():
                    # The driver that took over has the requests in the folder, too.
                    self._fenced = True
            self._proposed = next((each for each in commands if isinstance(each, Propose)), self._proposed)

    def _open(self) -> list[PendingRequest]:
        return [pending for pending in self._requests.values() if not pending.settled.is_set()]

    def _taken(self, kind: Callable[..., Event], change: str, warned: Iterable[str]) -> None:
        why = "; ".join(warned)
        for pending in self._open():
            request = pending.request
            if (_EVENTS.get(request.what), request.change) == (kind, change) and pending.answer is None:
                self._settle(
                    pending,
                    Answer(AnswerKind.REFUSED, why) if why else Answer(AnswerKind.TAKEN, "the driver has started"),
                )

    def _committed(self, pending: PendingRequest, head: Manifest) -> None:
        request, proposed = pending.request, self._proposed
        if pending.answer is None or request.what in (RequestKind.CANCEL, RequestKind.SAMPLE):
            return
        if request.what is RequestKind.DRAIN and head.mode is CommitMode.DRAINING:
            self._settle(pending, Answer(AnswerKind.DONE, "the job is draining", head.micro_batch))
        elif request.what is RequestKind.SUSPEND and not request.savepoint and head.mode is CommitMode.SUSPENDED:
            self._settle(
                pending,
                Answer(AnswerKind.DONE, f"the job is suspended with micro-batch {head.micro_batch}", head.micro_batch),
            )
        elif (made := _made(request, head)) is not None:
            self._settle(pending, made)
        elif (
            proposed is not None and proposed.micro_batch == head.micro_batch and request.change in proposed.savepoints
        ):
            self._settle(pending, Answer(AnswerKind.REFUSED, _unmade(request, head)))

    def close(self, end: End | None, why: str = "") -> None:
        """The driver has ended. An end that no commit records is noted in the folder.

        Args:
            end: how the job has ended; None: it could not run, or not to its end.
            why: why it could not.
        """
        with self._lock:
            self._closed, self._end, self._why = True, end, why
            for pending in self._open():
                self._settle(pending, self._last(pending.request))
            blobs, head = self._blobs, self._head
        if blobs is None or self._fenced:
            return
        self._write_answers(blobs)
        assert head is not None
        # For a job that has ended, a commit records it; a driver that finds this writes nothing.
        if head.mode not in ENDED and (end is None or end.state in (EndState.FAILED, EndState.CANCELLED)):
            state = EndState.FAILED if end is None else end.state
            record_end(blobs, EndNote(head.epoch, state.value.upper(), why if end is None else end.why))

    def _last(self, request: Request) -> Answer:
        """Return the answer to a request that is open when the driver ends."""
        end, head = self._end, self._head
        if end is not None and request.what is RequestKind.CANCEL and end.state is EndState.CANCELLED:
            return Answer(AnswerKind.DONE, "the job is cancelled")
        if end is not None and request.what is RequestKind.DRAIN and head is not None and head.mode in ENDED:
            return Answer(AnswerKind.DONE, f"the job is {head.mode}: it was at its end", head.micro_batch)
        why, remedy = self._refusal(request.what)
        return Answer(AnswerKind.REFUSED, why, remedy=remedy)

    def _refusal(self, what: RequestKind) -> tuple[str, str]:
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

    def _settle(self, pending: PendingRequest, answer: Answer) -> None:
        pending.answer = answer
        pending.heard.set()
        if answer.settled:
            pending.settled.set()
            if not pending.filed:
                self._requests.pop(pending.request.id, None)


def _made(request: Request, head: Manifest) -> Answer | None:
    """Return the answer to a request that the head shows as done; None if it is not done."""
    pin = head.pin(request.savepoint)
    match request.what:
        case RequestKind.DELETE:
            if pin is None:
                return Answer(
                    AnswerKind.DONE, f"savepoint '{request.savepoint}' does not exist any more", head.micro_batch
                )
        case RequestKind.RENAME:
            new = head.pin(request.new)
            if pin is None and new is not None:
                return Answer(
                    AnswerKind.DONE, f"savepoint '{request.new}' is micro-batch {new.micro_batch}", new.micro_batch
                )
        case _:
            if pin is not None and pin.micro_batch > request.micro_batch:
                return Answer(
                    AnswerKind.DONE, f"savepoint '{pin.name}' is micro-batch {pin.micro_batch}", pin.micro_batch
                )
    return None


def _unmade(request: Request, head: Manifest) -> str:
    if request.what in (RequestKind.DELETE, RequestKind.RENAME):
        done = "deleted" if request.what is RequestKind.DELETE else f"renamed to '{request.new}'"
        return (
            f"savepoint '{request.savepoint}' was not {done} in micro-batch {head.micro_batch}: list the savepoints, "
            "and try again"
        )
    return f"micro-batch {head.micro_batch} did not become savepoint '{request.savepoint}': try again"
