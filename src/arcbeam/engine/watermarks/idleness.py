"""Idle outputs: those whose watermark has not moved for as long as `idle_after` of an observer.

Owns since when a watermark has not moved. Must not know other facts about the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from arcbeam.engine.rows.keyspace import RowKind, moment, name, prefix, time_of
from arcbeam.engine.watermarks.clocks import Local, OutputTime, output_time
from arcbeam.engine.watermarks.comparison import due
from arcbeam.engine.watermarks.holds import HolderKind
from arcbeam.engine.watermarks.observed import NOTHING_SEEN, RootWatermark, Seen, observed_time
from arcbeam.model.interfaces import StateView
from arcbeam.model.observers import Observer, ObserverPaths, all_observers
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, shifted

_SOURCES = (HolderKind.RESIDUAL, HolderKind.SCRIPT)
"""Pending work that reports its own watermark."""


def mark_idle(
    view: StateView,
    stage: int,
    observed: Mapping[str, ObserverPaths],
    upstream: Timestamp,
    local: Local,
    now: Timestamp,
    seen: Seen = NOTHING_SEEN,
) -> tuple[Local, Timestamp | None]:
    """Mark the idle outputs in a shard's times.

    Args:
        view: the view of the shard; it stores since when each watermark has not moved.
        stage: the stage's number.
        observed: the paths to its outputs.
        upstream: the stage's upstream watermark.
        local: the shard's times.
        now: processing time.
        seen: the times that observers have seen, as of the head.

    Returns:
        The marked times, and when the next output becomes idle unless its watermark moves.
    """
    outputs = dict(local.outputs)
    ends: list[Timestamp] = []
    for output, after in _patience(observed):
        watermark = output_time(upstream, local, output)
        end = shifted(_since(view, prefix(RowKind.OUTPUT, stage) + name(output), watermark, now), after)
        if watermark in (MIN_TIMESTAMP, MAX_TIMESTAMP) or _waits(local.outputs[output], watermark):
            continue
        if due(now, end):
            outputs[output] = replace(outputs[output], quiet=True)
        else:
            ends.append(end)
    for output, observer in _sharing(observed):
        assert observer.idle_after is not None
        root = output_time(upstream, local, output)
        watermark = observed_time(observer.upstream, RootWatermark(root, root), seen)
        row = prefix(RowKind.OUTPUT, stage) + name(output) + name(observer.part)
        end = shifted(_since(view, row, watermark, now), observer.idle_after)
        # A watermark that is still at the beginning limits others, too.
        if watermark == MAX_TIMESTAMP or (watermark == root and _waits(local.outputs[output], watermark)):
            continue
        if due(now, end):
            known = outputs[output]
            outputs[output] = replace(known, idle=known.idle | {observer.part})
        else:
            ends.append(end)
    return replace(local, outputs=outputs), min(ends, default=None)


def _since(view: StateView, row: bytes, watermark: Timestamp, now: Timestamp) -> Timestamp:
    """Return since when a watermark has its value; store it."""
    before = view.get(row)
    if before is not None and time_of(before[:8]) == watermark:
        return time_of(before[8:])
    view.put(row, moment(watermark) + moment(now))
    return now


def _waits(known: OutputTime, watermark: Timestamp) -> bool:
    """Return whether timers, blocked elements and the like limit it: these produce output later, so it is not idle."""
    held = known.hold is not None and known.hold.time == watermark
    return held or (
        known.pending is not None and known.pending.time == watermark and known.pending.kind not in _SOURCES
    )


def _sharing(observed: Mapping[str, ObserverPaths]) -> Iterator[tuple[str, Observer]]:
    """Yield, for each output, the observers that share what they see and ignore idle inputs."""
    for output, paths in observed.items():
        for observer in dict.fromkeys(all_observers(paths)):
            if observer.shared is not None and observer.idle_after is not None:
                yield output, observer


def _patience(observed: Mapping[str, ObserverPaths]) -> Iterator[tuple[str, Duration]]:
    """Yield each output that has observers with `idle_after`, and the least of these durations."""
    for output, paths in observed.items():
        spans = [of.idle_after for of in all_observers(paths) if of.idle_after is not None and of.shared is None]
        if spans:
            yield output, min(spans)
