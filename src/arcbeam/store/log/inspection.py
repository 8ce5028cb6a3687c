"""The content of a streaming job's folder, as values. Reading only; a running job is not disturbed.

Owns what is collected from manifests. Must not know how it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from arcbeam.model.files import ShardFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import DamagedFileError, MissingFileError, NewerFormatError, StoreError
from arcbeam.store.log import jobgraphs, requests
from arcbeam.store.log.chain import (
    UnreadableHead,
    floor_below,
    known,
    newest_epoch,
    read_epoch,
    read_floors,
    read_manifest,
    read_newest,
)
from arcbeam.store.log.endnote import EndNote, note_of
from arcbeam.store.log.opening import later_micro_batches, no_savepoint
from arcbeam.store.log.verification import problems
from arcbeam.store.manifest.names import parse_written
from arcbeam.store.manifest.values import HoldSummary, Manifest, OutputWatermark, Pin, ResidualSummary


@dataclass(frozen=True, slots=True)
class InspectedStage:
    """A stage after the micro-batch; missing values are None or empty."""

    stage: str
    level: int | None
    upstream: Timestamp | None
    input: Timestamp | None
    outputs: tuple[OutputWatermark, ...]
    holds: tuple[HoldSummary, ...]
    residuals: tuple[ResidualSummary, ...]


@dataclass(frozen=True, slots=True)
class InspectedLevel:
    """The state of a level.

    Attributes:
        shards: number of shards with state.
        entries: puts in all files: at least as many as entries.
        size: of all files, in bytes.
        largest: the shard with the largest files, and their size.
    """

    level: int
    shards: int
    files: int
    entries: int
    tombstones: int
    size: int
    largest: int
    largest_size: int


@dataclass(frozen=True, slots=True)
class MicroBatchReport:
    """A micro-batch in one line. `written` is the size of the files written for it."""

    micro_batch: int
    epoch: int
    kind: str
    mode: str
    time: Timestamp
    written: int
    committables: int


@dataclass(frozen=True, slots=True)
class JobGraphReport:
    """The job graph after the micro-batch: its name, and the versions of its submission."""

    file: str
    name: str
    versions: Mapping[str, str]
    files: int


@dataclass(frozen=True, slots=True)
class RequestReport:
    """An open request to the job."""

    what: str
    savepoint: str
    micro_batch: int


@dataclass(frozen=True, slots=True)
class SavepointReport:
    """A savepoint.

    Attributes:
        mode: of the job: suspended, drained, …; "" if its manifest cannot be read.
        epoch: of the driver that made it; None as above.
        files, size: of all its state and side inputs: number and bytes.
        own: bytes that neither the newest micro-batch nor another savepoint needs.
        stages: those with state.
        to_publish: number of its committables.
        job_graph: its job graph; None: its script is needed, or the job graph cannot be read.
        problem: why its manifest, or job graph, cannot be read; "" if they can.
        later: how many committed micro-batches a job discards if it goes back to it.
    """

    name: str
    micro_batch: int
    time: Timestamp
    mode: str = ""
    epoch: int | None = None
    files: int = 0
    size: int = 0
    own: int = 0
    stages: tuple[str, ...] = ()
    to_publish: int = 0
    job_graph: JobGraphReport | None = None
    problem: str = ""
    later: int = 0


def savepoints(blobs: DurableBlobs) -> tuple[SavepointReport, ...]:
    """Return the savepoints of a job, by micro-batch.

    Args:
        blobs: the job's folder.

    Raises:
        StoreError: there is no job, or neither its newest manifest nor one before it can be read.
    """
    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
    head = known(newest)
    found: dict[int, Manifest | str] = {head.micro_batch: head}
    for pin in head.pins:
        if pin.micro_batch not in found:
            try:
                found[pin.micro_batch] = read_manifest(blobs, pin.micro_batch)
            except (MissingFileError, DamagedFileError, NewerFormatError) as e:
                found[pin.micro_batch] = str(e)
    sizes = {micro_batch: _sizes(each) for micro_batch, each in found.items() if isinstance(each, Manifest)}
    # Number of reasons to keep a micro-batch: as the newest, and by its names.
    kept = Counter([head.micro_batch, *(pin.micro_batch for pin in head.pins)])
    return tuple(
        replace(
            _savepoint(blobs, pin, of, sizes, alone=kept[pin.micro_batch] == 1),
            later=later_micro_batches(newest, of) if isinstance(of, Manifest) else 0,
        )
        for pin in head.pins
        for of in [found[pin.micro_batch]]
    )


def _sizes(manifest: Manifest) -> dict[str, int]:
    """Return the files that a manifest names, with their sizes."""
    sizes = {file.name: file.size for shard in manifest.shards for file in shard.files}
    return sizes | {side.name: side.size for side in manifest.side_files}


def _savepoint(
    blobs: DurableBlobs, pin: Pin, manifest: Manifest | str, sizes: Mapping[int, Mapping[str, int]], *, alone: bool
) -> SavepointReport:
    if isinstance(manifest, str):
        return SavepointReport(pin.name, pin.micro_batch, pin.time, problem=manifest)
    damaged: list[str] = []
    job_graph = _job_graph(blobs, manifest, (pin,), damaged)
    mine = sizes[pin.micro_batch]
    others = {name for micro_batch, each in sizes.items() if micro_batch != pin.micro_batch for name in each}
    return SavepointReport(
        pin.name,
        pin.micro_batch,
        pin.time,
        str(manifest.mode),
        manifest.epoch,
        len(mine),
        sum(mine.values()),
        sum(size for name, size in mine.items() if name not in others) if alone else 0,
        tuple(of.stage for of in manifest.shape.stages if of.shape),
        len(manifest.committables),
        job_graph,
        "".join(damaged),
    )


@dataclass(frozen=True, slots=True)
class Inspection:
    """A job after one micro-batch.

    Attributes:
        driver: the name of the driver that began the epoch; empty if unknown.
        savepoints: of the job now, or of the newest readable micro-batch.
        micro_batches: the latest ones up to this one, the newest first; without unreadable ones.
        damaged: missing or unreadable manifests and job graphs, each with a remedy; the newest manifest, if it is one
            of them, comes first.
        problems: missing, damaged or too new files; None if they were not checked.
        job_graph: the job graph for a resume; None: its script is needed, or the job graph cannot be read.
        requests: that wait for the job's driver, the oldest first.
        ended: how the driver of the newest micro-batch failed, or that it was cancelled; None if it may be running, was
            killed, or ended with a commit.
    """

    location: str
    job: str
    micro_batch: int
    epoch: int
    driver: str
    kind: str
    mode: str
    time: Timestamp
    plan: str
    shards: int
    stages: tuple[InspectedStage, ...]
    levels: tuple[InspectedLevel, ...]
    side_files: int
    side_bytes: int
    committables: int
    savepoints: tuple[Pin, ...]
    micro_batches: tuple[MicroBatchReport, ...]
    damaged: tuple[str, ...]
    problems: tuple[str, ...] | None
    job_graph: JobGraphReport | None = None
    requests: tuple[RequestReport, ...] = ()
    ended: EndNote | None = None


def inspect(
    blobs: DurableBlobs,
    *,
    micro_batch: int | None = None,
    savepoint: str = "",
    micro_batches: int = 10,
    check: bool = False,
) -> Inspection:
    """Inspect a job.

    Args:
        blobs: its folder.
        micro_batch: the micro-batch to show; None: the newest readable one.
        savepoint: show this savepoint's micro-batch; empty: as `micro_batch` says.
        micro_batches: number of micro-batches to list.
        check: read every file of the micro-batch, the manifests of all savepoints, and all earlier manifests that must
            exist.

    Raises:
        StoreError: there is no job, no such savepoint or micro-batch, or the manifest cannot be read.
    """
    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
    if isinstance(newest, UnreadableHead) and micro_batch == newest.micro_batch and not savepoint:
        raise newest.error
    head = known(newest)
    if savepoint:
        pin = head.pin(savepoint)
        if pin is None:
            raise no_savepoint(blobs, savepoint, head)
        micro_batch = pin.micro_batch
    manifest = head
    if micro_batch is not None and micro_batch != head.micro_batch:
        try:
            manifest = read_manifest(blobs, micro_batch)
        except MissingFileError as e:
            raise StoreError(
                f"there is no micro-batch {micro_batch} in '{blobs}'",
                f"the newest is {newest.micro_batch}; micro-batches long before it are swept, unless "
                "they are savepoints",
            ) from e
    damaged, latest = [], manifest.micro_batch
    if isinstance(newest, UnreadableHead):
        damaged.append(str(newest.error))
        if manifest is head:
            latest = newest.micro_batch - 1
    job_graph = _job_graph(blobs, manifest, head.pins, damaged)
    listed = tuple(_micro_batches(blobs, latest, micro_batches, damaged, to_floor=check))
    damaged += _damaged_floors(blobs)
    return Inspection(
        location=str(blobs),
        job=manifest.job,
        micro_batch=manifest.micro_batch,
        epoch=manifest.epoch,
        driver=_driver(blobs, manifest.epoch),
        kind=str(manifest.kind),
        mode=str(manifest.mode),
        time=manifest.time,
        plan=manifest.shape.plan,
        shards=manifest.shape.shards,
        stages=tuple(_stages(manifest)),
        levels=tuple(_levels(manifest)),
        side_files=len(manifest.side_files),
        side_bytes=sum(side.size for side in manifest.side_files),
        committables=len(manifest.committables),
        savepoints=head.pins,
        micro_batches=listed,
        damaged=tuple(damaged),
        problems=tuple(problems(blobs, manifest, head.pins)) if check else None,
        job_graph=job_graph,
        requests=tuple(_requests(blobs)),
        ended=note_of(blobs, head),
    )


def _job_graph(
    blobs: DurableBlobs, manifest: Manifest, pins: Iterable[Pin], damaged: list[str]
) -> JobGraphReport | None:
    """Return the job graph. If it cannot be read, the error goes to `damaged`."""
    if not manifest.job_graph:
        return None
    try:
        job_graph = jobgraphs.read(blobs, manifest.job_graph)
    except (MissingFileError, DamagedFileError, NewerFormatError) as e:
        # Below the floor, openings are kept only for their names: the files that they name were swept.
        if manifest.micro_batch >= _floor(blobs) or any(pin.micro_batch == manifest.micro_batch for pin in pins):
            damaged.append(str(e))
        return None
    return JobGraphReport(manifest.job_graph, job_graph.name, job_graph.versions, len(job_graph.files))


def _requests(blobs: DurableBlobs) -> Iterator[RequestReport]:
    for id in requests.waiting(blobs):
        try:
            request = requests.read(blobs, id)
        except ValueError:
            continue  # the job's driver reports its fault
        if request is not None:
            yield RequestReport(str(request.what), request.savepoint, request.micro_batch)


def _driver(blobs: DurableBlobs, epoch: int) -> str:
    try:
        return str(read_epoch(blobs, epoch)["driver"])
    except (StoreError, ValueError, KeyError):
        return ""  # it only informs people


def _stages(manifest: Manifest) -> Iterator[InspectedStage]:
    levels = {of.stage: of.level for of in manifest.shape.stages}
    marks = {of.stage: of for of in manifest.watermarks}
    named = [of.stage for of in manifest.shape.stages] + [of.stage for of in manifest.watermarks]
    named += [of.stage for of in manifest.holds] + [of.stage for of in manifest.residuals]
    for stage in dict.fromkeys(named):
        mark = marks.get(stage)
        yield InspectedStage(
            stage=stage,
            level=levels.get(stage),
            upstream=mark.upstream if mark else None,
            input=mark.input if mark else None,
            outputs=mark.outputs if mark else (),
            holds=tuple(of for of in manifest.holds if of.stage == stage),
            residuals=tuple(of for of in manifest.residuals if of.stage == stage),
        )


def _levels(manifest: Manifest) -> Iterator[InspectedLevel]:
    for level in sorted({shard.level for shard in manifest.shards}):
        shards = [shard for shard in manifest.shards if shard.level == level and shard.files]
        files: list[ShardFile] = [file for shard in shards for file in shard.files]
        sizes = {shard.shard: sum(file.size for file in shard.files) for shard in shards}
        largest = max(sizes, key=lambda shard: sizes[shard], default=0)
        yield InspectedLevel(
            level=level,
            shards=len(shards),
            files=len(files),
            entries=sum(file.entries for file in files),
            tombstones=sum(file.tombstones for file in files),
            size=sum(sizes.values()),
            largest=largest,
            largest_size=sizes.get(largest, 0),
        )


def _micro_batches(
    blobs: DurableBlobs, micro_batch: int, number: int, damaged: list[str], *, to_floor: bool
) -> Iterator[MicroBatchReport]:
    """Yield a number of micro-batches, from this one down. Errors of unreadable ones go to `damaged`, on request down
    to the floor.

    SUBTLE: for a missing one, the floor is read after it was missed: a driver may be sweeping.
    """
    first = max(micro_batch - number + 1, 0)
    for at in range(micro_batch, (min(first, _floor(blobs)) if to_floor else first) - 1, -1):
        try:
            manifest = read_manifest(blobs, at)
        except MissingFileError as e:
            if at < _floor(blobs):
                return  # it was swept, as all earlier ones
            damaged.append(
                f"{e.message}\n  what to do: restore the file from a backup; no other micro-batch needs it. But while "
                "it is one of those that are kept, a new driver sweeps nothing, and needs the oldest one to start"
            )
            continue
        except (DamagedFileError, NewerFormatError) as e:
            damaged.append(
                f"{e.message}\n  what to do: restore the file from a backup; no other micro-batch needs it. But no "
                "file of state is swept while it is one of those that are kept"
            )
            continue
        if at < first:
            continue
        files = [(file.name, file.size) for shard in manifest.shards for file in shard.files]
        files += [(side.name, side.size) for side in manifest.side_files]
        own = (manifest.micro_batch, manifest.epoch)
        yield MicroBatchReport(
            micro_batch=manifest.micro_batch,
            epoch=manifest.epoch,
            kind=str(manifest.kind),
            mode=str(manifest.mode),
            time=manifest.time,
            written=sum(
                size for name, size in files if (by := parse_written(name)) and (by.micro_batch, by.epoch) == own
            ),
            committables=len(manifest.committables),
        )


def _floor(blobs: DurableBlobs) -> int:
    return floor_below(blobs, newest_epoch(blobs))


def _damaged_floors(blobs: DurableBlobs) -> Iterator[str]:
    for name in read_floors(blobs, newest_epoch(blobs)).damaged:
        yield f"'{name}' in '{blobs}' is damaged\n  what to do: nothing; the existing manifests replace it"
