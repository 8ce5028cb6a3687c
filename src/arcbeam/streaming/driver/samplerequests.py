"""Requests for samples of stages, at the driver: which of them the next micro-batch carries out, and when each is done.

Owns their order: micro-batches carry a request until their tasks have taken something and left it in the job's folder;
the next check of the folder answers. Must not know how samples are taken.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import Final

from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log.requests import Answer, AnswerKind, Request, time_of
from arcbeam.streaming.assignment import SampleOrder
from arcbeam.streaming.status.samples import KEPT_SECONDS, are_there, remove_old_samples

_ALLOWED: Final = "start it, or resume it, with --page_samples: samples show data of its users"
_STAGES: Final = "its status lists its stages"


class _Place(Enum):
    """Where a request is."""

    WAITING = auto()
    """For the next micro-batch."""
    CARRIED = auto()
    """In the running micro-batch."""
    RAN = auto()
    """The micro-batch has ended, and there may be samples."""


class SampleRequests:
    """The open requests for samples of one driver. Callable from several threads.

    Args:
        stages: the job's stages; None: the job allows no samples.
    """

    def __init__(self, stages: Collection[str] | None) -> None:
        self._stages = stages
        self._lock = threading.Lock()
        self._open: dict[str, tuple[SampleOrder, _Place]] = {}

    @property
    def allowed(self) -> bool:
        """Whether the job allows samples."""
        return self._stages is not None

    def take(self, request: Request) -> Answer:
        """Take a request, and return the first answer to it."""
        if self._stages is None:
            return Answer(AnswerKind.REFUSED, "it does not allow samples", remedy=_ALLOWED)
        if request.stage not in self._stages:
            return Answer(AnswerKind.REFUSED, f"it has no stage '{request.stage}'", remedy=_STAGES)
        with self._lock:
            self._open[request.id] = SampleOrder(request.id, request.stage), _Place.WAITING
        return Answer(AnswerKind.TAKEN, "the next micro-batch takes samples")

    def wanted(self) -> tuple[SampleOrder, ...]:
        """Return the requests that the micro-batch carries out that begins now."""
        if not self._open:
            return ()
        with self._lock:
            found = [order for order, place in self._open.values() if place is not _Place.RAN]
            self._open |= {order.request: (order, _Place.CARRIED) for order in found}
        return tuple(found)

    def ran(self, sampled: Collection[str] | None) -> None:
        """A run of a micro-batch has ended.

        Args:
            sampled: the stages of which it has taken samples; None: it has failed, and may have taken some.
        """
        if not self._open:
            return
        with self._lock:
            for id, (order, place) in self._open.items():
                if place is _Place.CARRIED:
                    there = sampled is None or order.stage in sampled
                    self._open[id] = order, _Place.RAN if there else _Place.WAITING

    def look(self, blobs: DurableBlobs, listed: Collection[str], now: Timestamp) -> Sequence[tuple[str, Answer | None]]:
        """Check the folder for samples.

        Args:
            blobs: the job's folder.
            listed: the ids of the requests in it.
            now: the time.

        Returns:
            The requests that are settled, each with its final answer; None: it was withdrawn.
        """
        if not self._open:
            return ()
        with self._lock:
            open = list(self._open.values())
        settled: list[tuple[str, Answer | None]] = []
        for order, place in open:
            id = order.request
            if id not in listed:
                settled.append((id, None))
            elif place is _Place.RAN and are_there(blobs, id):
                settled.append((id, Answer(AnswerKind.DONE, f"there are samples of stage '{order.stage}'")))
            elif now - time_of(id) > KEPT_SECONDS * 1e6:
                settled.append((id, Answer(AnswerKind.REFUSED, f"stage '{order.stage}' has processed nothing")))
            elif place is _Place.RAN:
                with self._lock:
                    self._open[id] = order, _Place.WAITING
        with self._lock:
            for id, _ in settled:
                self._open.pop(id, None)
        return settled

    def forget_old(self, blobs: DurableBlobs, now: Timestamp) -> None:
        """Remove files that no reader has removed.

        Raises:
            StoreError: some could not be removed.
        """
        remove_old_samples(blobs, now)
