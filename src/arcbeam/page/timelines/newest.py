"""The newest points of charts: a driver writes figures over time once a minute, and the page reads statuses meanwhile.

Owns how both become one history. A status becomes a point as in a driver (`arcbeam.streaming.status.history`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from arcbeam.page.sources import HISTORIES
from arcbeam.streaming.status.history import (
    JOB_COUNTERS,
    JOB_GAUGES,
    RINGS,
    History,
    Ring,
    counted,
    in_all,
    job_record,
    sample_of,
    totals_of,
)
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.status import Status

_POINTS: Final = 150
_LOOK_SECONDS: Final = 5.0
"""After a longer time without a look, it is unknown what happened between: earlier points are dropped."""


@dataclass(slots=True)
class _Seen:
    """What the page has seen of a job without interruption.

    Attributes:
        began: since when.
        time: the time of the newest status.
        micro_batch: the number of its micro-batch.
        totals: counters of its stages.
        history: its points.
    """

    began: int
    time: int
    micro_batch: int
    totals: Mapping[str, Sequence[float]]
    history: History


class Newest:
    """The newest points of jobs that are looked at. Callable from several threads."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Seen] = OrderedDict()
        self._lock = threading.Lock()

    def merged(self, id: str, status: Status, history: Record) -> Record:
        """Return a job's figures over time up to a status, which becomes their newest point.

        Args:
            id: of the job.
            status: of the job.
            history: as its source has it.

        Returns:
            The record of a history. A point has `follows` if the driver ran since the point before it, whose time may
            be long ago.
        """
        with self._lock:
            known = self._jobs.get(id)
            if known is None or known.micro_batch != status.micro_batch:
                if not status.has_begun:
                    return history
                known = self._after(known, status, status.committed)
            seen = self._jobs[id] = known
            self._jobs.move_to_end(id)
            while len(self._jobs) > HISTORIES:
                self._jobs.popitem(last=False)
            newest = job_record(seen.history.stored())
        rings = {ring["width"]: ring["points"] for ring in history["rings"]}
        finest = rings.get(RINGS[0][0], ())
        written = finest[-1]["time"] + RINGS[0][0] if finest else 0
        if seen.time <= written:
            return history
        # The driver has not written yet what it did until the page looked.
        is_same = status.driver is not None and status.driver.since < written
        merged = []
        for ring in newest["rings"]:
            width, before = ring["width"], rings.get(ring["width"], ())
            points = list(_joined(before, ring["points"], seen))
            if is_same and len(points) > len(before):
                points[len(before)]["follows"] = True
            merged.append({"width": width, "points": points})
        return {**history, "rings": merged}

    def _after(self, seen: _Seen | None, status: Status, time: int) -> _Seen:
        """Return what is seen of a job after a further micro-batch."""
        totals = totals_of(status)
        if seen is None or not 0 < time - seen.time <= _LOOK_SECONDS * 1e6:
            # Only of its newest micro-batch it is known what happened.
            before = {
                of.stage: [new - gained for new, gained in zip(counted(of.total), counted(of.micro_batch), strict=True)]
                for of in status.stages
            }
            rings = tuple(Ring(width, _POINTS) for width, _ in RINGS)
            seen = _Seen(time - max(status.elapsed or 0, RINGS[0][0]), time, status.micro_batch, before, History(rings))
        # Micro-batches that no look has seen are taken to be as long as the one after them.
        count = float(max(1, status.micro_batch - seen.micro_batch))
        parts = {name: count * float(status.seconds.get(name, 0.0)) for name in JOB_COUNTERS} | {"micro_batches": count}
        seen.history.add(in_all(sample_of(status, time, seen.totals, parts)))
        seen.time, seen.micro_batch, seen.totals = time, status.micro_batch, totals
        return seen


def _joined(stored: Sequence[Record], newest: Sequence[Record], seen: _Seen) -> Iterator[dict[str, Any]]:
    """Yield the points of a resolution: those of the driver, then those of the page."""
    last = stored[-1]["time"] if stored else -1
    fresh = [dict(point) for point in newest if point["time"] >= last]
    yield from map(dict, stored[:-1])
    if stored:
        whole = dict(stored[-1])
        # Both may have a part of the time of a point.
        if fresh and fresh[0]["time"] == last:
            began = fresh.pop(0)
            whole = began if seen.began <= last else _both(whole, began)
        yield whole
    yield from fresh


def _both(stored: dict[str, Any], newest: Record) -> dict[str, Any]:
    """Return a point with the gauges of two. Some micro-batches may be in both, so only those of the driver count."""
    gauges = {
        name: [_extreme(min, old[0], new[0]), _extreme(max, old[1], new[1]), old[2] if new[2] is None else new[2]]
        for name in JOB_GAUGES
        if isinstance(old := stored["job"].get(name), list) and isinstance(new := newest["job"].get(name), list)
    }
    return {**stored, "job": {**stored["job"], **gauges, "held": newest["job"].get("held")}}


def _extreme(choose: Callable[..., float], *values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None
