"""Where the outputs of stages that observe must be, by what they have put out.

Owns what was seen. Must not know how the engine keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from arcbeam.model.observers import CONFIRMED_BY, MOST, Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.manifest.values import Manifest
from arcbeam.testing.simulate.judging.punctual import StepRun
from arcbeam.testing.simulate.judging.records import Broken, Out, Record
from arcbeam.testing.simulate.scenario.kinds import Pass, Shared
from arcbeam.testing.simulate.scenario.plans import Pipeline


class _Standing(NamedTuple):
    """What the input of a stage says, and since when."""

    said: Timestamp
    since: Timestamp


class Observations:
    """What the stages of a job have seen, over all shards: of each the latest time, of those that do not believe all of
    them all.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._kinds = {
            stage.name: stage.kind for stage in pipeline.stages if isinstance(stage.kind, Pass) and stage.kind.observes
        }
        self._sharing: dict[Shared, list[str]] = {}
        for name, kind in self._kinds.items():
            if kind.shared is not None:
                self._sharing.setdefault(kind.shared, []).append(name)
        # All shards of a stage that observes read the same and keep nothing: what one of them says they all say.
        self._stands: dict[str, _Standing] = {}
        self._now = MIN_TIMESTAMP
        self._latest: dict[str, Timestamp] = {}
        self._times: dict[str, set[Timestamp]] = {name: set() for name, kind in self._kinds.items() if kind.jump}

    def add(self, ran: StepRun, records: Iterable[Record]) -> None:
        """A step is real."""
        for stage in self._kinds:
            said = ran.inputs[stage]
            if stage not in self._stands or self._stands[stage].said != said:
                self._stands[stage] = _Standing(said, ran.time)
        self._now = ran.time
        for shared, parts in self._sharing.items():
            together = self._together(shared, parts)
            if together is not None:
                self._latest[shared.name] = max(together, self._latest.get(shared.name, MIN_TIMESTAMP))
        for record in records:
            kind = self._kinds.get(record.stage)
            if kind is None or kind.shared is not None or not isinstance(record, Out):
                continue
            if kind.skew is not None and record.time - ran.time > kind.skew:
                continue
            if record.stage in self._times:
                self._times[record.stage].add(record.time)
            else:
                self._latest[record.stage] = max(record.time, self._latest.get(record.stage, MIN_TIMESTAMP))
        for stage, times in self._times.items():
            latest = _believed(times, self._kinds[stage].jump or 0)
            if latest is not None:
                self._latest[stage] = latest

    def check(self, before: Manifest, manifest: Manifest) -> None:
        """The outputs are where they must be: a watermark that was said is never taken back."""
        was = {of.stage: {out.output: out.watermark for out in of.outputs} for of in before.watermarks}
        for of in manifest.watermarks:
            kind = self._kinds.get(of.stage)
            if kind is None:
                continue
            there = self._there(of.stage, kind, of.input)
            for out in of.outputs:
                due = max(there, was.get(of.stage, {}).get(out.output, MIN_TIMESTAMP))
                if out.watermark != due:
                    raise Broken(f"{of.stage} is at {out.watermark}, and must be at {due}; its input is at {of.input}")

    def _there(self, stage: str, kind: Pass, said: Timestamp) -> Timestamp:
        assert kind.delay is not None
        latest = self._latest.get(stage if kind.shared is None else kind.shared.name)
        seen = MIN_TIMESTAMP
        if latest is not None:
            seen = Timestamp(min(max(latest - kind.delay, MIN_TIMESTAMP), END_OF_GLOBAL_WINDOW))
        if said == MAX_TIMESTAMP:
            return said
        if said == MIN_TIMESTAMP or (kind.shared is None and self._is_idle(stage, kind)):
            return seen
        return min(said, seen) if kind.policy is Policy.MIN else max(said, seen)

    def _together(self, shared: Shared, parts: Sequence[str]) -> Timestamp | None:
        """Where those are that share something, by their inputs; None if that is not known."""
        going_on = [part for part in parts if self._stands[part].said != MAX_TIMESTAMP]
        if shared.policy is Policy.MAX:
            return max((self._stands[part].said for part in going_on), default=None)
        return min(
            (self._stands[part].said for part in going_on if not self._is_idle(part, self._kinds[part])), default=None
        )

    def _is_idle(self, stage: str, kind: Pass) -> bool:
        return kind.idle is not None and stage in self._stands and self._now - self._stands[stage].since >= kind.idle


def _believed(times: set[Timestamp], jump: int) -> Timestamp | None:
    """The end of the last chain of times that is long enough; None if none is."""
    if len(times) >= MOST:
        raise Broken(f"{len(times)} times: so many are more than this judges")
    ordered = sorted(times)
    latest, length = None, 0
    for at, time in enumerate(ordered):
        length = length + 1 if at and time - ordered[at - 1] <= jump else 1
        if length > CONFIRMED_BY:
            latest = time
    return latest
