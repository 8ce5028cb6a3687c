"""Unfinished restrictions of one splittable stage in one shard: the remaining work, its due times and its holds.

Owns their rows: ids, due times, holds per output, and the number of live restrictions of each root. Must not know what
a restriction is (bytes, whose coder the caller has), nor how it is processed, nor a clock.

A restriction is *waiting* from the commit that made it to the one that replaces it. Within a micro-batch it may be
taken and then *runs*: it may be split, and finally it is finished, or put back untouched. It leaves other restrictions:
any number split off while it ran, and one deferred when it ended, each with its own due time and watermarks. All
changes are rows of the view, so that a failed micro-batch has changed nothing: a restriction is replaced exactly once,
and its holds are released only by the commit that sets those of its residuals.
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
from arcbeam.engine.rows.keyspace import NAME_LIMIT, RowKind, after, moment, name, part, prefix, time_of
from arcbeam.engine.state.restrictiontotals import RestrictionTotals, RestrictionTotalsRow, TooManyRestrictions
from arcbeam.engine.watermarks.holds import Holder, HolderKind, Holds, Side
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp

_ID_BYTES: Final = 12
_HEADER: Final = struct.Struct(">Bqd?I")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class About:
    """What people read of a restriction. It is not stored.

    Attributes:
        subject: describes its element.
        reason: why it has deferred itself, as its DoFn says; "" if that says nothing.
    """

    subject: Callable[[], str]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Remainder:
    """Work to do: a new element's restriction, or what a split or a deferral left.

    Attributes:
        element: encoded, with its restriction and estimator state.
        size: as reported by the SDK: an amount of work, in the DoFn's own unit.
        due: the processing time from which it may be processed; None: at once.
        watermarks: as reported by the SDK, by output: elements from this have that time or a later one. An output that
            is missing has no watermark, so it is held at the beginning of time.
        about: describes it, for people; None if unknown.
    """

    element: bytes = field(repr=False)
    size: float = 1.0
    due: Timestamp | None = None
    watermarks: Mapping[str, Timestamp] = field(default_factory=dict)
    about: About | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Restriction:
    """A remainder that is waiting or running.

    Attributes:
        id: unique in the job, of fixed length; it depends only on the root and on the sequence of parts.
        root: the name of its original element, unique in the stage.
        remainder: the work; its due time is set.
        truncated: a drain has truncated it, and it is not truncated again.
    """

    id: bytes
    root: str
    remainder: Remainder
    truncated: bool = False

    @property
    def due(self) -> Timestamp:
        """The processing time from which it may be processed."""
        assert self.remainder.due is not None
        return self.remainder.due

    def silent(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """Return the outputs for which it reports no watermark; they are held at the beginning of time."""
        return tuple(output for output in outputs if output not in self.remainder.watermarks)


@dataclass(slots=True)
class _Run:
    """A restriction that is running; `parts` counts its splits."""

    restriction: Restriction
    watermarks: dict[str, Timestamp]
    parts: int = 0


class Residuals:
    """The restrictions of a splittable stage in one shard.

    Args:
        view: the view of the shard.
        stage: the stage's number.
        outputs: the stage's outputs; each restriction holds each of them.
        bound: the intended maximum of restrictions of one root in this shard. It is not enforced, because a part that
            was split off is work: callers that request splits check `splits_left` first.
    """

    def __init__(self, view: StateView, stage: int, outputs: tuple[str, ...], bound: int = 1000) -> None:
        self._view = view
        self._outputs = outputs
        self._bound = bound
        self._rows = prefix(RowKind.RESIDUAL, stage)
        self._roots = prefix(RowKind.ROOT, stage)
        self._due = Frontier(view, prefix(RowKind.DUE, stage))
        self._holds = Holds(view, stage, Side.INPUT)
        self._running: dict[bytes, _Run] = {}
        # A root's name in a key is never empty, so this row does not belong to a root.
        self._totals = RestrictionTotalsRow(view, self._roots, outputs, self._counted)
        self._crowded: dict[str, TooManyRestrictions] = {}

    def adapt(self) -> None:
        """Adapt waiting restrictions to the stage's current outputs, if these have changed. Called before anything
        else.

        When a job is resumed with another pipeline, a transform whose output leaves the stage may have been renamed,
        added or removed. A new output is held where the restriction's earliest hold is, because elements for it may
        have that time. A removed output holds nothing, and is not counted.
        """
        if self._totals.fits():
            return
        for row, value in self._view.scan(self._rows, after(self._rows)):
            restriction = restriction_of(row[3:], value)
            remainder = restriction.remainder
            held = self._holds.clear_all(holder_of(restriction))
            earliest = min(held.values(), default=MIN_TIMESTAMP)
            times = {output: held.get(name(output), earliest) for output in self._outputs}
            known = {o: time for o, time in times.items() if o in remainder.watermarks or time > MIN_TIMESTAMP}
            fitting = replace(restriction, remainder=replace(remainder, watermarks=known))
            self._view.put(row, _packed(fitting))
            self._hold(fitting)
        self._totals.recount()

    # Restrictions from outside.

    def admit(self, root: str, remainder: Remainder, now: Timestamp) -> Restriction:
        """Add a new element's restriction.

        Args:
            root: its name, unique in the stage for the job's whole life.
            remainder: all of it.
            now: processing time of the micro-batch.

        Raises:
            ValueError: a restriction of that root exists.
        """
        id = hashlib.blake2b(root.encode(), digest_size=_ID_BYTES).digest()
        if id in self._running or self._view.get(self._rows + id) is not None:
            raise ValueError(f"a restriction of root {root!r} exists already; roots need unique names")
        return self._insert(Restriction(id, root, _due(remainder, now)))

    def hand_over(self, id: bytes) -> bytes:
        """Remove a waiting restriction, which another shard adopts in the same commit; return its encoding.

        Raises:
            ValueError: it is not waiting.
        """
        restriction = self._waiting(id)
        self._due.delete(self._due_row(restriction))
        self._remove(restriction)
        return id + _packed(restriction)

    def movable(self, count: int, limit: int) -> Iterator[tuple[Restriction, bytes]]:
        """Yield some waiting restrictions, but not all: a single one has no reason to move. They stay. Each comes with
        the encoding that `hand_over` will return.

        Args:
            count: the maximum number.
            limit: the maximum of bytes, over all encodings.
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
        """Add a restriction that another shard handed over.

        Raises:
            ValueError: it exists already.
        """
        restriction = restriction_of(handed[:_ID_BYTES], handed[_ID_BYTES:])
        if restriction.id in self._running or self._view.get(self._rows + restriction.id) is not None:
            raise ValueError(f"restriction {_named(restriction)} was handed over twice")
        return self._insert(restriction)

    # Processing.

    def next_due(self) -> Timestamp | None:
        """Return when the first waiting restriction may be processed; None if there is none."""
        row = self._due.first()
        return None if row is None else time_of(row[3:11])

    def take(self, now: Timestamp) -> Restriction | None:
        """Take the waiting restriction that is due first; it runs from then. None if none is due."""
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
        """Put back a running restriction that was not touched: it waits again.

        Raises:
            ValueError: it is not running, or was split.
        """
        run = self._run(id)
        if run.parts:
            raise ValueError(f"{_named(run.restriction)} was split: it cannot be put back as a whole")
        del self._running[id]
        self._due.put(self._due_row(run.restriction), b"")
        self._hold(run.restriction)

    def split(self, id: bytes, residual: Remainder, now: Timestamp) -> Restriction:
        """Add a part that was split off a running restriction: it waits, and holds from this moment.

        Args:
            id: the id of the restriction, which continues with the rest.
            residual: the part that was split off.
            now: processing time of the micro-batch.

        Raises:
            ValueError: it is not running.
        """
        return self._put_back(self._run(id), residual, now)

    def finish(self, id: bytes, deferred: Remainder | None, now: Timestamp) -> Restriction | None:
        """Finish a running restriction, except for what it deferred.

        Args:
            id: the id of the restriction.
            deferred: the rest, if it returned before its end.
            now: processing time of the micro-batch.

        Returns:
            The deferred restriction, waiting.

        Raises:
            ValueError: it is not running.
        """
        run = self._run(id)
        left = None if deferred is None else self._put_back(run, deferred, now)
        del self._running[id]
        self._remove(run.restriction)
        return left

    # Drain and suspension.

    def untruncated(self) -> Iterator[Restriction]:
        """Return the waiting restrictions that a drain has to truncate, in the order of their ids."""
        return (restriction for restriction in self.all() if not restriction.truncated)

    def truncate(self, id: bytes, kept: Remainder | None, now: Timestamp) -> Restriction | None:
        """Replace a waiting restriction that a drain has truncated.

        Args:
            id: the id of the restriction.
            kept: the work that is left, None if there is none. It is due at once, whatever the restriction waited for.
                What it defers later keeps its times, and is not truncated again.
            now: processing time of the micro-batch.

        Raises:
            ValueError: it is not waiting, or is truncated already.
        """
        restriction = self._waiting(id)
        if restriction.truncated:
            raise ValueError(f"{_named(restriction)} is truncated already")
        self._due.delete(self._due_row(restriction))
        run = _Run(restriction, dict(restriction.remainder.watermarks))
        left = None if kept is None else self._put_back(run, replace(kept, due=now), now, truncated=True)
        self._remove(restriction)
        return left

    def settled(self) -> None:
        """Check at the end of the micro-batch that nothing is running. Waiting restrictions stay, also in a suspension.

        Raises:
            ValueError: some are running; the message names them.
        """
        if self._running:
            running = ", ".join(_named(run.restriction) for run in self._running.values())
            raise ValueError(f"the micro-batch ends while restrictions are running: {running}; finish or put back each")

    # Queries.

    def all(self) -> Iterator[Restriction]:
        """Yield all restrictions, waiting and running, in the order of their ids."""
        for row, value in self._view.scan(self._rows, after(self._rows)):
            yield restriction_of(row[3:], value)

    def live(self, root: str) -> int:
        """Return the number of unfinished restrictions of a root in this shard."""
        stored = self._view.get(self._root_row(root))
        return int.from_bytes(stored[:4], "big") if stored else 0

    def splits_left(self, root: str) -> int:
        """Return how many splits may be requested before a root has too many live restrictions."""
        return max(0, self._bound - self.live(root))

    def crowded(self) -> tuple[TooManyRestrictions, ...]:
        """Return the roots with too many live restrictions, among those that gained some in this micro-batch."""
        return tuple(self._crowded.values())

    def totals(self) -> RestrictionTotals:
        """Return the totals. Do not change them."""
        return self._totals.read()

    def ready(self, now: Timestamp, most: int) -> int:
        """Return the number of restrictions that are due at that processing time; the count ends at `most`."""
        due = self._view.scan(self._due.start, self._due.start + moment(Timestamp(now + 1)))
        return sum(1 for _ in islice(due, most))

    def _counted(self) -> RestrictionTotals:
        """Count all restrictions; rows are only decoded if they lack a watermark."""
        totals = RestrictionTotals()
        for row, value in self._view.scan(self._rows, after(self._rows)):
            _, _, size, _, reported = _HEADER.unpack_from(value)
            silent = restriction_of(row[3:], value).silent(self._outputs) if reported < len(self._outputs) else ()
            totals.count(size, silent, 1)
        return totals

    def validate(self) -> None:
        """Check that rows, due times, holds and counts agree; AssertionError if not."""
        waiting = {row[11:]: row[3:11] for row, _ in self._view.scan(self._due.start, after(self._due.start))}
        counts: dict[str, int] = {}
        holds = 0
        for restriction in self.all():
            name = _named(restriction)
            run = self._running.get(restriction.id)
            counts[restriction.root] = counts.get(restriction.root, 0) + 1
            if run is None:
                assert waiting.pop(restriction.id, None) == moment(restriction.due), f"{name} has another due time"
            watermarks = restriction.remainder.watermarks if run is None else run.watermarks
            for output in self._outputs:
                expected = watermarks.get(output, MIN_TIMESTAMP)
                assert self._holds.get(holder_of(restriction), output) == expected, f"{name} does not hold {output!r}"
                holds += 1
        assert not waiting, "due times without restrictions"
        kept = sum(hold.kind is HolderKind.RESIDUAL for hold in self._holds.all())
        assert kept == holds, "holds without restrictions"
        roots = list(self._view.scan(self._roots + b"\0", after(self._roots)))
        assert {value[4:].decode(): int.from_bytes(value[:4], "big") for _, value in roots} == counts, "wrong counts"
        assert self._counted() == self.totals(), "wrong totals"
        self._holds.validate()

    # Rows.

    def _put_back(self, run: _Run, remainder: Remainder, now: Timestamp, truncated: bool = False) -> Restriction:
        """Add a part of a running restriction."""
        parent = run.restriction
        part_of = parent.id + run.parts.to_bytes(4, "big")
        run.parts += 1
        # A watermark that the estimator has promised for the whole holds for each part.
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
        self._totals.count(restriction.remainder.size, restriction.silent(self._outputs), 1)
        self._view.put(self._rows + restriction.id, _packed(restriction))
        self._due.put(self._due_row(restriction), b"")
        self._hold(restriction)
        self._count(restriction.root, 1)
        return restriction

    def _remove(self, restriction: Restriction) -> None:
        self._totals.count(restriction.remainder.size, restriction.silent(self._outputs), -1)
        self._view.delete(self._rows + restriction.id)
        for output in self._outputs:
            self._holds.clear(holder_of(restriction), output)
        self._count(restriction.root, -1)

    def _hold(self, restriction: Restriction) -> None:
        for output in self._outputs:
            self._holds.set(holder_of(restriction), restriction.remainder.watermarks.get(output, MIN_TIMESTAMP), output)

    def _count(self, root: str, change: int) -> None:
        row, live = self._root_row(root), self.live(root) + change
        if live:
            self._view.put(row, live.to_bytes(4, "big") + root.encode())
        else:
            self._view.delete(row)
        if live > self._bound:
            self._crowded[root] = TooManyRestrictions(root, live, self._bound)
        else:
            self._crowded.pop(root, None)

    def _root_row(self, root: str) -> bytes:
        return self._roots + part(root.encode(), NAME_LIMIT)

    def _due_row(self, restriction: Restriction) -> bytes:
        return self._due.start + moment(restriction.due) + restriction.id

    def _stored(self, id: bytes) -> Restriction | None:
        value = self._view.get(self._rows + id)
        return None if value is None else restriction_of(id, value)

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
        return "unknown" if self._view.get(self._rows + id) is None else "waiting"


def _due(remainder: Remainder, now: Timestamp) -> Remainder:
    return replace(remainder, due=now) if remainder.due is None else remainder


def _named(restriction: Restriction) -> str:
    return f"{restriction.root}~{restriction.id.hex()}"


def due_and_size_of(view: StateView, stage: int, holder: str) -> tuple[Timestamp, float] | None:
    """Return when a restriction may resume, and its size; None if unknown.

    Args:
        view: the view of its shard.
        stage: the stage's number.
        holder: the name of its hold. If the name was cut because of a long root, both are unknown.
    """
    try:
        id = bytes.fromhex(holder.rpartition("~")[2])
    except ValueError:
        return None
    row = view.get(prefix(RowKind.RESIDUAL, stage) + id)
    if row is None:
        return None
    _, due, size, *_ = _HEADER.unpack_from(row)
    return Timestamp(due), size


def holder_of(restriction: Restriction) -> Holder:
    """Return the holder of a restriction's holds."""
    return Holder(HolderKind.RESIDUAL, _named(restriction))


# A row has: version, due, size, truncated, number of watermarks. Then follow root, element, and each output with its
# watermark, each preceded by its length.


def _packed(restriction: Restriction) -> bytes:
    remainder = restriction.remainder
    header = _HEADER.pack(_VERSION, restriction.due, remainder.size, restriction.truncated, len(remainder.watermarks))
    pairs = [each for pair in remainder.watermarks.items() for each in (pair[0].encode(), moment(pair[1]))]
    return header + b"".join(map(sequences.framed, (restriction.root.encode(), remainder.element, *pairs)))


def restriction_of(id: bytes, row: bytes) -> Restriction:
    """Return a restriction from its id and the value of its row."""
    version, due, size, truncated, count = _HEADER.unpack_from(row)
    if version != _VERSION:
        raise ValueError(f"restriction {id.hex()} has version {version}; this code reads version {_VERSION}")
    root, element, *pairs = sequences.unframed(row, _HEADER.size)
    watermarks = {pairs[2 * i].decode(): time_of(pairs[2 * i + 1]) for i in range(count)}
    return Restriction(id, root.decode(), Remainder(element, size, Timestamp(due), watermarks), truncated)
