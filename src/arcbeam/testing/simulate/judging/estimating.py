"""Where the outputs of stages with estimators must be: at the earliest of what all estimators have reported last.

Owns what was reported, by what stages have put out. Must not know how the engine keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.manifest.values import Manifest
from arcbeam.testing.simulate.judging.records import Broken, Out, Record
from arcbeam.testing.simulate.scenario.kinds import Pass
from arcbeam.testing.simulate.scenario.plans import Pipeline


class Estimates:
    """What estimators of a job have reported: of each stage, shard and estimator the latest."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._shards = pipeline.shards
        self._kinds = {
            stage.name: stage.kind for stage in pipeline.stages if isinstance(stage.kind, Pass) and stage.kind.behind
        }
        self._latest: dict[str, dict[tuple[int, str], Timestamp]] = {name: {} for name in self._kinds}

    def add(self, records: Iterable[Record]) -> None:
        """A step is real."""
        for record in records:
            kind = self._kinds.get(record.stage)
            if kind is not None and isinstance(record, Out):
                who = crc32(record.key) % self._shards, kind.estimator(record.atoms)
                latest = self._latest[record.stage]
                latest[who] = max(latest.get(who, MIN_TIMESTAMP), kind.estimate(record.time))

    def check(self, before: Manifest, manifest: Manifest) -> None:
        """The outputs are where they must be: a watermark that was said is never taken back."""
        was = {of.stage: {out.output: out.watermark for out in of.outputs} for of in before.watermarks}
        for of in manifest.watermarks:
            if of.stage not in self._kinds:
                continue
            known = self._latest[of.stage]
            least = of.upstream if of.input == MAX_TIMESTAMP else min([of.upstream, *known.values()])
            for out in of.outputs:
                due = max(least, was.get(of.stage, {}).get(out.output, MIN_TIMESTAMP))
                if out.watermark != due:
                    raise Broken(f"{of.stage} is at {out.watermark}, and must be at {due}; its estimators: {known}")
