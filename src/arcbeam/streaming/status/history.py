"""A job's figures over time, in three resolutions of bounded size.

Owns the figures, the rings and their downsampling: of a gauge the least, greatest and last value of a point's time are
kept, of a counter the sum. Closed points are compressed at once, so a file of them is made without work. Must not know
when it is written.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, isnan, nan
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from arcbeam.engine.protocol.reports import NO_COUNTS, Counts
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from arcbeam.sizes import threshold
from arcbeam.store.log.historyfile import Chunk, HistoryEvent, StoredHistory
from arcbeam.streaming.status.status import PARTS, Status, at_moment
from arcbeam.streaming.status.words import COUNTERS

RINGS: Final = ((1_000_000, 600), (10_000_000, 720), (300_000_000, 2016))
"""Microseconds of a point, and the number of points, of each resolution."""
_IN_CHUNK: Final = threshold(60, 3)
_EVENTS: Final = 500
_TEXT: Final = 300

JOB_GAUGES: Final = (
    *("watermark", "behind", "backlog", "restrictions", "state_bytes", "rate", "read_rate", "micro_batch", "held"),
)
JOB_COUNTERS: Final = ("micro_batches", *PARTS)
STAGE_GAUGES: Final = ("input", "output", "backlog", "restrictions", "state_bytes", "held")
STAGE_COUNTERS: Final = ("read", "written", *COUNTERS)
_COUNTED: Final = attrgetter(*STAGE_COUNTERS)
_TIMES: Final = frozenset({"watermark", "input", "output"})

Floats = NDArray[np.float64]


def _columns(gauges: Sequence[str], counters: Sequence[str]) -> tuple[str, ...]:
    kinds = ("min", "max", "last")
    return (*(f"{name}.{kind}" for kind in kinds for name in gauges), *(f"{name}.sum" for name in counters))


_JOB: Final = _columns(JOB_GAUGES, JOB_COUNTERS)
_STAGE: Final = _columns(STAGE_GAUGES, STAGE_COUNTERS)


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of a moment.

    Attributes:
        time: microseconds since 1970.
        stages: the names of the stages.
        job: the job's gauges, then what its counters have gained since the previous sample; NaN: unknown.
        figures: the same for each stage, in a row.
        texts: the texts to which `held` refers: what holds the watermark, as kind, stage and name.
    """

    time: int
    stages: tuple[str, ...]
    job: Floats
    figures: Floats
    texts: tuple[str, ...] = ()


class Ring:
    """The newest points of one resolution.

    Args:
        width: microseconds of a point.
        size: the number of points that are certainly kept; older ones are dropped by chunks.
        chunks: earlier points.
    """

    def __init__(self, width: int, size: int, chunks: Sequence[Chunk] = ()) -> None:
        self._width, self._size = width, size
        self._chunks = deque(chunks)
        self._points = sum(chunk.points for chunk in chunks)
        self._rows: list[tuple[int, Floats, Floats]] = []
        self._stages: tuple[str, ...] = ()
        self._texts: dict[str, int] = {}
        self._drop()

    def add(self, sample: Sample) -> None:
        """Add a sample. One that is older than the newest point, as after a step of the clock, counts to that point."""
        start = sample.time - sample.time % self._width
        if self._rows and (sample.stages != self._stages or len(self._texts) > 10 * _IN_CHUNK):
            self._seal()
        self._stages = sample.stages
        job = self._renumbered(sample, sample.job, JOB_GAUGES)
        figures = self._renumbered(sample, sample.figures, STAGE_GAUGES)
        if self._rows and start <= self._rows[-1][0]:
            _merge(self._rows[-1][1], job, len(JOB_GAUGES))
            _merge(self._rows[-1][2], figures, len(STAGE_GAUGES))
            return
        if len(self._rows) >= _IN_CHUNK:
            self._seal()
            job = self._renumbered(sample, sample.job, JOB_GAUGES)
            figures = self._renumbered(sample, sample.figures, STAGE_GAUGES)
        self._rows.append((start, _spread(job, len(JOB_GAUGES)), _spread(figures, len(STAGE_GAUGES))))

    def chunks(self) -> tuple[Chunk, ...]:
        """Return all points."""
        return (*self._chunks, *([self._chunk()] if self._rows else []))

    def _renumbered(self, sample: Sample, values: Floats, gauges: Sequence[str]) -> Floats:
        """Return figures whose `held` refers to the texts of the open chunk."""
        found, at = values.copy(), gauges.index("held")
        for number, text in enumerate(sample.texts):
            known = self._texts.setdefault(text, len(self._texts))
            found[..., at][values[..., at] == number] = known
        return found

    def _chunk(self) -> Chunk:
        arrays = (
            np.array([start for start, _, _ in self._rows], dtype="<f8"),
            np.array([job for _, job, _ in self._rows], dtype="<f8"),
            np.array([figures for _, _, figures in self._rows], dtype="<f8"),
        )
        # SUBTLE: by columns, not by points: a figure changes less over time than from one figure to the next.
        data = b"".join(np.moveaxis(array, 0, -1).tobytes() for array in arrays)
        packed = zlib.compress(data, 1)
        return Chunk(len(self._rows), _JOB, _STAGE, self._stages, tuple(self._texts), packed)

    def _seal(self) -> None:
        self._chunks.append(self._chunk())
        self._points += len(self._rows)
        self._rows, self._texts = [], {}
        self._drop()

    def _drop(self) -> None:
        while self._chunks and self._points - self._chunks[0].points >= self._size:
            self._points -= self._chunks.popleft().points


def _spread(values: Floats, gauges: int) -> Floats:
    """Return the figures of a point with one sample."""
    of = values[..., :gauges]
    return np.concatenate((of, of, of, values[..., gauges:]), axis=-1)


def _merge(point: Floats, values: Floats, gauges: int) -> None:
    """Add a sample to a point. An unknown value changes nothing."""
    of = values[..., :gauges]
    least, most, last = (point[..., at * gauges : (at + 1) * gauges] for at in range(3))
    np.fmin(least, of, out=least)
    np.fmax(most, of, out=most)
    np.copyto(last, of, where=~np.isnan(of))
    sums = point[..., 3 * gauges :]
    sums += np.nan_to_num(values[..., gauges:])


@dataclass
class History:
    """The figures of a job over time.

    Attributes:
        rings: one for each resolution.
        events: the newest events.
    """

    rings: tuple[Ring, ...]
    events: deque[HistoryEvent] = field(default_factory=lambda: deque(maxlen=_EVENTS))

    @classmethod
    def after(cls, stored: StoredHistory) -> History:
        """Return a history that continues a stored one. Resolutions that this version does not keep are dropped."""
        known = dict(stored.rings)
        rings = tuple(Ring(width, size, known.get(width, ())) for width, size in RINGS)
        return cls(rings, deque(stored.events, maxlen=_EVENTS))

    def add(self, sample: Sample) -> None:
        """Add a sample to all resolutions."""
        for ring in self.rings:
            ring.add(sample)

    def event(self, time: int, kind: str, text: str) -> None:
        """Add an event."""
        self.events.append(HistoryEvent(time, kind, text[:_TEXT]))

    def stored(self) -> StoredHistory:
        """Return the content of a file."""
        rings = tuple((width, ring.chunks()) for (width, _), ring in zip(RINGS, self.rings, strict=True))
        return StoredHistory(rings, tuple(self.events))


def counted(counts: Counts | None) -> tuple[float, ...]:
    """Return the counters of `STAGE_COUNTERS`; what was not counted is 0."""
    return tuple(map(float, _COUNTED(counts or NO_COUNTS)))


def totals_of(status: Status) -> dict[str, tuple[float, ...]]:
    """Return each stage's counters since the job began."""
    return {of.stage: counted(of.total) for of in status.stages}


def sample_of(status: Status, time: int, before: Mapping[str, Sequence[float]], parts: Mapping[str, float]) -> Sample:
    """Return the figures of a status.

    Args:
        status: the job's status.
        time: when it was committed.
        before: the counters at the sample before, by stage.
        parts: the job's counters since then.
    """
    causes: dict[str, int] = {}
    held: dict[str, int] = {}
    first = nan
    for cause in status.causes:
        text = " ".join(filter(None, (cause.kind, cause.stage, cause.name)))[:_TEXT]
        number = causes.setdefault(text, len(causes))
        if cause.decides and isnan(first):
            first = number
        for stage in cause.stages:
            held.setdefault(stage, number)
    status = at_moment(status, time)
    behind = nan if status.behind is None else float(status.behind)
    rate = nan if status.rate is None else status.rate
    read_rate = nan if status.rate is None else sum(of.read_rate or 0.0 for of in status.stages)
    state = float(sum(status.state_bytes.values()))
    job = [_time(status.watermark), behind, status.backlog, status.restrictions, state, rate, read_rate]
    job += [status.micro_batch, first]
    job += [parts.get(name, 0.0) for name in JOB_COUNTERS]
    now, rows = totals_of(status), []
    for of in status.stages:
        output = min((out.watermark for out in of.outputs), default=of.input)
        gauges = [_time(of.input), _time(output), of.backlog, of.restrictions, of.state_bytes, held.get(of.stage, nan)]
        was = before.get(of.stage, (0.0,) * len(STAGE_COUNTERS))
        rows.append(gauges + [max(0.0, new - old) for new, old in zip(now[of.stage], was, strict=True)])
    width = len(STAGE_GAUGES) + len(STAGE_COUNTERS)
    figures = np.array(rows, dtype="<f8").reshape(len(rows), width)
    return Sample(time, tuple(of.stage for of in status.stages), np.array(job, dtype="<f8"), figures, tuple(causes))


def in_all(sample: Sample) -> Sample:
    """Return a sample with the counters of all stages together, as one stage without a name; see `job_record`."""
    row = np.full(len(STAGE_GAUGES) + len(STAGE_COUNTERS), nan)
    row[len(STAGE_GAUGES) :] = np.nansum(sample.figures[:, len(STAGE_GAUGES) :], axis=0)
    return Sample(sample.time, ("",), sample.job, row[np.newaxis], sample.texts)


def _time(time: int) -> float:
    return -inf if time <= MIN_TIMESTAMP else inf if time >= MAX_TIMESTAMP else float(time)


def history_record(stored: StoredHistory) -> dict[str, Any]:
    """Return a history as JSON values: `rings`, the finest first, and `events`. Times are microseconds since 1970.

    A ring has its `width` and its `points`, oldest first: `time` (of its beginning), `job` and `stages` (by name). A
    gauge is [least, greatest, last], a counter a number, `held` a text; None: unknown.
    """
    return _record(stored, points_of)


def job_record(stored: StoredHistory) -> dict[str, Any]:
    """Return a history as `history_record` does, but of all stages together: `stages` has only "", with their counters.

    Of hundreds of stages the whole record has millions of values.
    """
    return _record(stored, _totals_of)


def _record(stored: StoredHistory, points: Callable[[Chunk], Iterator[dict[str, Any]]]) -> dict[str, Any]:
    rings = [
        {"width": width, "points": [point for chunk in chunks for point in points(chunk)]}
        for width, chunks in stored.rings
    ]
    return {"rings": rings, "events": [asdict(event) for event in stored.events]}


def _totals_of(chunk: Chunk) -> Iterator[dict[str, Any]]:
    starts, job, figures = _columns_of(chunk)
    counters = [at for at, name in enumerate(chunk.stage_columns) if name.endswith(".sum")]
    names = [chunk.stage_columns[at].removesuffix(".sum") for at in counters]
    sums = np.nansum(figures[:, counters, :], axis=0)
    for at in range(chunk.points):
        totals = dict(zip(names, sums[:, at].tolist(), strict=True))
        yield {
            "time": int(starts[at]),
            "job": _shown(chunk.job_columns, job[:, at].tolist(), chunk.texts),
            "stages": {"": totals},
        }


def points_of(chunk: Chunk) -> Iterator[dict[str, Any]]:
    """Yield the points of a chunk as JSON values; see `history_record`."""
    starts, job, figures = _columns_of(chunk)
    for at in range(chunk.points):
        yield {
            "time": int(starts[at]),
            "job": _shown(chunk.job_columns, job[:, at].tolist(), chunk.texts),
            "stages": {
                name: _shown(chunk.stage_columns, figures[of, :, at].tolist(), chunk.texts)
                for of, name in enumerate(chunk.stages)
            },
        }


def _columns_of(chunk: Chunk) -> tuple[Floats, Floats, Floats]:
    """Return the times; the job's figures, by column and point; the stages', by stage, column and point."""
    values = np.frombuffer(zlib.decompress(chunk.data), dtype="<f8")
    count, jobs, stages = chunk.points, len(chunk.job_columns), len(chunk.stages)
    starts, job, figures = np.split(values, (count, count + count * jobs))
    return starts, job.reshape(jobs, count), figures.reshape(stages, len(chunk.stage_columns), count)


def _shown(columns: Sequence[str], values: Sequence[float], texts: Sequence[str]) -> dict[str, Any]:
    known = dict(zip(columns, values, strict=True))
    found: dict[str, Any] = {}
    for column, value in known.items():
        name, _, kind = column.rpartition(".")
        if kind == "sum":
            found[name] = value
        elif kind == "last":
            if name == "held":
                found[name] = None if isnan(value) else texts[int(value)]
            else:
                found[name] = [_figure(name, known[f"{name}.{of}"]) for of in ("min", "max", "last")]
    return found


def _figure(name: str, value: float) -> float | int | None:
    if isnan(value):
        return None
    if name in _TIMES:
        return int(min(max(value, MIN_TIMESTAMP), MAX_TIMESTAMP))
    return value
