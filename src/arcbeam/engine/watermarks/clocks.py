"""The watermarks of one stage, as one shard knows them.

Owns the formulas of watermarks, and the shard's own input watermark. Must not know other shards: `stages` combines
shards.

U is the upstream watermark, which is the same for all shards: the minimum of the producers' outputs.

    input     = max(itself, min(U, pending))      pending: the earliest of all pending work
    output(o) = min(U, pending(o), holds(o))      pending(o): the earliest work that may output something to o

A marker contains the output's watermark, unless the output is observed (`observed`). For an observed output, the marker
only reports whether its end has come. Observed times count from the commit on.

A shard's input watermark never decreases. It is stored only while work is pending: else it is the upstream watermark of
the head, which never decreases either. So an idle shard writes nothing when the watermark moves.

A shard's outputs are plain minima and may decrease: a restriction that arrives from another shard brings an earlier
hold. Only the minimum over all shards is reported, and that never decreases. Residuals are pending for each output
separately: a restriction may have promised a later time for one output than for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from arcbeam.engine.rows.keyspace import RowKind, moment, prefix, time_of
from arcbeam.engine.watermarks.holds import Hold, Holder, HolderKind, Holds, Side
from arcbeam.engine.watermarks.observed import Seen
from arcbeam.engine.watermarks.outlierfilter import UnconfirmedTimes
from arcbeam.model.interfaces import StateView
from arcbeam.model.observers import NOT_OBSERVED, ObserverPaths
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, NOT_BEGUN, Timestamp
from arcbeam.pickling import QuickPickle


@dataclass(frozen=True, slots=True, order=True)
class Port(QuickPickle):
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
class OutputTime(QuickPickle):
    """What holds one output of a stage in one shard; the earliest of each sort.

    Attributes:
        pending: the work that may still output something to it.
        hold: the hold on it.
        quiet: its watermark has not moved for as long as `idle_after` of an observer.
        idle: the parts of shared observers whose input here has not moved for so long that it is ignored.
    """

    pending: Hold | None = None
    hold: Hold | None = None
    quiet: bool = False
    idle: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Local(QuickPickle):
    """The times of one stage in one shard at the end of a micro-batch.

    Attributes:
        pending: the earliest work that is pending, blocked or running, for any output.
        outputs: by name; every output of the stage is included.
        waits_for: the side input that the earliest blocked element waits for.
        seen: the latest time that each observer has seen in the micro-batch, if any.
        sketches: sketches of the times, for observers with a quantile.
        unconfirmed: later times that observers with an outlier filter have seen and not accepted.
    """

    pending: Hold | None = None
    outputs: Mapping[str, OutputTime] = field(default_factory=dict)
    waits_for: Port | None = None
    seen: Seen = field(default_factory=dict)
    sketches: Mapping[str, bytes] = field(default_factory=dict)
    unconfirmed: UnconfirmedTimes = field(default_factory=dict)


def input_time(upstream: Timestamp, local: Local) -> Timestamp:
    """Return up to which time a shard has all input of a stage: nothing earlier is in transit or waits in the shard."""
    return upstream if local.pending is None else min(upstream, local.pending.time)


def output_time(upstream: Timestamp, local: Local, output: str) -> Timestamp:
    """Return up to which time a shard has output everything to one output."""
    known, time = local.outputs[output], upstream
    for each in (known.pending, known.hold):
        if each is not None and each.time < time:
            time = each.time
    return time


def marker_time(paths: ObserverPaths, time: Timestamp) -> Timestamp:
    """Return the time in a marker for an output at `time` in its task, which observers may be upstream of."""
    observed = paths != NOT_OBSERVED and time != MAX_TIMESTAMP
    return MIN_TIMESTAMP if observed or time == NOT_BEGUN else time


SCRIPT_SHARD: Final = 0
"""The shard in which all elements of a script arrive, so that they stay in order."""
_SCRIPT: Final = Holder(HolderKind.SCRIPT, "")


class Clock:
    """The times of one stage in one shard, in one micro-batch.

    Observed outputs have moved after the previous micro-batch, and the head's upstream watermark with them. Elements
    are late by that value, whether or not a micro-batch without data ran in between.

    Args:
        view: the view of the shard.
        stage: the stage's number.
        outputs: the stage's outputs.
        head: the stage's upstream watermark at the head.

    Attributes:
        input: the input watermark, as last advanced.
    """

    __slots__ = ("_holds", "_outputs", "_pending", "_row", "_stored", "_view", "input")

    def __init__(self, view: StateView, stage: int, outputs: tuple[str, ...], head: Timestamp = MIN_TIMESTAMP) -> None:
        self._view = view
        self._row = prefix(RowKind.CLOCK, stage)
        self._outputs = outputs
        self._holds = Holds(view, stage, Side.OUTPUT)
        self._pending = Holds(view, stage, Side.INPUT)
        self._stored = view.get(self._row)
        self.input = MIN_TIMESTAMP if self._stored is None else time_of(self._stored)
        self.input = self.ahead(head)

    def advance(self, upstream: Timestamp) -> Timestamp:
        """Move the input watermark as far as the upstream watermark and pending work allow; store and return it."""
        self.input = self.ahead(upstream)
        # SUBTLE: what is pending may be earlier than the watermark: a late element that is blocked. Without the row,
        # the watermark would be that early in the next micro-batch.
        kept = None if self._pending.earliest() is None or self.input == MIN_TIMESTAMP else moment(self.input)
        if kept != self._stored:
            if kept is None:
                self._view.delete(self._row)
            else:
                self._view.put(self._row, kept)
            self._stored = kept
        return self.input

    def follow(self, watermark: Timestamp) -> None:
        """Set a script's watermark: elements that the script adds later have this time or a later one, or are late."""
        if watermark < MAX_TIMESTAMP:
            self._pending.set(_SCRIPT, watermark)
        else:
            self._pending.clear(_SCRIPT)

    def ahead(self, upstream: Timestamp) -> Timestamp:
        """Return where `advance` would move the input watermark now."""
        pending = self._pending.earliest()
        return max(self.input, upstream if pending is None else min(upstream, pending.time))

    def local(
        self,
        waits_for: Port | None = None,
        seen: Seen | None = None,
        sketches: Mapping[str, bytes] | None = None,
        unconfirmed: UnconfirmedTimes | None = None,
    ) -> Local:
        """Return the shard's times at the end of a micro-batch.

        Args:
            waits_for: the side input that the earliest blocked element waits for.
            seen: the latest times that observers have seen in it.
            sketches: sketches of the times, for observers with a quantile.
            unconfirmed: later times that observers with an outlier filter have seen and not accepted.
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
            unconfirmed or {},
        )


def shown_time(time: Timestamp) -> str:
    """Return a time as text for people."""
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
