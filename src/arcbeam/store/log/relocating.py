"""State that is at another level in the pipeline than it was: a stage's rows go where its tasks look for them.

Owns what is written for that: for each shard, on top of its files, one in which what has come is put, and what has gone
is deleted. Nothing is real of it before the opening that names it is. Must not know what rows mean.
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
"""What the names of such files have in the place of an attempt's."""

_Place = tuple[int, int]
"""A level, and a shard of it."""


@dataclass(frozen=True, slots=True)
class Move:
    """A stage whose state is to be at another level.

    Attributes:
        stage: its name.
        owner: what its rows' keys have at `OWNER`.
        source: the level where its state is.
        target: the level where its tasks look for it.
    """

    stage: str
    owner: bytes
    source: int
    target: int


def moves(had: JobShape, wanted: JobShape, numbers: Mapping[str, int]) -> tuple[Move, ...]:
    """The stages with state that are at another level.

    Args:
        had: where state is.
        wanted: where it is to be.
        numbers: of the job's stages, by name: those of their rows.
    """
    levels = {of.stage: of.level for of in wanted.stages}
    return tuple(
        Move(of.stage, numbers[of.stage].to_bytes(OWNER.stop - OWNER.start, "big"), of.level, levels[of.stage])
        for of in had.stages
        if of.shape and of.stage in numbers and levels.get(of.stage, of.level) != of.level
    )


def relocated(blobs: DurableBlobs, opening: Manifest, asked: Sequence[Move], scratch: Path) -> Manifest:
    """An opening with the state of some stages at other levels, for which files are written.

    A row stays in its shard: shards are told apart by keys, at all levels in the same way. Levels that the pipeline has
    no more go, with what is left there: it belongs to no stage.

    Memory: a block of each file of two shards.

    Args:
        blobs: the job's folder.
        opening: the manifest that is to be proposed; its epoch has begun.
        asked: the stages.
        scratch: a local folder.

    Raises:
        IncompatibleStateError: rows of shards that would come together are of different formats.
        StoreError: a file cannot be read or written.
    """
    if not asked:
        return opening
    depth = 1 + max((of.level for of in opening.shape.stages), default=0)
    before = {(shard.level, shard.shard): shard.files for shard in opening.shards}
    after = {place: files for place, files in before.items() if place[0] < depth}
    places = {(level, shard) for _, shard in before for move in asked for level in (move.source, move.target)}
    for place in sorted(place for place in places if place[0] < depth):
        changes = _changes(blobs, before, place, asked)
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
    blobs: DurableBlobs, before: Mapping[_Place, Sequence[ShardFile]], place: _Place, asked: Sequence[Move]
) -> Iterator[Block]:
    """What changes in a shard: all that comes to it, and all that goes."""
    level, shard = place
    sources: list[Iterator[Block]] = []
    form = _nobodys(blobs, before[place]) if place in before else None
    for other in sorted({move.source for move in asked if move.target == level}):
        files = before.get((other, shard), ())
        coming = _of(blobs, files, {move.owner for move in asked if (move.source, move.target) == (other, level)})
        first = next(coming, None)
        if first is None:
            continue
        theirs = _nobodys(blobs, files)
        if form is None:
            form = theirs
            sources.append(iter([_block(form)] if form else []))
        elif form != theirs:
            raise IncompatibleStateError(
                f"the state of shard {shard} in '{blobs}' is of one format at level {other}, and of another one at "
                f"level {level}: it cannot be put together",
                "resume with a pipeline whose stages with state are where they were",
            )
        sources.append(chain((first,), coming))
    going = {move.owner for move in asked if move.source == level}
    sources.append((keys, [None] * len(keys)) for keys, _ in _of(blobs, before.get(place, ()), going))
    return merged(sources, bottom=False)


def _of(blobs: DurableBlobs, files: Sequence[ShardFile], owners: set[bytes]) -> Iterator[Block]:
    """The rows of some owners in the files of a shard, the oldest first."""
    told = [file for file in files if not file.owned or any(of.owner in owners for of in file.owned)]
    if not owners or not told:
        return
    for keys, values in merged([opened(blobs, file).blocks() for file in told], bottom=True):
        own = [(key, value) for key, value in zip(keys, values, strict=True) if key[OWNER] in owners]
        if own:
            yield _block(own)


def _nobodys(blobs: DurableBlobs, files: Sequence[ShardFile]) -> list[tuple[bytes, bytes | None]]:
    """The rows of a shard that say of what form the others are: they are before all that have an owner."""
    return [*takewhile(lambda row: len(row[0]) < OWNER.stop, scan(blobs, files))]


def _block(rows: Sequence[tuple[bytes, bytes | None]]) -> Block:
    return [key for key, _ in rows], [value for _, value in rows]
