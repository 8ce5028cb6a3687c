"""Where the outputs of stages that observe must be, by what they have put out.

Owns what was seen. Must not know how the engine keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable

from arcbeam.model.observers import Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.manifest.values import Manifest
from arcbeam.testing.simulate.judging.records import Broken, Out, Record
from arcbeam.testing.simulate.scenario.kinds import Pass
from arcbeam.testing.simulate.scenario.plans import Pipeline


class Observations:
    """What the stages of a job have seen: of each the latest time, over all shards."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._kinds = {
            stage.name: stage.kind for stage in pipeline.stages if isinstance(stage.kind, Pass) and stage.kind.observes
        }
        self._latest: dict[str, Timestamp] = {}

    def add(self, records: Iterable[Record]) -> None:
        """A step is real."""
        for record in records:
            if record.stage in self._kinds and isinstance(record, Out):
                self._latest[record.stage] = max(record.time, self._latest.get(record.stage, MIN_TIMESTAMP))

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
        latest = self._latest.get(stage)
        seen = MIN_TIMESTAMP
        if latest is not None:
            seen = Timestamp(min(max(latest - kind.delay, MIN_TIMESTAMP), END_OF_GLOBAL_WINDOW))
        if said in (MIN_TIMESTAMP, MAX_TIMESTAMP):
            return said if said == MAX_TIMESTAMP else seen
        return min(said, seen) if kind.policy is Policy.MIN else max(said, seen)
