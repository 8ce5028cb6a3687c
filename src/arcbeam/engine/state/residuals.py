"""Restrictions that are not done, of one splittable stage in one shard: what remains, when it may go on, what it holds.

Owns their rows: ids, due times, holds per output, how many live of each root. Must not know what a restriction is (it
is bytes, whose coder is the caller's), who processes it, nor what time it is.

A restriction is *waiting* from the commit that made it to the one that replaces it. Within a micro-batch it may be
taken and be *running*: then it is split, and at last finished, or put back untouched. What it leaves are restrictions
of their
own: any number split off while it ran, and one deferred when it ended, each with its own due time and watermarks. All
changes are rows of the view, so that a micro-batch that fails has changed nothing: a restriction is replaced exactly
once, and its holds go only with the commit that brings those of its residuals.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.frontier import Frontier
from arcbeam.engine.rows.keyspace import NAME_LIMIT, Kind, after, moment, name, part, prefix, time_of
from arcbeam.engine.state.holdreport import Crowded, HoldReport, HoldReportRow
from arcbeam.engine.watermarks.holds import Holder, HolderKind, Holds, Side
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp

_ID_BYTES: Final = 12
_HEADER: Final = struct.Struct(">Bqd?I")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is to be processed: a new element's restriction, or what a split or a deferral left.

    Attributes:
        element: encoded, with its restriction and estimator state.
        size: as the SDK tells it; about work, in whatever unit the DoFn has.
        due: processing time from which on it may be processed; None: at once.
        watermarks: what the SDK reports by output: what comes of this has that time or a later one. Nothing is known
            about an output that is not here, so it is held at the beginning of time.
        about: tells what it is of, for people; None if that is not known. It is not kept.
    """

    element: bytes = field(repr=False)
    size: float = 1.0
    due: Timestamp | None = None
    watermarks: Mapping[str, Timestamp] = field(default_factory=dict)
    about: Callable[[], str] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Restriction:
    """A remainder that is waiting or running.

    Attributes:
        id: unique in the job, of fixed length; depends only on the root and on which part of what it is.
        root: name of the element it comes from, unique in the stage.
        remainder: what it is; its due time is set.
        truncated: a drain has cut it, and it is not cut again.
    """

    id: bytes
    root: str
    remainder: Remainder
    truncated: bool = False

    @property
    def due(self) -> Timestamp:
        """Processing time from which on it may be processed."""
        assert self.remainder.due is not None
        return self.remainder.due

    def silent(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """The outputs that it reports no watermark for: they are held at the beginning of time."""
        return tuple(output for output in outputs if output not in self.remainder.watermarks)


@dataclass(slots=True)
class _Run:
    """A restriction that is running; `parts` counts what it was split into."""

    restriction: Restriction
    watermarks: dict[str, Timestamp]
    parts: int = 0


class Residuals:
    """The restrictions of a splittable stage in one shard.

    Args:
        view: of the shard.
        stage: the stage's number.
        outputs: the stage's outputs; each is held by each restriction.
        bound: how many restrictions of one root should live in this shard at most. Nothing is refused, because what was
            split off is work: who asks for splits asks `room` first.
    """

    def __init__(self, view: StateView, stage: int, outputs: tuple[str, ...], bound: int = 1000) -> None:
        self._view = view
        self._outputs = outputs
        self._bound = bound
        self._rows = prefix(Kind.RESIDUAL, stage)
        self._roots = prefix(Kind.ROOT, stage)
        self._due = Frontier(view, prefix(Kind.DUE, stage))
        self._holds = Holds(view, stage, Side.INPUT)
        self._running: dict[bytes, _Run] = {}
        # No name of a root is empty in a key: this row is no root's.
        self._standing = HoldReportRow(view, self._roots, outputs, self._counted)
        self._crowded: dict[str, Crowded] = {}

    def go_on(self) -> None:
        """Makes what waits fit the outputs that the stage has now, if it had others. Called before anything else.

        Who goes on with a job may call a transform otherwise whose output leaves the stage, add one, or leave one out.
        An output that a restriction was not held for is held where the restriction is held earliest: what comes of it
        may come there, too. An output that is gone holds nothing, and is not counted.
        """
        if self._standing.fits():
            return
        for row, value in self._view.scan(self._rows, after(self._rows)):
            restriction = _unpacked(row[3:], value)
            remainder = restriction.remainder
            held = self._holds.clear_all(_holder(restriction))
            earliest = min(held.values(), default=MIN_TIMESTAMP)
            times = {output: held.get(name(output), earliest) for output in self._outputs}
            told = {o: time for o, time in times.items() if o in remainder.watermarks or time > MIN_TIMESTAMP}
            fitting = replace(restriction, remainder=replace(remainder, watermarks=told))
            self._view.put(row, _packed(fitting))
            self._hold(fitting)
        self._standing.anew()

    # From outside.

    def admit(self, root: str, remainder: Remainder, now: Timestamp) -> Restriction:
        """Takes in a new element's restriction.

        Args:
            root: a name for it, unique in the stage as long as the job lives.
            remainder: all of it.
            now: processing time of the micro-batch.

        Raises:
            ValueError: it is there already.
        """
        id = hashlib.blake2b(root.encode(), digest_size=_ID_BYTES).digest()
        if id in self._running or self._view.get(self._rows + id) is not None:
            raise ValueError(f"a restriction of root {root!r} is there already; roots need names of their own")
        return self._insert(Restriction(id, root, _due(remainder, now)))

    def hand_over(self, id: bytes) -> bytes:
        """Removes a waiting restriction, to be adopted by another shard in the same commit; what to give it.

        Raises:
            ValueError: it is not waiting.
        """
        restriction = self._waiting(id)
        self._due.delete(self._due_row(restriction))
        self._remove(restriction)
        return id + _packed(restriction)

    def movable(self, count: int, limit: int) -> Iterator[tuple[Restriction, bytes]]:
        """Some of those that wait, but not all: one that is alone has no reason to move. They stay; with what
        `hand_over` will give.

        Args:
            count: no more than so many.
            limit: of bytes of all together.
        """
        waiting = (restriction for restriction in self.all() if restriction.id not in self._running)
        next(waiting, None)
        for restriction in islice(waiting, count):
            handed = restriction.id + _packed(restriction)
            limit -= len(handed)
            if limit < 0:
                return
            yield restriction, handed

    def adopt(self, handed: bytes) -> Restriction:
        """Takes in what another shard handed over.

        Raises:
            ValueError: it is there already.
        """
        restriction = _unpacked(handed[:_ID_BYTES], handed[_ID_BYTES:])
        if restriction.id in self._running or self._view.get(self._rows + restriction.id) is not None:
            raise ValueError(f"restriction {_named(restriction)} was handed over twice")
        return self._insert(restriction)

    # Processing.

    def next_due(self) -> Timestamp | None:
        """When the first waiting restriction may be processed; None if there is none."""
        row = self._due.first()
        return None if row is None else time_of(row[3:11])

    def take(self, now: Timestamp) -> Restriction | None:
        """The waiting restriction that is due first, from now on running; None if none is due."""
        row = self._due.first()
        if row is None or time_of(row[3:11]) > now:
            return None
        self._due.take(row)
        id = row[11:]
        restriction = self._stored(id)
        assert restriction is not None
        self._running[id] = _Run(restriction, dict(restriction.remainder.watermarks))
        return restriction

    def put_back(self, id: bytes) -> None:
        """A running restriction was not touched: it waits again.

        Raises:
            ValueError: it is not running, or was split.
        """
        run = self._run(id)
        if run.parts:
            raise ValueError(f"{_named(run.restriction)} was split: it cannot be put back whole")
        del self._running[id]
        self._due.put(self._due_row(run.restriction), b"")
        self._hold(run.restriction)

    def split(self, id: bytes, residual: Remainder, now: Timestamp) -> Restriction:
        """A part of a running restriction was split off: it waits, and holds, from this moment on.

        Args:
            id: of the restriction, which goes on with the rest.
            residual: what was split off.
            now: processing time of the micro-batch.

        Raises:
            ValueError: it is not running.
        """
        return self._leave(self._run(id), residual, now)

    def finish(self, id: bytes, deferred: Remainder | None, now: Timestamp) -> Restriction | None:
        """A running restriction is done, but for what it deferred.

        Args:
            id: of the restriction.
            deferred: what is left of it, if it returned before its end.
            now: processing time of the micro-batch.

        Returns:
            What was deferred, waiting.

        Raises:
            ValueError: it is not running.
        """
        run = self._run(id)
        left = None if deferred is None else self._leave(run, deferred, now)
        del self._running[id]
        self._remove(run.restriction)
        return left

    # Drain and suspension.

    def untruncated(self) -> Iterator[Restriction]:
        """The waiting restrictions that a drain has to truncate, in the order of their ids."""
        return (restriction for restriction in self.all() if not restriction.truncated)

    def truncate(self, id: bytes, kept: Remainder | None, now: Timestamp) -> Restriction | None:
        """A drain has truncated a waiting restriction.

        Args:
            id: of the restriction.
            kept: what is to be processed of it yet, None if nothing. It is due at once: what it waited for will not be
                waited for. What it defers later keeps its times, and is not truncated again.
            now: processing time of the micro-batch.

        Raises:
            ValueError: it is not waiting, or truncated already.
        """
        restriction = self._waiting(id)
        if restriction.truncated:
            raise ValueError(f"{_named(restriction)} is truncated already")
        self._due.delete(self._due_row(restriction))
        run = _Run(restriction, dict(restriction.remainder.watermarks))
        left = None if kept is None else self._leave(run, replace(kept, due=now), now, truncated=True)
        self._remove(restriction)
        return left

    def settled(self) -> None:
        """Says that the micro-batch ends: nothing is running. What waits stays as it is, also when the job is
        suspended.

        Raises:
            ValueError: something is; it is named.
        """
        if self._running:
            running = ", ".join(_named(run.restriction) for run in self._running.values())
            raise ValueError(f"the micro-batch ends while restrictions are running: {running}; finish or put back each")

    # What there is.

    def all(self) -> Iterator[Restriction]:
        """All restrictions, waiting and running, in the order of their ids."""
        for row, value in self._view.scan(self._rows, after(self._rows)):
            yield _unpacked(row[3:], value)

    def live(self, root: str) -> int:
        """How many restrictions of a root are not done in this shard."""
        stored = self._view.get(self._root_row(root))
        return int.from_bytes(stored[:4], "big") if stored else 0

    def room(self, root: str) -> int:
        """How many splits may be asked for before too many restrictions of a root live."""
        return max(0, self._bound - self.live(root))

    def crowded(self) -> tuple[Crowded, ...]:
        """Roots of which more restrictions live than should, of those to which some have come lately."""
        return tuple(self._crowded.values())

    def standing(self) -> HoldReport:
        """All together. Not to be changed."""
        return self._standing.read()

    def ready(self, now: Timestamp, most: int) -> int:
        """How many are due at that processing time, if no more than so many."""
        due = self._view.scan(self._due.start, self._due.start + moment(Timestamp(now + 1)))
        return sum(1 for _ in islice(due, most))

    def _counted(self) -> HoldReport:
        """Counts them; rows are not taken apart for it, but for those that say too little."""
        standing = HoldReport()
        for row, value in self._view.scan(self._rows, after(self._rows)):
            _, _, size, _, told = _HEADER.unpack_from(value)
            silent = _unpacked(row[3:], value).silent(self._outputs) if told < len(self._outputs) else ()
            standing.count(size, silent, 1)
        return standing

    def validate(self) -> None:
        """Checks that rows, due times, holds and counts agree; AssertionError if not."""
        waiting = {row[11:]: row[3:11] for row, _ in self._view.scan(self._due.start, after(self._due.start))}
        counts: dict[str, int] = {}
        holds = 0
        for restriction in self.all():
            name = _named(restriction)
            run = self._running.get(restriction.id)
            counts[restriction.root] = counts.get(restriction.root, 0) + 1
            if run is None:
                assert waiting.pop(restriction.id, None) == moment(restriction.due), f"{name} is not due when it is due"
            watermarks = restriction.remainder.watermarks if run is None else run.watermarks
            for output in self._outputs:
                expected = watermarks.get(output, MIN_TIMESTAMP)
                assert self._holds.get(_holder(restriction), output) == expected, f"{name} does not hold {output!r}"
                holds += 1
        assert not waiting, "due times of restrictions that are not there"
        kept = sum(hold.kind is HolderKind.RESIDUAL for hold in self._holds.all())
        assert kept == holds, "holds of restrictions that are not there"
        roots = list(self._view.scan(self._roots + b"\0", after(self._roots)))
        assert {value[4:].decode(): int.from_bytes(value[:4], "big") for _, value in roots} == counts, "wrong counts"
        assert self._counted() == self.standing(), "they do not stand as is counted"
        self._holds.validate()

    # Rows.

    def _leave(self, run: _Run, remainder: Remainder, now: Timestamp, truncated: bool = False) -> Restriction:
        """Takes in a part of what is running."""
        parent = run.restriction
        part_of = parent.id + run.parts.to_bytes(4, "big")
        run.parts += 1
        # What the estimator has promised for the whole, it has promised for each part.
        watermarks = {
            output: max(watermark, run.watermarks.get(output, MIN_TIMESTAMP))
            for output, watermark in remainder.watermarks.items()
        }
        return self._insert(
            Restriction(
                hashlib.blake2b(part_of, digest_size=_ID_BYTES).digest(),
                parent.root,
                _due(replace(remainder, watermarks=watermarks), now),
                truncated or parent.truncated,
            )
        )

    def _insert(self, restriction: Restriction) -> Restriction:
        self._standing.count(restriction.remainder.size, restriction.silent(self._outputs), 1)
        self._view.put(self._rows + restriction.id, _packed(restriction))
        self._due.put(self._due_row(restriction), b"")
        self._hold(restriction)
        self._count(restriction.root, 1)
        return restriction

    def _remove(self, restriction: Restriction) -> None:
        self._standing.count(restriction.remainder.size, restriction.silent(self._outputs), -1)
        self._view.delete(self._rows + restriction.id)
        for output in self._outputs:
            self._holds.clear(_holder(restriction), output)
        self._count(restriction.root, -1)

    def _hold(self, restriction: Restriction) -> None:
        for output in self._outputs:
            self._holds.set(_holder(restriction), restriction.remainder.watermarks.get(output, MIN_TIMESTAMP), output)

    def _count(self, root: str, change: int) -> None:
        row, live = self._root_row(root), self.live(root) + change
        if live:
            self._view.put(row, live.to_bytes(4, "big") + root.encode())
        else:
            self._view.delete(row)
        if live > self._bound:
            self._crowded[root] = Crowded(root, live, self._bound)
        else:
            self._crowded.pop(root, None)

    def _root_row(self, root: str) -> bytes:
        return self._roots + part(root.encode(), NAME_LIMIT)

    def _due_row(self, restriction: Restriction) -> bytes:
        return self._due.start + moment(restriction.due) + restriction.id

    def _stored(self, id: bytes) -> Restriction | None:
        value = self._view.get(self._rows + id)
        return None if value is None else _unpacked(id, value)

    def _waiting(self, id: bytes) -> Restriction:
        restriction = None if id in self._running else self._stored(id)
        if restriction is None:
            raise ValueError(f"restriction {id.hex()} is not waiting: it is {self._state(id)}")
        return restriction

    def _run(self, id: bytes) -> _Run:
        run = self._running.get(id)
        if run is None:
            raise ValueError(f"restriction {id.hex()} is not running: it is {self._state(id)}")
        return run

    def _state(self, id: bytes) -> str:
        if id in self._running:
            return "running"
        return "not here" if self._view.get(self._rows + id) is None else "waiting"


def _due(remainder: Remainder, now: Timestamp) -> Remainder:
    return replace(remainder, due=now) if remainder.due is None else remainder


def _named(restriction: Restriction) -> str:
    return f"{restriction.root}~{restriction.id.hex()}"


def due_of(view: StateView, stage: int, holder: str) -> Timestamp | None:
    """When a restriction may go on.

    Args:
        view: of its shard.
        stage: the stage's number.
        holder: the name of its hold. A long root may have cut that, and then nothing is known.
    """
    try:
        id = bytes.fromhex(holder.rpartition("~")[2])
    except ValueError:
        return None
    row = view.get(prefix(Kind.RESIDUAL, stage) + id)
    return None if row is None else Timestamp(_HEADER.unpack_from(row)[1])


def _holder(restriction: Restriction) -> Holder:
    return Holder(HolderKind.RESIDUAL, _named(restriction))


# A row: version, due, size, truncated, number of watermarks; then root, element, and each watermark behind its output,
# each behind its length.


def _packed(restriction: Restriction) -> bytes:
    remainder = restriction.remainder
    header = _HEADER.pack(_VERSION, restriction.due, remainder.size, restriction.truncated, len(remainder.watermarks))
    told = [each for pair in remainder.watermarks.items() for each in (pair[0].encode(), moment(pair[1]))]
    return header + b"".join(map(sequences.framed, (restriction.root.encode(), remainder.element, *told)))


def _unpacked(id: bytes, row: bytes) -> Restriction:
    version, due, size, truncated, count = _HEADER.unpack_from(row)
    if version != _VERSION:
        raise ValueError(f"restriction {id.hex()} is of version {version}; this reads version {_VERSION}")
    root, element, *told = sequences.unframed(row, _HEADER.size)
    watermarks = {told[2 * i].decode(): time_of(told[2 * i + 1]) for i in range(count)}
    return Restriction(id, root.decode(), Remainder(element, size, Timestamp(due), watermarks), truncated)
