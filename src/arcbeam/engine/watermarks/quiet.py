"""Whether what a shard says of an output's time still counts for those who do not wait for what says nothing.

Owns since when it has stood. Must not know what else is known of the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from arcbeam.engine.rows.keyspace import Kind, moment, name, prefix, time_of
from arcbeam.engine.watermarks.clocks import Local, output_time
from arcbeam.engine.watermarks.holds import HolderKind
from arcbeam.engine.watermarks.moments import due
from arcbeam.model.observers import Ways, along
from arcbeam.model.seams import StateView
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, shifted

_SOURCES = (HolderKind.RESIDUAL, HolderKind.SCRIPT)
"""Pending work that says of itself where it is."""


def heard(
    view: StateView, stage: int, observed: Mapping[str, Ways], upstream: Timestamp, local: Local, now: Timestamp
) -> tuple[Local, Timestamp | None]:
    """What a shard says, with what of it does not count.

    Args:
        view: of the shard; it is noted there since when what is said has stood.
        stage: the stage's number.
        observed: the ways to its outputs.
        upstream: the stage's upstream watermark.
        local: what the shard says.
        now: processing time.

    Returns:
        That, and when the next thing stops to count, unless it moves.
    """
    outputs = dict(local.outputs)
    next_due: Timestamp | None = None
    for output, after in _patience(observed):
        known = local.outputs[output]
        said = output_time(upstream, local, output)
        row = prefix(Kind.SAID, stage) + name(output)
        before = view.get(row)
        since = now
        if before is not None and time_of(before[:8]) == said:
            since = time_of(before[8:])
        else:
            view.put(row, moment(said) + moment(now))
        # Timers, parked elements and the like will bring what they hold for: they are not silent.
        waits = known.hold is not None and known.hold.time == said
        waits |= known.pending is not None and known.pending.time == said and known.pending.kind not in _SOURCES
        if waits or said in (MIN_TIMESTAMP, MAX_TIMESTAMP):
            continue
        end = shifted(since, after)
        if due(now, end):
            outputs[output] = replace(known, quiet=True)
        elif next_due is None or end < next_due:
            next_due = end
    return replace(local, outputs=outputs), next_due


def _patience(observed: Mapping[str, Ways]) -> Iterator[tuple[str, Duration]]:
    """Of each output for which somebody does not wait for ever, how long."""
    for output, ways in observed.items():
        spans = [observer.idle_after for observer in along(ways) if observer.idle_after is not None]
        if spans:
            yield output, min(spans)
