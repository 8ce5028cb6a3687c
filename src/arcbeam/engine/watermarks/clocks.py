"""What one shard knows about the watermarks of one stage.

Owns the formulas of watermarks, the shard's own input watermark and estimators' reports. Must not know other shards:
how they go together is `stages`.

With U the upstream watermark, which is the same for all shards (the earliest of the producers' outputs):

    input     = max(itself, min(U, pending))                    pending: the earliest of all pending work
    output(o) = min(U, pending(o), holds(o), estimates(o))      pending(o): the earliest that may bring something for o

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

from arcbeam.engine.rows.keyspace import Kind, after, moment, name, parts, prefix, shown, time_of
from arcbeam.engine.watermarks.holds import Hold, Holder, HolderKind, Holds, Side
from arcbeam.model.seams import StateView
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp


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
class Estimate:
    """What an estimator reported last.

    Attributes:
        time: what comes has this time or a later one.
        source: its name.
    """

    time: Timestamp
    source: str


@dataclass(frozen=True, slots=True)
class OutputTime:
    """What keeps one output of a stage where it is, in one shard; the earliest of each sort.

    Attributes:
        pending: of the work that may still bring something for it.
        hold: of what holds it.
        estimate: of what estimators report.
    """

    pending: Hold | None = None
    hold: Hold | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """What one shard says about the time of one stage when a step ends.

    Attributes:
        pending: the earliest work that is pending, parked or in progress, for whatever output.
        outputs: by name; every output of the stage is there.
        waits_for: the side input that the earliest parked element waits for.
    """

    pending: Hold | None = None
    outputs: Mapping[str, OutputTime] = field(default_factory=dict)
    waits_for: Port | None = None


def input_time(upstream: Timestamp, local: Local) -> Timestamp:
    """Up to where a shard has all input of a stage: nothing earlier is on its way to it, or waits in it."""
    return upstream if local.pending is None else min(upstream, local.pending.time)


def output_time(upstream: Timestamp, local: Local, output: str) -> Timestamp:
    """Up to where a shard has put out all of one output: what a marker says."""
    known = local.outputs[output]
    return min([upstream, *(each.time for each in (known.pending, known.hold, known.estimate) if each is not None)])


_SCRIPT: Final = Holder(HolderKind.SCRIPT, "")


class Clock:
    """The times of one stage in one shard, durable in its view.

    Args:
        view: of the shard.
        stage: the stage's number.
        outputs: the stage's outputs.
    """

    __slots__ = ("_estimates", "_holds", "_outputs", "_pending", "_row", "_view")

    def __init__(self, view: StateView, stage: int, outputs: tuple[str, ...]) -> None:
        self._view = view
        self._row = prefix(Kind.CLOCK, stage)
        self._estimates = prefix(Kind.ESTIMATES, stage)
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

    def estimate(self, source: str, output: str, time: Timestamp) -> Timestamp:
        """An estimator reports; what it reported before is not taken back.

        Returns:
            Where it is now.
        """
        row = self._estimates + name(output) + name(source)
        before = self._view.get(row)
        if before is not None and time <= time_of(before):
            return time_of(before)
        self._view.put(row, moment(time))
        return time

    def retire_all(self) -> None:
        """Nothing comes into the stage any more: there is nothing left to estimate."""
        for row, _ in self._view.scan(self._estimates, after(self._estimates)):
            self._view.delete(row)

    def local(self, waits_for: Port | None = None) -> Local:
        """What the shard says at the end of a step.

        Args:
            waits_for: the side input that the earliest parked element waits for.
        """
        return Local(
            self._pending.earliest(),
            {
                output: OutputTime(
                    self._pending.earliest(output), self._holds.earliest(output), self._estimate_of(output)
                )
                for output in self._outputs
            },
            waits_for,
        )

    def _estimate_of(self, output: str) -> Estimate | None:
        start = self._estimates + name(output)
        first: Estimate | None = None
        for row, time in self._view.scan(start, after(start)):
            if first is None or time_of(time) < first.time:
                first = Estimate(time_of(time), shown(parts(row[3:])[1]))
        return first


def shown_time(time: Timestamp) -> str:
    """A time for people."""
    if time <= MIN_TIMESTAMP:
        return "the beginning of time"
    if time >= MAX_TIMESTAMP:
        return "the end of time"
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{time} µs"
