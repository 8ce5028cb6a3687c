"""What one shard knows about the watermarks of one stage.

Owns the formulas of watermarks, and the shard's own input watermark. Must not know other shards: how they go together
is `stages`.

With U the upstream watermark, which is the same for all shards (the earliest of the producers' outputs):

    input     = max(itself, min(U, pending))      pending: the earliest of all pending work
    output(o) = min(U, pending(o), holds(o))      pending(o): the earliest that may bring something for o

That is what a marker says of an output, unless it is observed (`observing`): of such a one it says nothing, or that its
end has come. What was seen counts from the commit on.

A shard's input watermark never goes back. Its outputs are plain minima, and may: a restriction that comes from another
shard brings an earlier hold. Only their minimum over all shards is said to anybody, and that never goes back. Residuals
are pending for each output on its own: a restriction that has promised more for one output than for another does not
keep the one at the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from arcbeam.engine.rows.keyspace import Kind, moment, prefix, time_of
from arcbeam.engine.watermarks.holds import Hold, Holder, HolderKind, Holds, Side
from arcbeam.engine.watermarks.observed import Seen
from arcbeam.engine.watermarks.outlierfilter import Doubted
from arcbeam.model.interfaces import StateView
from arcbeam.model.observers import NOT_OBSERVED, Ways
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, NOT_BEGUN, Timestamp


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """An output of a stage.

    Attributes:
        stage: the stage's name.
        output: the output's name.
    """

    stage: str
    output: str

    def __str__(self) -> str:
        return f"output {self.output!r} of {self.stage!r}"


@dataclass(frozen=True, slots=True)
class OutputTime:
    """What keeps one output of a stage where it is, in one shard; the earliest of each sort.

    Attributes:
        pending: of the work that may still bring something for it.
        hold: of what holds it.
        quiet: what is said of it has stood for so long that it does not count for those who do not wait for it.
        idle: the parts of shared observers whose input here has stood for so long that it does not count.
    """

    pending: Hold | None = None
    hold: Hold | None = None
    quiet: bool = False
    idle: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Local:
    """What one shard says about the time of one stage when a micro-batch ends.

    Attributes:
        pending: the earliest work that is pending, parked or in progress, for whatever output.
        outputs: by name; every output of the stage is there.
        waits_for: the side input that the earliest parked element waits for.
        seen: the latest time that each observer has seen in the micro-batch, if it has seen one.
        sketches: of the times that those have seen that go by a quantile.
        doubted: later times, which those have seen that do not believe any.
    """

    pending: Hold | None = None
    outputs: Mapping[str, OutputTime] = field(default_factory=dict)
    waits_for: Port | None = None
    seen: Seen = field(default_factory=dict)
    sketches: Mapping[str, bytes] = field(default_factory=dict)
    doubted: Doubted = field(default_factory=dict)


def input_time(upstream: Timestamp, local: Local) -> Timestamp:
    """Up to where a shard has all input of a stage: nothing earlier is on its way to it, or waits in it."""
    return upstream if local.pending is None else min(upstream, local.pending.time)


def output_time(upstream: Timestamp, local: Local, output: str) -> Timestamp:
    """Up to where a shard has put out all of one output."""
    known = local.outputs[output]
    return min([upstream, *(each.time for each in (known.pending, known.hold) if each is not None)])


def told_time(ways: Ways, said: Timestamp) -> Timestamp:
    """What a marker says of an output that is at `said` in its task, and that observers may be on the ways to."""
    observed = ways != NOT_OBSERVED and said != MAX_TIMESTAMP
    return MIN_TIMESTAMP if observed or said == NOT_BEGUN else said


_SCRIPT: Final = Holder(HolderKind.SCRIPT, "")


class Clock:
    """The times of one stage in one shard, durable in its view.

    Args:
        view: of the shard.
        stage: the stage's number.
        outputs: the stage's outputs.
    """

    __slots__ = ("_holds", "_outputs", "_pending", "_row", "_view")

    def __init__(self, view: StateView, stage: int, outputs: tuple[str, ...]) -> None:
        self._view = view
        self._row = prefix(Kind.CLOCK, stage)
        self._outputs = outputs
        self._holds = Holds(view, stage, Side.OUTPUT)
        self._pending = Holds(view, stage, Side.INPUT)

    @property
    def input(self) -> Timestamp:
        """The input watermark, as it was last advanced."""
        stored = self._view.get(self._row)
        return MIN_TIMESTAMP if stored is None else time_of(stored)

    def advance(self, upstream: Timestamp) -> Timestamp:
        """Moves the input watermark as far as the upstream watermark and pending work let it; where it is then."""
        before, now = self.input, self.ahead(upstream)
        if now > before:
            self._view.put(self._row, moment(now))
        return now

    def follow(self, watermark: Timestamp) -> None:
        """A script says: what it adds from now on has this time or a later one, or is late."""
        if watermark < MAX_TIMESTAMP:
            self._pending.set(_SCRIPT, watermark)
        else:
            self._pending.clear(_SCRIPT)

    def ahead(self, upstream: Timestamp) -> Timestamp:
        """Where `advance` would move it now."""
        pending = self._pending.earliest()
        return max(self.input, upstream if pending is None else min(upstream, pending.time))

    def local(
        self,
        waits_for: Port | None = None,
        seen: Seen | None = None,
        sketches: Mapping[str, bytes] | None = None,
        doubted: Doubted | None = None,
    ) -> Local:
        """What the shard says at the end of a micro-batch.

        Args:
            waits_for: the side input that the earliest parked element waits for.
            seen: the latest times that observers have seen in it.
            sketches: of the times that those have seen that go by a quantile.
            doubted: later times, which those have seen that do not believe any.
        """
        return Local(
            self._pending.earliest(),
            {
                output: OutputTime(self._pending.earliest(output), self._holds.earliest(output))
                for output in self._outputs
            },
            waits_for,
            seen or {},
            sketches or {},
            doubted or {},
        )


def shown_time(time: Timestamp) -> str:
    """A time for people."""
    if time <= NOT_BEGUN:
        return "the beginning of time"
    if time >= MAX_TIMESTAMP:
        return "the end of time"
    if time == END_OF_GLOBAL_WINDOW:
        return "the end of the global window"
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{time} µs"
