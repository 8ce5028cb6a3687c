"""The content of a manifest, as immutable values, and the rules for what may follow a manifest.

Owns the values and their rules. Must not know their layout in bytes (`manifestfile`), or how they are committed
(`log.commitlog`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.files import FileKind, Shard, ShardFile, SideFile
from arcbeam.model.plan import BY_SDK_WORKERS
from arcbeam.model.timestamps import Timestamp
from arcbeam.sizes import threshold
from arcbeam.store.manifest.names import parse_written


class ManifestKind(StrEnum):
    """The reason for a manifest."""

    OPENING = "opening"
    """A driver took over the job; nothing was processed."""
    MICRO_BATCH = "micro-batch"


ENDED: Final = frozenset({CommitMode.DRAINED, CommitMode.DONE})
"""After a micro-batch of these modes there is no other, except openings of drivers that finish its publishing."""


@dataclass(frozen=True, slots=True)
class OutputWatermark:
    """The watermark of one output of a stage."""

    output: str
    watermark: Timestamp


@dataclass(frozen=True, slots=True)
class StageWatermarks:
    """The watermarks of a stage after the micro-batch."""

    stage: str
    upstream: Timestamp
    input: Timestamp
    outputs: tuple[OutputWatermark, ...]


@dataclass(frozen=True, slots=True)
class HoldSummary:
    """What holds a stage's watermarks: the number of shards with holds, the earliest hold, and its cause."""

    stage: str
    count: int
    earliest: Timestamp
    what: str


@dataclass(frozen=True, slots=True)
class ResidualSummary:
    """The residuals of a stage: the number of live ones, the sum of their sizes, and when the next is due."""

    stage: str
    live: int
    size: float
    next_due: Timestamp


@dataclass(frozen=True, slots=True)
class StageShape:
    """The form of a stage's state; `shape` is a digest of its cells and coders, empty if it has no state."""

    stage: str
    level: int
    shape: str


@dataclass(frozen=True, slots=True)
class JobShape:
    """What a pipeline requires of the state with which it is resumed.

    Attributes:
        plan: a digest of the plan; it may differ.
        shards: number of shards of each level. Only an opening may change it, by rewriting all shards.
        stages: the form of their state; see `differences`.
    """

    plan: str
    shards: int
    stages: tuple[StageShape, ...]


@dataclass(frozen=True, slots=True)
class Pin:
    """A savepoint: a name for a micro-batch, which keeps its manifest and files. `time` is that of the micro-batch."""

    name: str
    micro_batch: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Micro-batches, from first to last, that a driver abandoned when it resumed from an earlier savepoint.

    Attributes:
        committed: of the savepoint, which precedes them; as in `Manifest`.
    """

    first: int
    last: int
    committed: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The opening of a driver: its micro-batch, and its unique token."""

    micro_batch: int
    token: str


KEPT_OPENINGS: Final = threshold(32, 2)
"""A manifest has the newest openings. A copy of state that is older than all of them is rebuilt."""


@dataclass(frozen=True, slots=True)
class ShardVersion:
    """The state of a shard after a micro-batch; `abandoned`, `openings` and `files` as in `Manifest` and `Shard`."""

    job: str
    level: int
    shard: int
    micro_batch: int
    abandoned: tuple[Abandoned, ...]
    openings: tuple[Opening, ...]
    files: tuple[ShardFile, ...]

    def contains(self, micro_batch: int) -> bool:
        """Return whether the state after that micro-batch led to this version."""
        return _leads_to(micro_batch, self.micro_batch, self.abandoned)

    def driver_of(self, micro_batch: int) -> str | None:
        """Return the opening token of the driver that committed a micro-batch on the way to this version.

        For a micro-batch after this version: that of the newest driver. None if the opening is no longer known.
        """
        return next((opening.token for opening in reversed(self.openings) if opening.micro_batch <= micro_batch), None)


def _leads_to(micro_batch: int, head: int, abandoned: tuple[Abandoned, ...]) -> bool:
    return 0 <= micro_batch <= head and not any(each.first <= micro_batch <= each.last for each in abandoned)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is committed after a micro-batch.

    Attributes:
        job: the id of this store, given with its first manifest; a copy of a savepoint has another one.
        micro_batch: number of the micro-batch, which is also the number of the manifest.
        epoch: of the driver that made it.
        token: unique to the proposal: a driver recognizes its own manifest by it.
        parent: token of the previous manifest; empty for the first one, and if the previous one cannot be read.
        time: the micro-batch's recorded time.
        attempts_digest: digest of the attempts whose rows the micro-batch's tasks read.
        shape: the form of the state.
        shards: by level and shard, ascending; shards without files are omitted.
        progress: opaque: what the driver must remember.
        pins: the savepoints, by micro-batch.
        abandoned: the earlier micro-batches that do not count, ascending.
        openings: the newest `KEPT_OPENINGS` openings that led here, ascending. They distinguish the manifests of a job
            from those of a copy of its folder, which has the same job, micro-batches and epochs.
        job_graph: name of the job graph's file; "" if there is none.
        snapshot: opaque: the status of the stages, for people; b"" if it was not kept.
        committed: how many micro-batches led here. Openings do not count, because they repeat another micro-batch.
    """

    job: str
    micro_batch: int
    epoch: int
    token: str
    parent: str
    kind: ManifestKind
    mode: CommitMode
    time: Timestamp
    attempts_digest: bytes
    shape: JobShape
    watermarks: tuple[StageWatermarks, ...]
    shards: tuple[Shard, ...]
    side_files: tuple[SideFile, ...]
    holds: tuple[HoldSummary, ...]
    residuals: tuple[ResidualSummary, ...]
    committables: tuple[Committable, ...]
    progress: bytes
    pins: tuple[Pin, ...]
    abandoned: tuple[Abandoned, ...]
    openings: tuple[Opening, ...] = ()
    job_graph: str = ""
    snapshot: bytes = b""
    committed: int = 0

    def file_names(self) -> Iterator[str]:
        """Yield the names of all its files."""
        for shard in self.shards:
            for file in shard.files:
                yield file.name
        for side in self.side_files:
            yield side.name

    def contains(self, micro_batch: int) -> bool:
        """Return whether the state after that micro-batch led to this manifest."""
        return _leads_to(micro_batch, self.micro_batch, self.abandoned)

    def pin(self, name: str) -> Pin | None:
        """Return the savepoint of that name."""
        return next((pin for pin in self.pins if pin.name == name), None)


def contradictions(head: Manifest, following: Manifest) -> list[str]:
    """Return all reasons why the second manifest cannot follow the first; empty if it can.

    A watermark never falls. A file is either the head's, or was written for this very micro-batch: so a file that a
    manifest does not name is never named again. The savepoints are the head's, with some added, removed or renamed.
    """
    wrong = []
    if head.mode in ENDED:
        wrong.append(f"the job has ended ({head.mode}): nothing follows its last micro-batch")
    if following.micro_batch != head.micro_batch + 1:
        wrong.append(f"micro-batch {following.micro_batch} follows micro-batch {head.micro_batch}")
    if following.job != head.job or following.parent != head.token:
        wrong.append(f"its parent is not micro-batch {head.micro_batch} of this job")
    if following.epoch < head.epoch:
        wrong.append(f"epoch {following.epoch} follows epoch {head.epoch}")
    if following.time < head.time:
        wrong.append(f"recorded time falls from {head.time} to {following.time}")
    if following.shape.shards != head.shape.shards:
        wrong.append(f"{following.shape.shards} shards follow {head.shape.shards}")
    if following.abandoned != head.abandoned:
        wrong.append("the abandoned micro-batches differ")
    if following.committed != head.committed + 1:
        wrong.append(f"{following.committed} committed micro-batches follow {head.committed}")
    if following.openings != head.openings:
        wrong.append("the openings differ")
    wrong += _fallen(head, following)
    wrong += _files(head, following)
    wrong += _pins(head, following)
    return wrong


def _fallen(head: Manifest, following: Manifest) -> Iterator[str]:
    before = {of.stage: of for of in head.watermarks}
    for stage in sorted(before.keys() - {of.stage for of in following.watermarks}):
        yield f"stage '{stage}' has no watermarks"
    for now in following.watermarks:
        was = before.get(now.stage)
        if was is None:
            continue
        outputs = {of.output: of.watermark for of in was.outputs}
        pairs = [("upstream", was.upstream, now.upstream), ("input", was.input, now.input)]
        pairs += [(f"output '{of.output}'", outputs.get(of.output, of.watermark), of.watermark) for of in now.outputs]
        for what, old, new in pairs:
            if new < old:
                yield f"the {what} watermark of stage '{now.stage}' falls from {old} to {new}"


def _files(head: Manifest, following: Manifest) -> Iterator[str]:
    before = {(shard.level, shard.shard): shard for shard in head.shards}
    # Most shards have not changed.
    changed = [shard for shard in following.shards if shard is not before.get((shard.level, shard.shard))]
    was = (before.get((shard.level, shard.shard)) for shard in changed)
    known = {file.name for shard in was if shard is not None for file in shard.files}
    known.update(side.name for side in head.side_files)
    names = [file.name for shard in changed for file in shard.files] + [side.name for side in following.side_files]
    elsewhere: set[str] | None = None
    for name in names:
        if name in known:
            continue
        written = parse_written(name)
        if written is None:
            yield f"'{name}' is not a name of a task's file"
        elif (written.micro_batch, written.epoch) != (following.micro_batch, following.epoch):
            elsewhere = set(head.file_names()) if elsewhere is None else elsewhere
            if name in elsewhere:
                continue
            yield (
                f"'{name}' is neither the head's nor written for micro-batch "
                f"{following.micro_batch} of epoch {following.epoch}"
            )
    places = [(shard.level, shard.shard) for shard in following.shards]
    if places != sorted(set(places)):
        yield "a shard occurs twice, or the shards are not in order"
    for shard in changed:
        micro_batch = -1
        for i, file in enumerate(shard.files):
            where = f"shard {shard.shard} of level {shard.level}"
            if file.kind == FileKind.SNAPSHOT and i:
                yield f"{where} has a snapshot, '{file.name}', on top of other files"
            if not micro_batch < file.first_micro_batch <= file.last_micro_batch <= following.micro_batch:
                yield (
                    f"{where} has '{file.name}' (micro-batches {file.first_micro_batch} to "
                    f"{file.last_micro_batch}) out of order"
                )
            micro_batch = file.last_micro_batch


def _pins(head: Manifest, following: Manifest) -> Iterator[str]:
    names = [pin.name for pin in following.pins]
    if len(names) != len(set(names)):
        yield f"a savepoint's name occurs twice: {', '.join(sorted(n for n in set(names) if names.count(n) > 1))}"
    kept = {(pin.micro_batch, pin.time) for pin in head.pins}
    for pin in following.pins:
        # SUBTLE: only the micro-batch itself can become a savepoint: files of earlier ones may be swept already. Those
        # of existing savepoints are kept; their names may change.
        if (pin.micro_batch, pin.time) not in kept and pin.micro_batch != following.micro_batch:
            yield f"savepoint '{pin.name}' is of micro-batch {pin.micro_batch}, which is not this one"


_MOVED = {
    False: "has state of Spark's Python workers, which SDK workers cannot read: omit --environment_type",
    True: "has state of SDK workers, which Spark's Python workers cannot read: set --environment_type to LOOPBACK, "
    "EXTERNAL, PROCESS or DOCKER",
}
"""What is wrong with a stage that moves from or to SDK workers, by whether they have written its state."""


def differences(had: JobShape, wanted: JobShape) -> list[str]:
    """Return, by stage, why a pipeline of the second shape cannot resume state of the first; empty if it can.

    A stage with state must exist, with state of the same shape. Other stages may be added or removed. If the level of a
    stage changes, its rows are moved there (`log.relocating`).
    """
    wrong = []
    if had.shards != wanted.shards:
        wrong.append(
            f"it has {had.shards} shards a level, and {wanted.shards} are requested: another driver has rescaled it "
            "meanwhile; resume it again"
        )
    stages = {of.stage: of for of in wanted.stages}
    for old in had.stages:
        new = stages.get(old.stage)
        if not old.shape:
            continue
        if new is None:
            wrong.append(f"stage '{old.stage}' has state, but the pipeline has no stage of that name")
        elif (BY_SDK_WORKERS in old.shape) != (BY_SDK_WORKERS in new.shape):
            wrong.append(f"stage '{old.stage}' {_MOVED[BY_SDK_WORKERS in old.shape]}")
        elif new.shape != old.shape:
            wrong.append(f"stage '{old.stage}' has a different kind of state: {_change(old.shape, new.shape)}")
    return wrong


def _change(had: str, wanted: str) -> str:
    """Return the parts of each shape that the other lacks."""
    old, new = had.split("; "), wanted.split("; ")
    removed, added = ([each for each in these if each not in those] for these, those in ((old, new), (new, old)))
    return (
        f"the job has '{'; '.join(removed) or 'nothing more'}', the pipeline has '{'; '.join(added) or 'nothing more'}'"
    )
