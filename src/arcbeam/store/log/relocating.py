"""Moving state to another level: a stage's rows go to the level where its tasks read them.

Owns the files for that: for each shard one more file, which adds the incoming rows and deletes the outgoing ones. They
do not count before the opening that names them is committed. Must not know what rows mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from pathlib import Path
from typing import Final

from arcbeam.model.files import OWNER, FileKind, Shard, ShardFile
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import IncompatibleStateError
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import JobShape, Manifest
from arcbeam.store.shards.compaction import merged, opened, publish, scan
from arcbeam.store.shards.shardfile import Block

ATTEMPT: Final = "moved"
"""The attempt in the names of such files."""

_Place = tuple[int, int]
"""A level, and a shard of it."""


@dataclass(frozen=True, slots=True)
class StageMove:
    """A stage whose state moves to another level.

    Attributes:
        stage: its name.
        owner: the part of its rows' keys at `OWNER`.
        source: the present level of its state.
        target: the level where its tasks read it.
    """

    stage: str
    owner: bytes
    source: int
    target: int


def moves(had: JobShape, wanted: JobShape, numbers: Mapping[str, int]) -> tuple[StageMove, ...]:
    """Return the stages with state whose level changes.

    Args:
        had: the present levels.
        wanted: the new levels.
        numbers: of the job's stages, by name: those in their rows.
    """
    levels = {of.stage: of.level for of in wanted.stages}
    return tuple(
        StageMove(of.stage, numbers[of.stage].to_bytes(OWNER.stop - OWNER.start, "big"), of.level, levels[of.stage])
        for of in had.stages
        if of.shape and of.stage in numbers and levels.get(of.stage, of.level) != of.level
    )


def relocated(blobs: DurableBlobs, opening: Manifest, stages: Sequence[StageMove], scratch: Path) -> Manifest:
    """Return an opening with the state of some stages at other levels; write the files for that.

    A row stays in its shard: keys determine shards in the same way at all levels. Levels that the pipeline lacks are
    removed, with their remaining rows, which belong to no stage.

    Memory: a block of each file of two shards.

    Args:
        blobs: the job's folder.
        opening: the manifest to propose; its epoch has begun.
        stages: the stages to move.
        scratch: a local folder.

    Raises:
        IncompatibleStateError: shards to merge have rows of different formats.
        StoreError: a file cannot be read or written.
    """
    if not stages:
        return opening
    depth = 1 + max((of.level for of in opening.shape.stages), default=0)
    before = {(shard.level, shard.shard): shard.files for shard in opening.shards}
    after = {place: files for place, files in before.items() if place[0] < depth}
    places = {(level, shard) for _, shard in before for move in stages for level in (move.source, move.target)}
    for place in sorted(place for place in places if place[0] < depth):
        changes = _changes(blobs, before, place, stages)
        first = next(changes, None)
        if first is None:
            continue
        name = Written(*place, opening.micro_batch, opening.epoch, ATTEMPT, str(FileKind.DELTA))
        delta = publish(
            blobs,
            scratch,
            name,
            chain((first,), changes),
            first_micro_batch=opening.micro_batch,
            last_micro_batch=opening.micro_batch,
        )
        after[place] = (*after.get(place, ()), delta)
    return replace(opening, shards=tuple(Shard(*place, files) for place, files in sorted(after.items())))


def _changes(
    blobs: DurableBlobs, before: Mapping[_Place, Sequence[ShardFile]], place: _Place, stages: Sequence[StageMove]
) -> Iterator[Block]:
    """Return the changes of a shard: all incoming and all outgoing rows."""
    level, shard = place
    sources: list[Iterator[Block]] = []
    form = _without_owner(blobs, before[place]) if place in before else None
    for other in sorted({move.source for move in stages if move.target == level}):
        files = before.get((other, shard), ())
        incoming = _of(blobs, files, {move.owner for move in stages if (move.source, move.target) == (other, level)})
        first = next(incoming, None)
        if first is None:
            continue
        theirs = _without_owner(blobs, files)
        if form is None:
            form = theirs
            sources.append(iter([_block(form)] if form else []))
        elif form != theirs:
            raise IncompatibleStateError(
                f"the state of shard {shard} in '{blobs}' has one format at level {other}, and another one at level "
                f"{level}: it cannot be merged",
                "resume with a pipeline whose stages with state are at their earlier levels",
            )
        sources.append(chain((first,), incoming))
    outgoing = {move.owner for move in stages if move.source == level}
    sources.append((keys, [None] * len(keys)) for keys, _ in _of(blobs, before.get(place, ()), outgoing))
    return merged(sources, bottom=False)


def _of(blobs: DurableBlobs, files: Sequence[ShardFile], owners: set[bytes]) -> Iterator[Block]:
    """Yield the rows of some owners in the files of a shard, the oldest first."""
    relevant = [file for file in files if not file.owned or any(of.owner in owners for of in file.owned)]
    if not owners or not relevant:
        return
    for keys, values in merged([opened(blobs, file).blocks() for file in relevant], bottom=True):
        own = [(key, value) for key, value in zip(keys, values, strict=True) if key[OWNER] in owners]
        if own:
            yield _block(own)


def _without_owner(blobs: DurableBlobs, files: Sequence[ShardFile]) -> list[tuple[bytes, bytes | None]]:
    """Return the rows of a shard with the format of the others: they precede all rows with an owner."""
    return [*takewhile(lambda row: len(row[0]) < OWNER.stop, scan(blobs, files))]


def _block(rows: Sequence[tuple[bytes, bytes | None]]) -> Block:
    return [key for key, _ in rows], [value for _, value in rows]
