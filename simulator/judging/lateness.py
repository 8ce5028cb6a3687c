"""Check that another number of shards changes neither pending work and holds, nor which elements of a key are late.

Owns the check. Must not know how the rows of watermarks are moved to other shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arcbeam.engine.watermarks.clocks import Clock
from arcbeam.engine.watermarks.holds import Holds, Side
from arcbeam.engine.watermarks.keyrangewatermarks import KeyRangeWatermarks
from arcbeam.model.rows import key_hash
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.manifest.values import Manifest
from arcbeam.store.shards.compaction import scan
from arcbeam.testing.blobs import MemoryBlobs
from arcbeam.testing.views import MemoryView
from simulator.judging.records import Broken
from simulator.scenario.kinds import Keep
from simulator.scenario.plans import Pipeline

_KEYS: Final = [b"%d" % number for number in range(100)]
"""Some are in each pair of an old and a new shard."""


def check(pipeline: Pipeline, blobs: MemoryBlobs, origin: Manifest, opening: Manifest) -> int:
    """Check the watermarks of an opening with another number of shards.

    What is earliest of the work that is pending for a stage, and of the holds on its outputs, stays so. Elements of a
    key are late by the same watermark as before; by a later one if nothing that is earlier is pending in the key's new
    shard: work of other keys held the watermark back.

    Returns:
        How many stages had different watermarks in different shards.

    Raises:
        Broken: pending work or holds are at another time, or elements of a key are late by another watermark.
    """
    before, after = _Shards(blobs, origin), _Shards(blobs, opening)
    divided = 0
    for stage in pipeline.stages:
        if stage.name not in before.levels:
            continue
        number = pipeline.numbers[stage.name]
        was, now = (of.places(stage.name, number) for of in (before, after))
        if (wrong := _earliest(now)) != (right := _earliest(was)):
            raise Broken(
                f"micro-batch {opening.micro_batch} rescales {origin.micro_batch}: the earliest pending work and hold "
                f"of {stage.name} were {right}, and are now {wrong}"
            )
        if not isinstance(stage.kind, Keep):
            continue
        divided += len({place.late for place in was}) > 1
        for key in _KEYS:
            old, new = (places[key_hash(key) % len(places)] for places in (was, now))
            least, most = (max(time, new.pending) for time in (old.committed_of(key), old.late_of(key)))
            if not least <= new.late_of(key) <= most:
                raise Broken(
                    f"micro-batch {opening.micro_batch} rescales {origin.micro_batch}: elements of {stage.name} with "
                    f"key {key!r} were late by watermark {old.late_of(key)}, and are now by {new.late_of(key)}"
                )
    return divided


class _Place:
    """A stage in a shard."""

    def __init__(self, view: MemoryView, number: int, upstream: Timestamp) -> None:
        clock = Clock(view, number, (), upstream)
        pending = clock.local().pending
        hold = Holds(view, number, Side.OUTPUT).earliest()
        self.times = tuple(MAX_TIMESTAMP if each is None else each.time for each in (pending, hold))
        self._floors = KeyRangeWatermarks(view, number)
        self.late = clock.input
        self.pending = upstream if pending is None else min(upstream, pending.time)
        # Observed outputs have moved since the last micro-batch.
        self._committed = clock.input if pending is None else Clock(view, number, ()).input

    def late_of(self, key: bytes) -> Timestamp:
        """Return the watermark by which the next elements of a key are late."""
        return max(self.late, self._floors.of(key))

    def committed_of(self, key: bytes) -> Timestamp:
        """Return the watermark by which elements of a key were late in the last micro-batch."""
        return max(self._committed, self._floors.of(key))


def _earliest(places: Sequence[_Place]) -> list[Timestamp]:
    """Return the times of the earliest pending work and of the earliest hold in any shard."""
    return [min(times) for times in zip(*(place.times for place in places), strict=True)]


class _Shards:
    """The shards of a manifest."""

    def __init__(self, blobs: MemoryBlobs, manifest: Manifest) -> None:
        self._shards = manifest.shape.shards
        self._upstream = {of.stage: of.upstream for of in manifest.watermarks}
        self.levels = {of.stage: of.level for of in manifest.shape.stages}
        self._views = {(of.level, of.shard): MemoryView(dict(scan(blobs, of.files))) for of in manifest.shards}

    def places(self, stage: str, number: int) -> list[_Place]:
        """Return a stage in each shard."""
        upstream, level = self._upstream.get(stage, MIN_TIMESTAMP), self.levels[stage]
        views = (self._views.get((level, shard)) or MemoryView() for shard in range(self._shards))
        return [_Place(view, number, upstream) for view in views]
