"""What was asked of a simulated job, and whether it comes into being: savepoints and giving them up, drains,
suspensions, cancels.

Owns what each driver has heard, and what its commits must then have. A request that a driver has not heard, or that
dies with it before a commit, is lost, and whoever asked knows. Must not know how a driver does what it is asked for.
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

WHILE_COMMITTING = "a savepoint was asked for while a commit was on its way"
TOLD = "a savepoint that was asked for was told not to be made"

_LAST = frozenset({CommitMode.DRAINED, CommitMode.SUSPENDED, CommitMode.DONE})
_MODES = {
    None: {CommitMode.RUNNING, CommitMode.DONE},
    DrainRequested: {CommitMode.DRAINING, CommitMode.DRAINED},
    SuspendRequested: {CommitMode.SUSPENDED, CommitMode.DONE},
}
"""How a job may stand with a micro-batch that was proposed by who had heard of that."""
_Heading = type[DrainRequested] | type[SuspendRequested] | None


@dataclass(frozen=True)
class _Due:
    """What a proposal has to have.

    Attributes:
        names: of savepoints.
        heading: what the job was asked for.
        last: the savepoint that this is to end with; None if that is not known.
        released: names that it must not have.
    """

    names: tuple[str, ...]
    heading: _Heading
    last: str | None
    released: frozenset[str]


@dataclass
class _Heard:
    """What a driver has heard, and has said.

    Attributes:
        ended: the job had ended when it was opened.
        names: of savepoints that it has to make.
        heading, last: as in `_Due`; the newest.
        made: the last savepoint is there.
        released: names that are to be given up.
        due: by micro-batch, what was proposed has to have.
        proposing: a commit is on its way.
        cancelled: it has to end, and with that.
        ending: the last calls of user code are made.
        told: all warnings.
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
    told: str = ""


class Wishes:
    """The requests of one job.

    Args:
        note: takes note of what has happened.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._drivers: dict[int, _Heard] = {}
        # By micro-batch at which the job is being drained: the savepoint that this is to end with; None if it is not
        # known.
        self._drains: dict[int, str | None] = {}

    # What drivers hear and say.

    def handled(self, epoch: int, event: Event, commands: Sequence[Command]) -> None:
        """The driver of an epoch has taken in an event."""
        of = self._drivers.setdefault(epoch, _Heard())
        told = "\n".join(command.text for command in commands if isinstance(command, Warn))
        of.told += told
        match event:
            case SavepointRequested(_, name) if repr(name) not in told:
                of.names.append(name)
                if of.proposing:
                    self._note(WHILE_COMMITTING)
            case DrainRequested(_, name) | SuspendRequested(_, name) if repr(name) not in told:
                if of.heading is not None and (of.heading is not type(event) or of.last not in (None, name)):
                    raise Broken(
                        f"{event} was asked for, and nothing was said to it, though the job is heading elsewhere"
                    )
                of.heading, of.last = type(event), name
            case CancelRequested():
                of.cancelled |= not of.ending
            case CommitDecided() | CommitConflicted():
                of.proposing = False
        for command in commands:
            match command:
                case Propose(micro_batch):
                    of.proposing = True
                    # The same is proposed again when it was refused: what was heard meanwhile is for the next one.
                    of.due.setdefault(micro_batch, _Due(tuple(of.names), of.heading, of.last, frozenset(of.released)))
                case CallShutdown() | TearDown():
                    of.ending = True
                case End():
                    self._ended(of, command)

    def release(self, epoch: int, name: str) -> None:
        """A savepoint is to be given up."""
        self._drivers[epoch].released.add(name)

    def resumed(self, opening: Manifest, savepoint: str) -> None:
        """A job was opened to go on from a savepoint."""
        pin = opening.pin(savepoint)
        left = [each.first for each in opening.abandoned[-1:]] or [opening.micro_batch]
        if pin is None or pin.micro_batch + 1 not in (opening.micro_batch, *left):
            raise Broken(
                f"micro-batch {opening.micro_batch} was to go on from {savepoint}, and abandons {opening.abandoned}"
            )

    # What becomes real.

    def opened(self, before: Manifest | None, origin: Manifest | None, opening: Manifest) -> None:
        """A driver has taken the job over.

        Args:
            before: the head.
            origin: what it goes on from; the head, or a savepoint.
            opening: what it begins with.
        """
        of = self._drivers[opening.epoch] = _Heard(opening.mode in ENDED)
        if before is None or origin is None:
            return
        if opening.pins != before.pins:
            raise Broken(
                f"micro-batch {opening.micro_batch} opens with savepoints {opening.pins}; there were {before.pins}"
            )
        # Its shards: see `watching`.
        for what in ("side_files", "watermarks", "progress", "committables"):
            if getattr(opening, what) != getattr(origin, what):
                raise Broken(
                    f"micro-batch {opening.micro_batch} goes on from micro-batch "
                    f"{origin.micro_batch}, and has other {what}"
                )
        if opening.mode is CommitMode.DRAINING:
            of.heading, of.last = DrainRequested, self._drains.get(origin.micro_batch)
            self._drains[opening.micro_batch] = of.last

    def real(self, head: Manifest, manifest: Manifest) -> None:
        """A micro-batch was committed."""
        of = self._drivers[manifest.epoch]
        due = of.due[manifest.micro_batch]
        had, has = ({pin.name: pin.micro_batch for pin in each.pins} for each in (head, manifest))
        where = f"micro-batch {manifest.micro_batch} ({manifest.mode})"
        if manifest.mode not in _MODES[due.heading]:
            raise Broken(f"{where} was proposed when {due.heading and due.heading.__name__} had been heard")
        names = [*due.names, *([due.last] if due.last and manifest.mode in _LAST else [])]
        if missing := [name for name in names if has.get(name) != manifest.micro_batch]:
            raise Broken(f"{where} has not the savepoints {missing}, which were asked for before it was proposed")
        if lost := [name for name in had if has.get(name) != had[name] and name not in of.released]:
            raise Broken(f"{where} has not the savepoints {lost} any more, and nobody has given them up")
        if kept := [name for name in due.released if name in has]:
            raise Broken(f"{where} has the savepoints {kept}, which were given up")
        if strange := [name for name in has if name not in had and name not in names]:
            raise Broken(f"{where} has the savepoints {strange}, for which nobody has asked")
        of.names = [name for name in of.names if name not in has]
        of.made |= of.last in has
        if manifest.mode is CommitMode.DRAINING:
            self._drains[manifest.micro_batch] = due.last

    def _ended(self, of: _Heard, end: End) -> None:
        left = [*of.names, *([of.last] if of.last and not of.made else [])]
        if unseen := [name for name in left if repr(name) not in of.told]:
            raise Broken(f"the driver ends ({end.state.value}), and savepoints {unseen} are neither made nor told")
        for _ in left:
            self._note(TOLD)
        if of.cancelled and end.state is not EndState.CANCELLED:
            raise Broken(f"the job was cancelled, and its driver ends: {end.state.value}")
        asked = {EndState.STOPPED: SuspendRequested, EndState.DRAINED: DrainRequested}.get(end.state)
        if asked is not None and of.heading is not asked and not of.ended:
            raise Broken(f"the driver ends ({end.state.value}), and nobody has asked for that")
