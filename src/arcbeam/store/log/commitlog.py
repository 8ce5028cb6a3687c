"""The sequence of a job's manifests, held by one driver: the only way by which anything becomes real.

Owns the commit protocol: epochs, the conditional create, and what is made of each of its outcomes. Must not know what a
micro-batch does. No thread, no clock, no waiting: who calls decides when to ask again.

A commit is the creation of the manifest after the head, under a name that nobody can create twice. That alone orders
all drivers there ever were: the first manifest of an epoch is an *opening*, and with it stands, every proposal of an
older driver finds its name taken. Two things would break that, and are kept from happening:

- A name that is free again. The sweep deletes old manifests, but no opening: an older driver's next name is always the
  opening of the one who came after it.
- An opening below the head, by a driver that slept meanwhile. Drivers before it do not delete once it has begun its
  epoch; whether one after it has begun, it looks after the creation, and that one began before it deleted anything.
"""

from __future__ import annotations

import contextlib
import json
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
    find_newest,
    floor_below,
    floor_data,
    has_begun,
    newest_epoch,
    read_manifest,
    read_newest,
)
from arcbeam.store.log.jobname import job_in
from arcbeam.store.log.opening import Asked, ended, opening
from arcbeam.store.manifest.manifestfile import encode
from arcbeam.store.manifest.names import epoch_name, floor_name, manifest_name
from arcbeam.store.manifest.values import JobShape, Kind, Manifest, contradictions

_TRIES = 3
"""How often a create is repeated at once before its outcome is called unknown."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The proposal is real: this is the new head."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another driver took the micro-batch: nothing of the proposal is real, nor will be. `found` is what stands
    there.
    """

    found: Manifest


@dataclass(frozen=True, slots=True)
class Unknown:
    """The store does not say. The proposal may be real, or become so: only `resolve` may follow."""

    proposed: Manifest
    error: IndeterminateError


Outcome = Committed | Conflict | Unknown

First = Callable[[Manifest | UnreadableHead | None, str, int, str], Manifest]
"""Makes a driver's first manifest: of the newest one, the program, the epoch and a token."""


def new_token() -> str:
    """A token that nobody else has."""
    return uuid.uuid4().hex


class CommitLog:
    """One driver's hold on a job. Opened with `CommitLog.open`.

    Attributes:
        epoch: this driver's.
        floor: the oldest micro-batch whose manifest is kept for sure.
    """

    def __init__(self, blobs: DurableBlobs, epoch: int, floor: int, head: Manifest, token: Callable[[], str]) -> None:
        self._blobs = blobs
        self.epoch = epoch
        self.floor = floor
        self._slot = 0
        self._head = head
        self._token = token
        self._pending: tuple[Manifest, bytes, IndeterminateError | None] | None = None
        self._conflict: Conflict | None = None
        # Invariants: the head is ours. At most one of `_pending` and `_conflict` is set; with the first, the outcome of
        # one create is open; with the second, nothing is proposed any more.

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
        finish: bool = False,
        program: Callable[[int, str], str] = lambda epoch, before: "",
        adapt: Callable[[Manifest], Manifest] = lambda origin: origin,
        fill: Callable[[Manifest], Manifest] = lambda opening: opening,
        token: Callable[[], str] = new_token,
    ) -> CommitLog:
        """Takes a job over: begins an epoch and commits its opening. Every driver before is fenced out by that.

        The opening holds what the head holds, also its committables: whether they were published is not known.

        Args:
            blobs: the job's folder; an empty one begins a new job.
            shape: what the pipeline asks of the state.
            now: the recorded time of the opening.
            driver: who this is, for people: host, process.
            savepoint: go on from this savepoint; what came after it is abandoned. That is possible also if the newest
                manifest cannot be read. Empty: from the head.
            force: go on even if the job has ended.
            finish: accept also a job that has ended. Its last commit may not be published, nor the last calls of user
                code made. Then nothing is written: no epoch begins, the log has the job's last micro-batch as its head,
                and nothing can be proposed on it.
            program: puts what runs the job from here on into the folder, and gives the name of its file; "": as before.
                It is told the epoch, and the program of the manifest that is followed; see `programs.keep`. Called
                when the job is not refused, so who is leaves nothing there; and before the epoch begins, so who cannot
                put it there stops nobody. Where either is another one then, it is called again.
            adapt: what is made of the manifest that is gone on from, before it is held against `shape`. It must not
                change what is real, but only what it is called, and by which outputs watermarks are known; and leave
                out what is given up on purpose.
            fill: writes what the opening needs beside what there is, and names it there: files for its micro-batch, by
                this epoch. Called behind `adapt`, when the epoch has begun; again where another driver took the
                micro-batch.
            token: gives tokens that nobody else has.

        Raises:
            FencedError: a later driver took over meanwhile.
            IncompatibleStateError: the state does not fit `shape`.
            JobEndedError: the job has ended (drained or done).
            StoreError: there is no such savepoint.
            DamagedFileError, NewerFormatError: the newest manifest, or the savepoint's, cannot be read.
            MissingFileError: files of a job are there, and none of its manifests.
            IndeterminateError: the store does not answer; opening again is safe.
        """
        asked = Asked(shape, now, savepoint, force, "", adapt)

        def first(newest: Manifest | UnreadableHead | None, program: str, epoch: int, token: str) -> Manifest:
            return opening(blobs, newest, replace(asked, program=program), epoch, token)

        if finish and (log := cls._of_ended(blobs, asked, token)):
            return log
        try:
            return cls.take(blobs, first, now, driver=driver, program=program, fill=fill, token=token)
        except JobEndedError:
            # The driver before this one may have made its last commit meanwhile.
            if finish and (log := cls._of_ended(blobs, asked, token)):
                return log
            raise

    @classmethod
    def _of_ended(cls, blobs: DurableBlobs, asked: Asked, token: Callable[[], str]) -> CommitLog | None:
        """The log of a job that has ended, if nothing more is asked than its end."""
        head = ended(blobs, read_newest(blobs), asked)
        return None if head is None else cls(blobs, head.epoch, floor_below(blobs, head.epoch), head, token)

    @classmethod
    def take(
        cls,
        blobs: DurableBlobs,
        first: First,
        now: Timestamp,
        *,
        driver: str = "",
        program: Callable[[int, str], str] = lambda epoch, before: "",
        fill: Callable[[Manifest], Manifest] = lambda opening: opening,
        token: Callable[[], str] = new_token,
    ) -> CommitLog:
        """Takes a job over with whatever first manifest; see `open`, which is the way to go on with one.

        Args:
            blobs: the job's folder.
            first: gives the opening, of the newest manifest, the program, the epoch and a token. What it raises
                refuses the job; it may be called several times.
            now: the time.
            driver: who this is, for people.
            program: as in `open`.
            fill: as in `open`.
            token: gives tokens that nobody else has.

        Raises:
            FencedError, DamagedFileError, NewerFormatError, MissingFileError, IndeterminateError: as `open`.
        """
        # SUBTLE: an epoch that has begun stops who runs the job from deleting. So what can be refused is, before.
        kept_for = _refuse(blobs, first)
        kept = program(*kept_for)
        epoch = _begin_epoch(blobs, driver, now, token())
        floor = floor_below(blobs, epoch - 1)
        blobs.put(floor_name(epoch, 0), floor_data(floor))
        newest = find_newest(blobs, floor)
        own = token()
        while True:
            if isinstance(newest, Manifest) and newest.epoch > epoch:
                raise _fenced(blobs, epoch, newest)
            # SUBTLE: whose a manifest is that cannot be read, nobody knows. A later driver's was made after its epoch
            # had begun, and that is looked at after the manifest was found. On top of a micro-batch of such a driver,
            # whose savepoints are not known, an opening would name what that driver may delete.
            if isinstance(newest, UnreadableHead) and has_begun(blobs, epoch + 1):
                raise _taking_over(blobs, epoch)
            if kept_for != (kept_for := (epoch, _program_of(newest))):
                kept = program(*kept_for)
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
        """What is real now, as far as this driver knows."""
        return self._head

    @property
    def pending(self) -> Manifest | None:
        """The proposal whose outcome is not known; None if there is none."""
        return self._pending[0] if self._pending else None

    @property
    def blobs(self) -> DurableBlobs:
        """Where the job is."""
        return self._blobs

    def draft(self, time: Timestamp, **changes: Any) -> Manifest:
        """A manifest that may follow the head: as the head is, without its committables.

        Args:
            time: the micro-batch's recorded time.
            changes: fields of `Manifest` that are other than the head's.
        """
        following = replace(
            self._head,
            micro_batch=self._head.micro_batch + 1,
            epoch=self.epoch,
            token=self._token(),
            parent=self._head.token,
            kind=Kind.MICRO_BATCH,
            time=time,
            cut=b"",
            committables=(),
        )
        return replace(following, **changes)

    def propose(self, manifest: Manifest) -> Outcome:
        """Tries to make a manifest real, once and for all.

        Raises:
            InvalidManifestError: it cannot follow the head; nothing happened.
            DeterminateError: the store refused; nothing happened, and another may be proposed.
            FencedError: a proposal met a conflict before.
        """
        if self._conflict:
            raise _fenced(self._blobs, self.epoch, self._conflict.found)
        if self._pending:
            raise InvalidManifestError(
                f"the outcome of micro-batch {self._pending[0].micro_batch} is not known yet: resolve it"
            )
        wrong = contradictions(self._head, manifest)
        if manifest.epoch != self.epoch or not manifest.token or manifest.token == self._head.token:
            wrong.append("it was not drafted by this driver, or its token is not new")
        if wrong:
            raise InvalidManifestError(f"micro-batch {manifest.micro_batch} cannot be committed: " + "; ".join(wrong))
        self._pending = (manifest, encode(manifest), None)
        return self.resolve()

    def resolve(self) -> Outcome:
        """Asks again for the outcome of the proposal that is open, by creating the same bytes again and by reading.

        That is safe: the name is taken once, and by whom is told by the token.
        """
        if self._pending is None:
            raise InvalidManifestError("no outcome is open")
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
        """The error that a driver ends with after a `Conflict`; None if there was none."""
        return _fenced(self._blobs, self.epoch, self._conflict.found) if self._conflict else None

    def overtaken(self) -> FencedError | None:
        """The same, but looks whether the micro-batch after the head is another driver's. (That a later epoch has begun
        says
        nothing: its driver may have died before its opening.) Where the store does not say, the next proposal will.
        """
        if self._pending is None and self._conflict is None:
            with contextlib.suppress(StoreError):
                self._conflict = Conflict(read_manifest(self._blobs, self._head.micro_batch + 1))
        return self.fenced()

    def is_newest(self) -> bool:
        """Whether no later epoch has begun."""
        return not has_begun(self._blobs, self.epoch + 1)

    def raise_floor(self, micro_batch: int) -> None:
        """Records that manifests below a micro-batch may go. To be called before `is_newest`, and that before deleting.

        Raises:
            IndeterminateError: it may land later; floors are not raised any more by this driver.
        """
        if self._slot < 0:
            raise IndeterminateError(f"a floor of epoch {self.epoch} in '{self._blobs}' may still be on its way")
        if not self.floor <= micro_batch <= self._head.micro_batch:
            raise ValueError(
                f"the floor rises from {self.floor}, up to the head {self._head.micro_batch}: {micro_batch}"
            )
        slot, self._slot = 1 - self._slot, -1
        self._blobs.put(floor_name(self.epoch, slot), floor_data(micro_batch))
        self.floor, self._slot = micro_batch, slot


def _refuse(blobs: DurableBlobs, first: First) -> tuple[int, str]:
    """Raises what opening the job would; writes nothing.

    Returns:
        The epoch that would begin now, and the program of the newest manifest.
    """
    epoch, newest = newest_epoch(blobs), None
    # Else somebody is at it: what is so when the epoch has begun decides.
    with contextlib.suppress(IndeterminateError):
        newest = find_newest(blobs, floor_below(blobs, epoch))
        with contextlib.suppress(MissingFileError):
            first(newest, "", epoch + 1, "-")
    return epoch + 1, _program_of(newest)


def _program_of(newest: Manifest | UnreadableHead | None) -> str:
    """What runs the job by the newest manifest; of one that cannot be read, nobody knows."""
    return newest.program if isinstance(newest, Manifest) else ""


def _begin_epoch(blobs: DurableBlobs, driver: str, now: Timestamp, token: str) -> int:
    """Takes the next epoch that nobody has."""
    data = json.dumps({"token": token, "driver": driver, "time": now}).encode()
    epoch, tries = newest_epoch(blobs) + 1, 0
    while True:
        name = epoch_name(epoch)
        try:
            if blobs.create(name, data) or blobs.get(name) == data:
                return epoch
            epoch += 1
        except (IndeterminateError, MissingFileError) as e:
            # SUBTLE: the create may land yet. Then it is found to be ours, or nobody owns the epoch, which is no harm.
            tries += 1
            if tries == _TRIES:
                raise IndeterminateError(str(e), "start again: nothing was changed") from e


def _create(blobs: DurableBlobs, manifest: Manifest, data: bytes, unclear: IndeterminateError | None = None) -> Outcome:
    """Creates a manifest, some times if need be.

    Args:
        blobs: the job's folder.
        manifest: what to create.
        data: its bytes.
        unclear: what a try before said, if that was not clear.

    Raises:
        DeterminateError: it certainly does not stand, nor will.
    """
    for _ in range(_TRIES):
        try:
            if blobs.create(manifest_name(manifest.micro_batch), data):
                return Committed(manifest)
        except IndeterminateError as e:
            unclear = e
        except DeterminateError:
            # SUBTLE: this try did nothing, but one before it may have, or may land yet.
            if unclear is None:
                raise
        # Taken, or nobody knows: what stands there tells.
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
    """Who began an epoch, and when, in brackets; "" if that is unknown: the error is right without it."""
    with contextlib.suppress(StoreError, ValueError, TypeError, KeyError, OverflowError, OSError):
        record = json.loads(blobs.get(epoch_name(epoch)))
        since = datetime.fromtimestamp(record["time"] // 1_000_000, UTC).isoformat(sep=" ")
        return f" ({record['driver'] or 'unnamed'}, since {since.replace('+00:00', ' UTC')})"
    return ""
