"""The part of a simulated pipeline that the SDK can express: the same pipeline without the rest.

Owns what is left out or changed, and the scale of time. Must not know how a pipeline is built.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP
from simulator.scenario.kinds import Buffer, Event, Expand, Group, Join, Keep, Kind, Pace, Pass, Source
from simulator.scenario.plans import Pipeline
from simulator.scenario.windowings import CALENDAR, Windowing

MILLISECOND = 1000
"""The unit of lateness: simulated microseconds become milliseconds."""
_LONG = 10**9
"""Sources whose events are farther apart need no stretching."""
_CHECKPOINTS = 3
"""Maximum positions of a restriction that makes more: each takes a micro-batch, which takes as long as one does."""
_PAUSE = 30_000
"""Longest pause, in microseconds."""


@dataclass(frozen=True)
class Expressed:
    """A pipeline that can be built.

    Attributes:
        pipeline: the stages.
        left_out: how often each feature was left out or changed.
    """

    pipeline: Pipeline
    left_out: Counter[str]


def expressed(pipeline: Pipeline) -> Expressed:
    """Return a pipeline as the SDK can express it."""
    left_out: Counter[str] = Counter()
    scale = 1 if _is_long(pipeline) else MILLISECOND
    stages = tuple(
        replace(stage, kind=_shorter(_scaled(_reported(stage.kind, left_out), scale))) for stage in pipeline.stages
    )
    return Expressed(Pipeline(stages, pipeline.shards), left_out)


def _is_long(pipeline: Pipeline) -> bool:
    """Return whether events of a source are hours and days apart."""
    sources = [stage.kind for stage in pipeline.stages if isinstance(stage.kind, Source)]
    times = [[event.time for event in source.events] for source in sources]
    return any(max(of) - min(of) > _LONG for of in times)


def _reported(kind: Kind, left_out: Counter[str]) -> Kind:
    match kind:
        case Buffer():
            left_out["a buffer until the job prepares to shut down"] += 1
            return Pass()
        case Group(closes=True, quiet=False):
            # What the SDK writes by default: see `harness.bundle.strategies.empty_panes`.
            left_out["empty panes both on time and at the close of a window"] += 1
            return replace(kind, quiet=True)
    return kind


def _scaled(kind: Kind, scale: int) -> Kind:
    """Return the same with all event times and durations multiplied by the scale."""
    if scale == 1:
        return kind
    match kind:
        case Source():
            return replace(kind, events=tuple(replace(event, time=_stretched(event, scale)) for event in kind.events))
        case Group():
            return replace(kind, windowing=_wider(kind.windowing, scale), lateness=kind.lateness * scale)
        case Keep():
            lateness, delay = kind.lateness * scale, kind.delay * scale
            return replace(kind, windowing=_wider(kind.windowing, scale), lateness=lateness, delay=delay)
        case Expand() | Join():
            return replace(kind, windowing=_wider(kind.windowing, scale))
        case Pass(delay) if delay is not None:
            return replace(kind, delay=delay * scale, jump=None if kind.jump is None else kind.jump * scale)
    return kind


def _stretched(event: Event, scale: int) -> int:
    """Move an event away from the end of time if that is near."""
    for end in (MIN_TIMESTAMP, END_OF_GLOBAL_WINDOW):
        if abs(event.time - end) < _LONG:
            return int(end + (event.time - end) * scale)
    return event.time * scale


def _wider(windowing: Windowing, scale: int) -> Windowing:
    return windowing if windowing.name in CALENDAR else replace(windowing, size=windowing.size * scale)


def _shorter(kind: Kind) -> Kind:
    """Return the same in fewer micro-batches."""
    match kind:
        case Source(events, pace, parts):
            return replace(kind, pace=_quicker(pace, math.ceil(len(events) / parts)))
        case Expand(copies, pace):
            return replace(kind, pace=_quicker(pace, copies))
        case Keep():
            return replace(kind, pause=min(kind.pause, _PAUSE))
    return kind


def _quicker(pace: Pace, positions: int) -> Pace:
    piece = max(pace.piece, math.ceil(positions / _CHECKPOINTS))
    return replace(pace, piece=piece, pause=min(pace.pause, _PAUSE), polls=min(pace.polls, 1))
