"""The sequence of a job's manifests, held by one driver: the only way to commit anything.

Owns the commit protocol: epochs, the conditional create, and the handling of each of its outcomes. Must not know what a
micro-batch does. No threads, no clock, no waiting: the caller decides when to try again.

A commit is the creation of the manifest after the head, under a name that can be created only once. That alone orders
all drivers that ever existed. The first manifest of an epoch is an *opening*. Once it exists, every proposal of an
older driver finds its name taken. Two cases would break that, and are prevented:

- A name becomes free again. The sweep deletes old manifests, but no opening: an older driver's next name is always that
  of its successor's opening.
- A driver that was suspended by its system creates an opening below the head. Drivers before it do not delete once it
  has begun its epoch. After the creation it checks whether a later epoch has begun: a later driver begins its epoch
  before it deletes anything.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import (
    DeterminateError,
    FencedError,
    IndeterminateError,
    InvalidManifestError,
    JobEndedError,
    MissingFileError,
    StoreError,
)
from arcbeam.store.log.chain import (
    UnreadableHead,
    epoch_data,
    find_newest,
    floor_below,
    floor_data,
    has_begun,
    newest_epoch,
    read_epoch,
    read_manifest,
    read_newest,
)
from arcbeam.store.log.jobname import job_in
from arcbeam.store.log.opening import OpeningArguments, ended, opening
from arcbeam.store.manifest.manifestfile import ManifestWriter, encode
from arcbeam.store.manifest.names import epoch_name, floor_name, manifest_name
from arcbeam.store.manifest.values import JobShape, Manifest, ManifestKind, contradictions

_TRIES = 3
"""Number of immediate attempts to create a manifest before its outcome counts as unknown."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The proposal is committed: this is the new head."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another driver committed the micro-batch, so no part of the proposal is or will be committed.

    Attributes:
        found: the existing manifest.
    """

    found: Manifest


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome is unknown: the proposal may be committed, now or later. The only valid next call is `resolve`."""

    proposed: Manifest
    error: IndeterminateError


Outcome = Committed | Conflict | Unknown

First = Callable[[Manifest | UnreadableHead | None, str, int, str], Manifest]
"""Returns a driver's first manifest. Its arguments are the newest one, the job graph's name, the epoch and a token."""


def new_token() -> str:
    """Return a unique token."""
    return uuid.uuid4().hex


class CommitLog:
    """One driver's hold on a job. Opened with `CommitLog.open`.

    Attributes:
        epoch: of this driver.
        floor: the oldest micro-batch whose manifest is certainly kept.
    """

    def __init__(self, blobs: DurableBlobs, epoch: int, floor: int, head: Manifest, token: Callable[[], str]) -> None:
        self._blobs = blobs
        self.epoch = epoch
        self.floor = floor
        self._slot = 0
        self._head = head
        self._token = token
        self._writer = ManifestWriter()
        self._pending: tuple[Manifest, bytes, IndeterminateError | None] | None = None
        self._conflict: Conflict | None = None
        # Invariants: the head is ours. At most one of `_pending` and `_conflict` is set. With the first, the outcome of
        # one create is unknown; with the second, nothing can be proposed any more.

    @classmethod
    def open(
        cls,
        blobs: DurableBlobs,
        shape: JobShape,
        now: Timestamp,
        *,
        driver: str = "",
        savepoint: str = "",
        force: bool = False,
        discard: bool = False,
        finish: bool = False,
        job_graph: Callable[[int, str], str] = lambda epoch, before: "",
        adapt: Callable[[Manifest], Manifest] = lambda origin: origin,
        fill: Callable[[Manifest], Manifest] = lambda opening: opening,
        token: Callable[[], str] = new_token,
    ) -> CommitLog:
        """Take over a job: begin an epoch and commit its opening. That fences every earlier driver.

        The opening contains what the head contains, also its committables: it is not known whether they were published.

        Args:
            blobs: the job's folder; an empty one begins a new job.
            shape: the state that the pipeline requires.
            now: the recorded time of the opening.
            driver: the name of this driver, for people: host, process.
            savepoint: the savepoint to resume from; later micro-batches are abandoned, which `discard` has to allow.
                That is possible also if the newest manifest cannot be read. Empty: resume from the head.
            force: resume also a job that has ended.
            discard: resume from a savepoint also if that discards committed micro-batches.
            finish: accept also a job that has ended. Perhaps its last commit is not published, or the last calls of
                user code are not made. Then nothing is written: no epoch begins, the log has the job's last micro-batch
                as its head, and nothing can be proposed.
            job_graph: stores the job graph in the folder, and returns the name of its file; "": keep the present one.
                Its arguments are the epoch, and the job graph of the manifest to follow; see `jobgraphs.keep`. It is
                called after all refusals, so a refused driver stores nothing. It is called before the epoch begins, so
                a driver that cannot store it fences none. If an argument differs then, it is called again.
            adapt: changes the manifest to resume from, before it is compared with `shape`. It must not change committed
                content, but only names, and the outputs by which watermarks are known; and it removes what is discarded
                on purpose.
            fill: writes further files of the opening's micro-batch and this epoch, and names them in the opening.
                Called after `adapt`, when the epoch has begun; again if another driver took the micro-batch.
            token: returns unique tokens.

        Raises:
            FencedError: a later driver took over meanwhile.
            IncompatibleStateError: the state does not fit `shape`.
            JobEndedError: the job has ended (drained or done).
            LaterMicroBatchesError: there are micro-batches after the savepoint, and they must not be discarded.
            StoreError: there is no such savepoint.
            DamagedFileError, NewerFormatError: the newest manifest, or the savepoint's, cannot be read.
            MissingFileError: there are files of a job, but none of its manifests.
            IndeterminateError: the store does not answer; opening again is safe.
        """
        requested = OpeningArguments(shape, now, savepoint, force, "", adapt, discard)

        def first(newest: Manifest | UnreadableHead | None, job_graph: str, epoch: int, token: str) -> Manifest:
            return opening(blobs, newest, replace(requested, job_graph=job_graph), epoch, token)

        if finish and (log := cls._of_ended(blobs, requested, token)):
            return log
        try:
            return cls.take(blobs, first, now, driver=driver, job_graph=job_graph, fill=fill, token=token)
        except JobEndedError:
            # The driver before this one may have made its last commit meanwhile.
            if finish and (log := cls._of_ended(blobs, requested, token)):
                return log
            raise

    @classmethod
    def _of_ended(cls, blobs: DurableBlobs, requested: OpeningArguments, token: Callable[[], str]) -> CommitLog | None:
        """Return the log of a job that has ended, if only its end remains to be finished."""
        head = ended(blobs, read_newest(blobs), requested)
        return None if head is None else cls(blobs, head.epoch, floor_below(blobs, head.epoch), head, token)

    @classmethod
    def take(
        cls,
        blobs: DurableBlobs,
        first: First,
        now: Timestamp,
        *,
        driver: str = "",
        job_graph: Callable[[int, str], str] = lambda epoch, before: "",
        fill: Callable[[Manifest], Manifest] = lambda opening: opening,
        token: Callable[[], str] = new_token,
    ) -> CommitLog:
        """Take over a job with any first manifest. To resume a job, use `open`.

        Args:
            blobs: the job's folder.
            first: returns the opening. Its arguments are the newest manifest, the job graph's name, the epoch and a
                token. Its errors refuse the job; it may be called several times.
            now: the time.
            driver: the name of this driver, for people.
            job_graph: as in `open`.
            fill: as in `open`.
            token: returns unique tokens.

        Raises:
            FencedError, DamagedFileError, NewerFormatError, MissingFileError, IndeterminateError: as `open`.
        """
        # SUBTLE: once an epoch has begun, the running driver stops deleting. So all refusals come before.
        kept_for = _refuse(blobs, first)
        kept = job_graph(*kept_for)
        epoch = _begin_epoch(blobs, driver, now, token())
        floor = floor_below(blobs, epoch - 1)
        blobs.put(floor_name(epoch, 0), floor_data(floor))
        newest = find_newest(blobs, floor)
        own = token()
        while True:
            if isinstance(newest, Manifest) and newest.epoch > epoch:
                raise _fenced(blobs, epoch, newest)
            # SUBTLE: the driver of an unreadable manifest is unknown. A later driver makes a manifest after its epoch
            # has begun, and that is checked after the manifest was found. An opening on top of such a driver's
            # micro-batch, whose savepoints are unknown, would name files that that driver may delete.
            if isinstance(newest, UnreadableHead) and has_begun(blobs, epoch + 1):
                raise _taking_over(blobs, epoch)
            if kept_for != (kept_for := (epoch, _job_graph_of(newest))):
                kept = job_graph(*kept_for)
            manifest = fill(first(newest, kept, epoch, own))
            outcome = _create(blobs, manifest, encode(manifest))
            match outcome:
                case Committed():
                    break
                case Conflict(found):
                    newest = found
                case Unknown(_, error):
                    raise error
        if has_begun(blobs, epoch + 1):
            raise _taking_over(blobs, epoch)
        return cls(blobs, epoch, floor, manifest, token)

    @property
    def head(self) -> Manifest:
        """The newest committed manifest, as far as this driver knows."""
        return self._head

    @property
    def pending(self) -> Manifest | None:
        """The proposal whose outcome is unknown; None if there is none."""
        return self._pending[0] if self._pending else None

    @property
    def blobs(self) -> DurableBlobs:
        """The job's folder."""
        return self._blobs

    def draft(self, time: Timestamp, **changes: Any) -> Manifest:
        """Return a manifest that may follow the head: equal to the head, without its committables.

        Args:
            time: the micro-batch's recorded time.
            changes: fields of `Manifest` that differ from the head's.
        """
        following = replace(
            self._head,
            micro_batch=self._head.micro_batch + 1,
            epoch=self.epoch,
            token=self._token(),
            parent=self._head.token,
            kind=ManifestKind.MICRO_BATCH,
            time=time,
            attempts_digest=b"",
            committables=(),
            committed=self._head.committed + 1,
        )
        return replace(following, **changes)

    def propose(self, manifest: Manifest) -> Outcome:
        """Try to commit a manifest.

        Raises:
            InvalidManifestError: it cannot follow the head; nothing happened.
            DeterminateError: the store refused; nothing happened, and another one may be proposed.
            FencedError: an earlier proposal met a conflict.
        """
        if self._conflict:
            raise _fenced(self._blobs, self.epoch, self._conflict.found)
        if self._pending:
            raise InvalidManifestError(
                f"the outcome of micro-batch {self._pending[0].micro_batch} is unknown: resolve it first"
            )
        wrong = contradictions(self._head, manifest)
        if manifest.epoch != self.epoch or not manifest.token or manifest.token == self._head.token:
            wrong.append("this driver did not draft it, or its token is not new")
        if wrong:
            raise InvalidManifestError(f"micro-batch {manifest.micro_batch} cannot be committed: " + "; ".join(wrong))
        self._pending = (manifest, self._writer.encode(manifest), None)
        return self.resolve()

    def resolve(self) -> Outcome:
        """Ask again for the outcome of the open proposal, by creating the same bytes again and by reading.

        That is safe: the name is taken once, and the token shows by whom.
        """
        if self._pending is None:
            raise InvalidManifestError("there is no proposal with an unknown outcome")
        try:
            outcome = _create(self._blobs, *self._pending)
        except DeterminateError:
            self._pending = None
            raise
        match outcome:
            case Committed(manifest):
                self._head, self._pending = manifest, None
            case Conflict():
                self._conflict, self._pending = outcome, None
            case Unknown(manifest, error):
                self._pending = (manifest, self._pending[1], error)
        return outcome

    def fenced(self) -> FencedError | None:
        """Return the error with which a driver ends after a `Conflict`; None if there was none."""
        return _fenced(self._blobs, self.epoch, self._conflict.found) if self._conflict else None

    def overtaken(self) -> FencedError | None:
        """Return the same; check first whether another driver has the micro-batch after the head.

        A later epoch alone is no evidence: its driver may have died before its opening. If the store does not answer,
        the next proposal finds out.
        """
        if self._pending is None and self._conflict is None:
            with contextlib.suppress(StoreError):
                self._conflict = Conflict(read_manifest(self._blobs, self._head.micro_batch + 1))
        return self.fenced()

    def is_newest(self) -> bool:
        """Return whether no later epoch has begun."""
        return not has_begun(self._blobs, self.epoch + 1)

    def raise_floor(self, micro_batch: int) -> None:
        """Record that manifests below a micro-batch may be deleted. Call it first, then `is_newest`, then delete.

        Raises:
            IndeterminateError: the record may appear later; this driver raises no further floor.
        """
        if self._slot < 0:
            raise IndeterminateError(f"a floor of epoch {self.epoch} in '{self._blobs}' may still be written")
        if not self.floor <= micro_batch <= self._head.micro_batch:
            raise ValueError(
                f"the floor must be from {self.floor} to the head {self._head.micro_batch}, not {micro_batch}"
            )
        slot, self._slot = 1 - self._slot, -1
        self._blobs.put(floor_name(self.epoch, slot), floor_data(micro_batch))
        self.floor, self._slot = micro_batch, slot


def _refuse(blobs: DurableBlobs, first: First) -> tuple[int, str]:
    """Raise the errors of opening the job; write nothing.

    Returns:
        The next epoch, and the job graph of the newest manifest.
    """
    epoch, newest = newest_epoch(blobs), None
    # Otherwise another driver is active: what holds when the epoch has begun decides.
    with contextlib.suppress(IndeterminateError):
        newest = find_newest(blobs, floor_below(blobs, epoch))
        with contextlib.suppress(MissingFileError):
            first(newest, "", epoch + 1, "-")
    return epoch + 1, _job_graph_of(newest)


def _job_graph_of(newest: Manifest | UnreadableHead | None) -> str:
    """Return the job graph of the newest manifest; "" if the manifest cannot be read."""
    return newest.job_graph if isinstance(newest, Manifest) else ""


def _begin_epoch(blobs: DurableBlobs, driver: str, now: Timestamp, token: str) -> int:
    """Begin the next free epoch."""
    data = epoch_data(token, driver, now)
    epoch, tries = newest_epoch(blobs) + 1, 0
    while True:
        name = epoch_name(epoch)
        try:
            if blobs.create(name, data) or blobs.get(name) == data:
                return epoch
            epoch += 1
        except (IndeterminateError, MissingFileError) as e:
            # SUBTLE: the create may still happen. Then it is found to be ours, or the epoch has no driver: no harm.
            tries += 1
            if tries == _TRIES:
                raise IndeterminateError(str(e), "start again: nothing was changed") from e


def _create(blobs: DurableBlobs, manifest: Manifest, data: bytes, unclear: IndeterminateError | None = None) -> Outcome:
    """Create a manifest, in several attempts if needed.

    Args:
        blobs: the job's folder.
        manifest: to create.
        data: its bytes.
        unclear: the error of an earlier attempt with an unknown outcome.

    Raises:
        DeterminateError: it certainly does not exist, and will not.
    """
    for _ in range(_TRIES):
        try:
            if blobs.create(manifest_name(manifest.micro_batch), data):
                return Committed(manifest)
        except IndeterminateError as e:
            unclear = e
        except DeterminateError:
            # SUBTLE: this attempt did nothing, but an earlier one may have, or may still happen.
            if unclear is None:
                raise
        # Taken, or unknown: the existing manifest decides.
        try:
            found = read_manifest(blobs, manifest.micro_batch)
        except MissingFileError as e:
            unclear = unclear or IndeterminateError(e.message, e.remedy)
        except IndeterminateError as e:
            unclear = e
        else:
            return Committed(manifest) if found.token == manifest.token else Conflict(found)
    assert unclear is not None
    return Unknown(manifest, unclear)


_ONE_DRIVER = (
    "nothing, if that was intended: the job runs there, and this driver has committed nothing since; else stop the "
    "other driver, and resume the job here"
)


def _taking_over(blobs: DurableBlobs, epoch: int) -> FencedError:
    return FencedError(
        f"another driver{_of_epoch(blobs, epoch + 1)} is taking over {job_in(blobs)}: it began epoch {epoch + 1}, "
        f"this driver has epoch {epoch}",
        _ONE_DRIVER,
    )


def _fenced(blobs: DurableBlobs, epoch: int, found: Manifest) -> FencedError:
    return FencedError(
        f"another driver{_of_epoch(blobs, found.epoch)} took over {job_in(blobs, found)}: micro-batch "
        f"{found.micro_batch} is of "
        f"epoch {found.epoch}, this driver has epoch {epoch}",
        _ONE_DRIVER,
    )


def _of_epoch(blobs: DurableBlobs, epoch: int) -> str:
    """Return the driver of an epoch, and its start, in brackets; "" if unknown: the error is right without it."""
    with contextlib.suppress(StoreError, ValueError, TypeError, KeyError, OverflowError, OSError):
        record = read_epoch(blobs, epoch)
        since = datetime.fromtimestamp(record["time"] // 1_000_000, UTC).isoformat(sep=" ")
        return f" ({record['driver'] or 'unnamed'}, since {since.replace('+00:00', ' UTC')})"
    return ""
