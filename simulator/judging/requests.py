"""Check that the requests to a simulated job are carried out: savepoints and their release, drains, suspensions,
cancels.

Owns the requests that each driver received, and what its commands must contain after them. A request is lost if no
driver received it, or if the driver died before a commit; the requester knows that. Must not know how a driver carries
out a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from arcbeam.engine.coordinator import (
    CallShutdown,
    CancelRequested,
    Command,
    CommitConflicted,
    CommitDecided,
    DrainRequested,
    End,
    EndState,
    Event,
    Propose,
    SavepointRequested,
    SuspendRequested,
    TearDown,
    Warn,
)
from arcbeam.model.commits import CommitMode
from arcbeam.store.manifest.values import ENDED, Manifest
from simulator.judging.records import Broken

WHILE_COMMITTING = "a savepoint was requested during a commit"
REFUSED = "a requested savepoint was reported as not made"

_LAST = frozenset({CommitMode.DRAINED, CommitMode.SUSPENDED, CommitMode.DONE})
_MODES = {
    None: {CommitMode.RUNNING, CommitMode.DONE},
    DrainRequested: {CommitMode.DRAINING, CommitMode.DRAINED},
    SuspendRequested: {CommitMode.SUSPENDED, CommitMode.DONE},
}
"""The mode of a proposed micro-batch may be one of these, by the request that its driver had received."""
_Heading = type[DrainRequested] | type[SuspendRequested] | None


@dataclass(frozen=True)
class _Due:
    """What a proposal must contain.

    Attributes:
        names: the savepoints that it must contain.
        heading: how the job was requested to end.
        last: the savepoint to end with; None if that is not known.
        released: savepoints that it must not contain.
    """

    names: tuple[str, ...]
    heading: _Heading
    last: str | None
    released: frozenset[str]


@dataclass
class _Heard:
    """The requests that a driver has received, and its answers.

    Attributes:
        ended: the job had already ended when this driver opened it.
        names: the savepoints that it has to make.
        heading, last: as in `_Due`; the newest.
        made: the last savepoint is made.
        released: the savepoints to release.
        due: what each proposal must contain, by micro-batch.
        proposing: a commit is in progress.
        cancelled: it must end as cancelled.
        ending: the last calls of user code are made.
        warnings: the texts of all warnings.
    """

    ended: bool = False
    names: list[str] = field(default_factory=list)
    heading: _Heading = None
    last: str | None = None
    made: bool = False
    released: set[str] = field(default_factory=set)
    due: dict[int, _Due] = field(default_factory=dict)
    proposing: bool = False
    cancelled: bool = False
    ending: bool = False
    warnings: str = ""


class RequestChecks:
    """The requests to one job.

    Args:
        note: counts a notable event.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._drivers: dict[int, _Heard] = {}
        # The savepoint that a drain is to end with, by micro-batch of the drain; None if that is not known.
        self._drains: dict[int, str | None] = {}

    # What drivers receive and answer.

    def handled(self, epoch: int, event: Event, commands: Sequence[Command]) -> None:
        """Add an event to the driver of an epoch, with the commands that answer it."""
        of = self._drivers.setdefault(epoch, _Heard())
        warnings = "\n".join(command.text for command in commands if isinstance(command, Warn))
        of.warnings += warnings
        match event:
            case SavepointRequested(_, name) if repr(name) not in warnings:
                of.names.append(name)
                if of.proposing:
                    self._note(WHILE_COMMITTING)
            case DrainRequested(_, name) | SuspendRequested(_, name) if repr(name) not in warnings:
                if of.heading is not None and (of.heading is not type(event) or of.last not in (None, name)):
                    raise Broken(f"{event} was accepted without a warning, though another end was requested before")
                of.heading, of.last = type(event), name
            case CancelRequested():
                of.cancelled |= not of.ending
            case CommitDecided() | CommitConflicted():
                of.proposing = False
        for command in commands:
            match command:
                case Propose(micro_batch):
                    of.proposing = True
                    # A refused micro-batch is proposed again unchanged: newer requests are for the next one.
                    of.due.setdefault(micro_batch, _Due(tuple(of.names), of.heading, of.last, frozenset(of.released)))
                case CallShutdown() | TearDown():
                    of.ending = True
                case End():
                    self._ended(of, command)

    def release(self, epoch: int, name: str) -> None:
        """Record that a savepoint is to be released."""
        self._drivers[epoch].released.add(name)

    def finishing(self, epoch: int) -> None:
        """Record that a new driver finishes a job that has ended. It has no epoch of its own, but its own requests."""
        of = self._drivers[epoch]
        of.cancelled = of.ending = False

    def resumed(self, opening: Manifest, savepoint: str) -> None:
        """Check an opening that resumes a savepoint."""
        pin = opening.pin(savepoint)
        left = [each.first for each in opening.abandoned[-1:]] or [opening.micro_batch]
        if pin is None or pin.micro_batch + 1 not in (opening.micro_batch, *left):
            raise Broken(
                f"micro-batch {opening.micro_batch} had to resume {savepoint}, but abandons {opening.abandoned}"
            )

    # What is committed.

    def opened(self, before: Manifest | None, origin: Manifest | None, opening: Manifest) -> None:
        """Check the opening of a new driver.

        Args:
            before: the head.
            origin: the manifest that it continues: the head, or a savepoint.
            opening: the opening manifest.
        """
        of = self._drivers[opening.epoch] = _Heard(opening.mode in ENDED)
        if before is None or origin is None:
            return
        if opening.pins != before.pins:
            raise Broken(
                f"micro-batch {opening.micro_batch} opens with savepoints {opening.pins}, but there were {before.pins}"
            )
        # Its shards: see `watching`.
        for what in ("side_files", "watermarks", "progress", "committables"):
            if getattr(opening, what) != getattr(origin, what):
                raise Broken(
                    f"micro-batch {opening.micro_batch} opens on micro-batch {origin.micro_batch}, but has other {what}"
                )
        if opening.mode is CommitMode.DRAINING:
            of.heading, of.last = DrainRequested, self._drains.get(origin.micro_batch)
            self._drains[opening.micro_batch] = of.last

    def real(self, head: Manifest, manifest: Manifest) -> None:
        """Check a committed micro-batch."""
        of = self._drivers[manifest.epoch]
        due = of.due[manifest.micro_batch]
        had, has = ({pin.name: pin.micro_batch for pin in each.pins} for each in (head, manifest))
        where = f"micro-batch {manifest.micro_batch} ({manifest.mode})"
        if manifest.mode not in _MODES[due.heading]:
            requested = due.heading.__name__ if due.heading else "no request to end"
            raise Broken(f"{where} was proposed after {requested}")
        names = [*due.names, *([due.last] if due.last and manifest.mode in _LAST else [])]
        if missing := [name for name in names if has.get(name) != manifest.micro_batch]:
            raise Broken(f"{where} has not the savepoints {missing}, which were requested before its proposal")
        if lost := [name for name in had if has.get(name) != had[name] and name not in of.released]:
            raise Broken(f"{where} has lost the savepoints {lost}, but no request released them")
        if kept := [name for name in due.released if name in has]:
            raise Broken(f"{where} has the savepoints {kept}, which were released")
        if strange := [name for name in has if name not in had and name not in names]:
            raise Broken(f"{where} has the savepoints {strange}, which were never requested")
        of.names = [name for name in of.names if name not in has]
        of.made |= of.last in has
        if manifest.mode is CommitMode.DRAINING:
            self._drains[manifest.micro_batch] = due.last

    def _ended(self, of: _Heard, end: End) -> None:
        left = [*of.names, *([of.last] if of.last and not of.made else [])]
        if unseen := [name for name in left if repr(name) not in of.warnings]:
            raise Broken(f"the driver ends ({end.state.value}), but savepoints {unseen} are neither made nor refused")
        for _ in left:
            self._note(REFUSED)
        if of.cancelled and end.state is not EndState.CANCELLED:
            raise Broken(f"the job was cancelled, but its driver ends as {end.state.value}")
        requested = {EndState.STOPPED: SuspendRequested, EndState.DRAINED: DrainRequested}.get(end.state)
        if requested is not None and of.heading is not requested and not of.ended:
            raise Broken(f"the driver ends as {end.state.value}, but that was never requested")
