"""Whether what a shard says of an output's time still counts for those who do not wait for what says nothing.

Owns since when it has stood. Must not know what else is known of the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from arcbeam.engine.rows.keyspace import Kind, moment, name, prefix, time_of
from arcbeam.engine.watermarks.clocks import Local, OutputTime, output_time
from arcbeam.engine.watermarks.comparison import due
from arcbeam.engine.watermarks.holds import HolderKind
from arcbeam.engine.watermarks.observed import NOTHING_SEEN, Said, Seen, observed_time
from arcbeam.model.interfaces import StateView
from arcbeam.model.observers import Observer, Ways, along
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, shifted

_SOURCES = (HolderKind.RESIDUAL, HolderKind.SCRIPT)
"""Pending work that says of itself where it is."""


def heard(
    view: StateView,
    stage: int,
    observed: Mapping[str, Ways],
    upstream: Timestamp,
    local: Local,
    now: Timestamp,
    seen: Seen = NOTHING_SEEN,
) -> tuple[Local, Timestamp | None]:
    """What a shard says, with what of it does not count.

    Args:
        view: of the shard; it is noted there since when what is said has stood.
        stage: the stage's number.
        observed: the ways to its outputs.
        upstream: the stage's upstream watermark.
        local: what the shard says.
        now: processing time.
        seen: what was seen, as the head has it.

    Returns:
        That, and when the next thing stops to count, unless it moves.
    """
    outputs = dict(local.outputs)
    ends: list[Timestamp] = []
    for output, after in _patience(observed):
        said = output_time(upstream, local, output)
        end = shifted(_since(view, prefix(Kind.SAID, stage) + name(output), said, now), after)
        if said in (MIN_TIMESTAMP, MAX_TIMESTAMP) or _waits(local.outputs[output], said):
            continue
        if due(now, end):
            outputs[output] = replace(outputs[output], quiet=True)
        else:
            ends.append(end)
    for output, observer in _sharing(observed):
        assert observer.idle_after is not None
        root = output_time(upstream, local, output)
        said = observed_time(observer.behind, Said(root, root), seen)
        row = prefix(Kind.SAID, stage) + name(output) + name(observer.part)
        end = shifted(_since(view, row, said, now), observer.idle_after)
        # One that has not said anything yet holds others back, too.
        if said == MAX_TIMESTAMP or (said == root and _waits(local.outputs[output], said)):
            continue
        if due(now, end):
            known = outputs[output]
            outputs[output] = replace(known, idle=known.idle | {observer.part})
        else:
            ends.append(end)
    return replace(local, outputs=outputs), min(ends, default=None)


def _since(view: StateView, row: bytes, said: Timestamp, now: Timestamp) -> Timestamp:
    """Since when something has been said; it is noted."""
    before = view.get(row)
    if before is not None and time_of(before[:8]) == said:
        return time_of(before[8:])
    view.put(row, moment(said) + moment(now))
    return now


def _waits(known: OutputTime, said: Timestamp) -> bool:
    """Whether timers, parked elements and the like are what holds: they will bring that, and are not silent."""
    held = known.hold is not None and known.hold.time == said
    return held or (known.pending is not None and known.pending.time == said and known.pending.kind not in _SOURCES)


def _sharing(observed: Mapping[str, Ways]) -> Iterator[tuple[str, Observer]]:
    """Of each output the observers that share what they see, and do not wait for all for ever."""
    for output, ways in observed.items():
        for observer in dict.fromkeys(along(ways)):
            if observer.shared is not None and observer.idle_after is not None:
                yield output, observer


def _patience(observed: Mapping[str, Ways]) -> Iterator[tuple[str, Duration]]:
    """Of each output for which somebody does not wait for ever, how long."""
    for output, ways in observed.items():
        spans = [of.idle_after for of in along(ways) if of.idle_after is not None and of.shared is None]
        if spans:
            yield output, min(spans)
