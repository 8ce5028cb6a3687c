"""Compute the output watermarks of observing stages from the timestamps of their outputs.

Owns the timestamps seen. Must not know how the engine keeps them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, floor, ulp
from typing import NamedTuple

from arcbeam.model.observers import CONFIRMED_BY, UNCONFIRMED_MAX, Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.manifest.values import Manifest
from simulator.judging.firing import MicroBatchRun
from simulator.judging.records import Broken, Out, Record
from simulator.scenario.kinds import Pass, Shared
from simulator.scenario.plans import Pipeline

_WRONG = 0.2
"""The allowed error of a t-digest in the middle, as a part of all ranks. Most errors are half of it."""
_ROUNDED = 1e-9


class _Standing(NamedTuple):
    """The input watermark of a stage, and the time since which it has this value."""

    reported: Timestamp
    since: Timestamp


class _Latest(NamedTuple):
    """The bounds of the latest timestamp that counts. The bounds differ for a quantile, which is only approximate."""

    low: Timestamp = MIN_TIMESTAMP
    high: Timestamp = MIN_TIMESTAMP

    def and_later(self, low: Timestamp, high: Timestamp) -> _Latest:
        """Return the later of these bounds and others."""
        return _Latest(max(self.low, low), max(self.high, high))


class Observations:
    """What the stages of a job have observed, over all shards.

    For most stages this is the latest timestamp. For stages with a quantile or a maximum jump, it is all timestamps.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._kinds = {
            stage.name: stage.kind for stage in pipeline.stages if isinstance(stage.kind, Pass) and stage.kind.observes
        }
        self._sharing: dict[Shared, list[str]] = {}
        for name, kind in self._kinds.items():
            if kind.shared is not None:
                self._sharing.setdefault(kind.shared, []).append(name)
        # All shards of an observing stage read the same inputs and keep nothing: their input watermarks are equal.
        self._stands: dict[str, _Standing] = {}
        self._now = MIN_TIMESTAMP
        self._latest: dict[str, _Latest] = defaultdict(_Latest)
        self._times: dict[str, list[Timestamp]] = {
            name: [] for name, kind in self._kinds.items() if kind.jump or kind.quantile
        }

    def add(self, ran: MicroBatchRun, records: Iterable[Record]) -> None:
        """Add the records of a committed micro-batch."""
        for stage in self._kinds:
            reported = ran.inputs.get(stage)
            if reported is None:
                continue
            if stage not in self._stands or self._stands[stage].reported != reported:
                self._stands[stage] = _Standing(reported, ran.time)
        self._now = ran.time
        for shared, parts in self._sharing.items():
            self._sees(shared.name, self._together(shared, parts))
        for record in records:
            kind = self._kinds.get(record.stage)
            if kind is None or kind.shared is not None or not isinstance(record, Out):
                continue
            if kind.skew is not None and record.time - ran.time > kind.skew:
                continue
            if record.stage in self._times:
                self._times[record.stage].append(record.time)
            else:
                self._sees(record.stage, record.time)
        for stage, times in self._times.items():
            kind = self._kinds[stage]
            if kind.quantile is None:
                self._sees(stage, _accepted(times, kind.jump or 0))
            else:
                self._sees(stage, *_of_rank(times, kind.quantile))

    def _sees(self, name: str, low: Timestamp, high: Timestamp | None = None) -> None:
        self._latest[name] = self._latest[name].and_later(low, low if high is None else high)

    def check(self, before: Manifest, manifest: Manifest) -> None:
        """Check that the output watermarks are as computed. A published watermark never falls."""
        was = {of.stage: {out.output: out.watermark for out in of.outputs} for of in before.watermarks}
        for of in manifest.watermarks:
            kind = self._kinds.get(of.stage)
            if kind is None:
                continue
            latest = self._latest[of.stage if kind.shared is None else kind.shared.name]
            there = [self._there(of.stage, kind, of.input, time) for time in latest]
            for out in of.outputs:
                low, high = (max(time, was.get(of.stage, {}).get(out.output, MIN_TIMESTAMP)) for time in there)
                if not low <= out.watermark <= high:
                    due = f"{low}" if low == high else f"{low} to {high}"
                    raise Broken(f"{of.stage} is at {out.watermark}, and must be at {due}; its input is at {of.input}")

    def _there(self, stage: str, kind: Pass, reported: Timestamp, latest: Timestamp) -> Timestamp:
        assert kind.delay is not None
        seen = Timestamp(min(max(latest - kind.delay, MIN_TIMESTAMP), END_OF_GLOBAL_WINDOW))
        if reported == MAX_TIMESTAMP:
            return reported
        if reported == MIN_TIMESTAMP or (kind.shared is None and self._is_idle(stage, kind)):
            return seen
        return min(reported, seen) if kind.policy is Policy.MIN else max(reported, seen)

    def _together(self, shared: Shared, parts: Sequence[str]) -> Timestamp:
        """Return the combined input watermark of stages that share an observer; the minimum if it is not known."""
        there = [part for part in parts if part in self._stands]
        active = [part for part in there if self._stands[part].reported != MAX_TIMESTAMP]
        if shared.policy is Policy.MIN:
            active = [part for part in active if not self._is_idle(part, self._kinds[part])]
        reported = (self._stands[part].reported for part in active)
        return (max if shared.policy is Policy.MAX else min)(reported, default=MIN_TIMESTAMP)

    def _is_idle(self, stage: str, kind: Pass) -> bool:
        return kind.idle is not None and stage in self._stands and self._now - self._stands[stage].since >= kind.idle


def _accepted(times: Iterable[Timestamp], jump: int) -> Timestamp:
    """Return the end of the last chain of times that is long enough; the minimum if there is none."""
    ordered = sorted(set(times))
    if len(ordered) >= UNCONFIRMED_MAX:
        raise Broken(f"{len(ordered)} times: more than this can judge")
    latest, length = MIN_TIMESTAMP, 0
    for at, time in enumerate(ordered):
        length = length + 1 if at and time - ordered[at - 1] <= jump else 1
        if length > CONFIRMED_BY:
            latest = time
    return latest


def _of_rank(times: Sequence[Timestamp], quantile: float) -> tuple[Timestamp, Timestamp]:
    """Return the bounds of a quantile of the times, as exact as a t-digest: one or two ranks at the ends, some percent
    in the middle. Return the minimum if fewer than one timestamp is above the quantile.
    """
    count = len(times)
    above = count * (1 - quantile)
    if above < 1 - _ROUNDED:
        return MIN_TIMESTAMP, MIN_TIMESTAMP
    ordered, wrong = sorted(times), 1 + _WRONG * quantile * above
    low = ordered[max(floor(count * quantile - wrong) - 1, 0)]
    high = ordered[min(ceil(count * quantile + wrong), count) - 1]
    known = MIN_TIMESTAMP if above < 1 + _ROUNDED else Timestamp(low - _rounding(low))
    return known, Timestamp(high + _rounding(high))


def _rounding(time: Timestamp) -> int:
    """Return the rounding error of a time as a float: at the ends of time, neighbours are a millisecond apart."""
    return 1 + int(2 * ulp(time))
