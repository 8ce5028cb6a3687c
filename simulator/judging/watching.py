"""The watcher of a simulated job's store: it examines each manifest right after its commit.

Owns the invariants of commits, and the outputs that were really published. Reads the stored bytes directly, without the
simulated faults. Must not know drivers.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from arcbeam.engine.coordinator import Command, Event, Propose
from arcbeam.engine.protocol.reports import StageReport
from arcbeam.engine.rows import keyspace
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW
from arcbeam.store.log.chain import read_manifest
from arcbeam.store.manifest.names import manifest_name
from arcbeam.store.manifest.values import Manifest, ManifestKind, contradictions
from arcbeam.store.shards.compaction import scan
from arcbeam.streaming.driverstate import progress_of
from arcbeam.streaming.status.snapshot import snapshot_of
from arcbeam.testing.blobs import MemoryBlobs
from simulator.judging import amounts, firing, lateness, reference, results, sideinputs
from simulator.judging.firing import MicroBatchRun
from simulator.judging.observing import Observations
from simulator.judging.records import Broken, Out, Part, Record
from simulator.judging.reference import Item, Items, Reference
from simulator.judging.requests import RequestChecks
from simulator.judging.results import items_of
from simulator.scenario.kinds import Source
from simulator.scenario.plans import Pipeline

_COUNTED = 7
"""Every seventh commit is compared with the rows that its stages keep."""
_MOST_IDLE = 5
"""The longest allowed series of micro-batches that do nothing. A longer one is a busy loop. 150 seeds had at most 1."""
_FOR_EVER = frozenset(
    {
        keyspace.RowKind.FORMAT,
        keyspace.RowKind.CLOCK,
        keyspace.RowKind.OUTPUT,
        keyspace.RowKind.ARRIVALS,
        keyspace.RowKind.KEY_RANGES,
    }
)
_OF_ONE_KEY = frozenset(
    {keyspace.RowKind.KEYED, keyspace.RowKind.PROCESSING, keyspace.RowKind.SORTED, keyspace.RowKind.RESIDUAL}
)
_GLOBAL_CELL = keyspace.part(GLOBAL_WINDOW.ordered(), keyspace.NAME_LIMIT) + bytes((keyspace.Section.CELL,))
_GLOBAL_KEY = _GLOBAL_CELL[:-1] + bytes((keyspace.Section.KEY,))


class Watcher:
    """Watches one store.

    Args:
        pipeline: the pipeline of the job.
        blobs: the store below the simulated faults.
        parts: the committables that may be published, by id.
        tell: adds a line to the story.
        note: counts a notable event.

    Attributes:
        requests: the requests to the job.
        head: the newest manifest.
        published: ids of all published committables.
        drained: a drain has begun.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        blobs: MemoryBlobs,
        parts: dict[bytes, Part],
        tell: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._tell = tell
        self._pipeline, self._blobs, self._parts = pipeline, blobs, parts
        self.head: Manifest | None = None
        # SUBTLE: includes abandoned micro-batches. They count again if a savepoint among them is resumed.
        self._every: dict[int, tuple[bytes, ...]] = {}
        self.published: dict[bytes, None] = {}
        self.drained = False
        self.commits = 0
        self._committed: set[bytes] = set()
        self._read: dict[int, tuple[bytes, Manifest]] = {}
        self._ledger = Ledger(pipeline)
        self._observations = Observations(pipeline)
        self.requests = RequestChecks(note)
        self._note = note
        # By epoch and micro-batch of each proposal: the stages and shards with leftover work; None if the proposal has
        # no reports. And the run of each micro-batch that was run and committed.
        self._leftover: dict[tuple[int, int], frozenset[tuple[str, int]] | None] = {}
        self._ran: dict[int, MicroBatchRun] = {}
        self._idle = 0

    def handled(self, epoch: int, event: Event, commands: Sequence[Command]) -> None:
        """Check the commands with which the driver of an epoch has answered an event."""
        self.requests.handled(epoch, event, commands)
        for command in commands:
            if isinstance(command, Propose):
                left = ((stage.stage, stage.shard) for of in command.reports for stage in of.stages if stage.leftover)
                self._leftover[epoch, command.micro_batch] = frozenset(left) if command.reports else None
                if command.reports:
                    self._check_idle(command)

    def _check_idle(self, proposed: Propose) -> None:
        """Check that there is no long series of micro-batches that do nothing."""
        places = [stage for report in proposed.reports for stage in report.stages]
        self._idle = 0 if any(map(_did_something, places)) else self._idle + 1
        if self._idle > _MOST_IDLE:
            pending = [at for at in places if at.leftover or at.awaited or at.next_due is not None] or places
            raise Broken(
                f"busy loop: {self._idle} micro-batches in a row, up to {proposed.micro_batch}, did nothing: "
                + "; ".join(map(_requests, pending))
            )

    def counting(self, head: Manifest | None = None) -> dict[int, tuple[bytes, ...]]:
        """Return the committables of all micro-batches that led to a manifest (default: the head), by micro-batch."""
        end = head or self.head
        return {
            micro_batch: ids
            for micro_batch, ids in self._every.items()
            if end is not None and end.contains(micro_batch)
        }

    def all_records(self) -> list[Record]:
        """Return the records of all micro-batches that count, in order."""
        micro_batches = sorted(self.counting().items())
        return [record for _, ids in micro_batches for id in ids for record in self._parts[id].records]

    def begin_at(self, manifest: Manifest, records: Mapping[int, tuple[bytes, ...]], other: Watcher) -> None:
        """Start from the manifest of a copied store; `records` are the micro-batches of the original that count."""
        self.head = manifest
        self._every, self._ran = dict(records), other._ran.copy()
        self._committed = {id for ids in records.values() for id in ids}
        self.published = dict.fromkeys(self._committed)
        self._recount()

    def look(self) -> int:
        """Examine all new manifests, and return their number."""
        count = 0
        while True:
            micro_batch = self.head.micro_batch + 1 if self.head else 0
            if manifest_name(micro_batch) not in self._blobs.data:
                return count
            self._take(read_manifest(self._blobs, micro_batch))
            count += 1

    def publish(self, id: bytes) -> None:
        """Record that a committable was published. Publishing it twice changes nothing."""
        if id not in self._committed:
            raise Broken(f"{id!r} was published, but never committed")
        self.published[id] = None

    def check_files(self) -> None:
        """Check that all files of the head and of its savepoints exist."""
        if self.head is None:
            return
        self._has_files(self.head)
        for pin in self.head.pins:
            if pin.micro_batch != self.head.micro_batch:
                if manifest_name(pin.micro_batch) not in self._blobs.data:
                    raise Broken(f"the manifest of savepoint {pin.name} (micro-batch {pin.micro_batch}) is missing")
                self._has_files(self._pinned(pin.micro_batch))

    def check_results(self) -> None:
        """Check, after the end of the job, that everything that counts was published and is correct."""
        lost = [id for ids in self.counting().values() for id in ids if id not in self.published]
        if lost:
            raise Broken(f"{lost} was committed, but never published")
        self._nothing_left()
        assert self.head is not None
        self._check_kept(self.head)
        begun = progress_of(self.head).begun
        parts = [[self._parts[id] for id in ids] for _, ids in sorted(self.counting().items())]
        sideinputs.check(self._pipeline, [sideinputs.Committed.of(some) for some in parts if some])
        results.check(self._pipeline, self.all_records(), drained=self.drained, begun=begun)
        for what, count in firing.check(self._pipeline, self._micro_batches()).items():
            for _ in range(count):
                self._note(what)

    def _micro_batches(self) -> list[tuple[MicroBatchRun, list[Record]]]:
        """Return all micro-batches that count and were run, in order."""
        return [
            (self._ran[micro_batch], self._of(ids))
            for micro_batch, ids in sorted(self.counting().items())
            if micro_batch in self._ran
        ]

    def _of(self, ids: Iterable[bytes]) -> list[Record]:
        return [record for id in ids for record in self._parts[id].records]

    def _pinned(self, micro_batch: int) -> Manifest:
        """Return the manifest of a savepoint; cached while its bytes are the same object."""
        data = self._blobs.data[manifest_name(micro_batch)]
        known = self._read.get(micro_batch)
        if known is None or known[0] is not data:
            known = self._read[micro_batch] = (data, read_manifest(self._blobs, micro_batch))
        return known[1]

    def _nothing_left(self) -> None:
        """Check that no state is left after all windows have expired.

        Exempt are the rows that exist once per shard for a stage or output, and cells of the global window, which only
        ends with the input.
        """
        assert self.head is not None
        for shard in self.head.shards:
            for key, _ in scan(self._blobs, shard.files):
                if key[0] not in _FOR_EVER and not _of_global_cell(key):
                    what = keyspace.RowKind(key[0]).name
                    raise Broken(f"the job has ended, but {what} of stage {key[1:3].hex()} is left: {key[3:]!r}")

    def _check_kept(self, manifest: Manifest) -> None:
        """Check that the reported sizes of each stage's state match its rows."""
        rows: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for shard in manifest.shards:
            for key, value in scan(self._blobs, shard.files):
                rows.setdefault(key[1:3], []).append((key, value))
        pipeline = self._pipeline
        numbers, specs = pipeline.numbers, pipeline.specs(pipeline.layout((1,) * pipeline.levels))
        for stage in snapshot_of(manifest).stages:
            found = amounts.counted(specs[stage.name], rows.get(numbers[stage.name].to_bytes(2, "big"), ()))
            if stage.kept is None or not amounts.same(stage.kept, found):
                raise Broken(
                    f"micro-batch {manifest.micro_batch} reports {stage.kept} of {stage.name}, but the rows are {found}"
                )

    def _check_moved(self, origin: Manifest, opening: Manifest) -> None:
        """Check that an opening changes no state, except that it moves the rows of stages to their new levels."""
        levels = {self._pipeline.numbers[of.stage].to_bytes(2, "big"): of.level for of in opening.shape.stages}
        now = {of.stage: of.level for of in opening.shape.stages}
        if all(now[of.stage] == of.level for of in origin.shape.stages):
            if opening.shards != origin.shards:
                raise Broken(
                    f"micro-batch {opening.micro_batch} opens on micro-batch {origin.micro_batch}, but has other shards"
                )
            return
        had, has = (
            {
                (shard.shard, key): (value, shard.level)
                for shard in of.shards
                for key, value in scan(self._blobs, shard.files)
                if len(key) > 2
            }
            for of in (origin, opening)
        )
        if has != {(shard, key): (value, levels[key[1:3]]) for (shard, key), (value, _) in had.items()}:
            raise Broken(
                f"micro-batch {opening.micro_batch} opens on micro-batch {origin.micro_batch}, "
                "but some state is not at the level of its stage"
            )
        if sum(1 for of in opening.shards for key, _ in scan(self._blobs, of.files) if len(key) > 2) > len(has):
            raise Broken(f"micro-batch {opening.micro_batch} has state of a stage at two levels")

    def _check_rescaled(self, origin: Manifest, opening: Manifest) -> None:
        """Check that an opening with another number of shards has the same rows of each key, and the same sizes."""
        self._note("state was rescaled")
        had, has = (
            [
                (key, value)
                for shard in of.shards
                for key, value in scan(self._blobs, shard.files)
                if key[0] in _OF_ONE_KEY and not key[3:].startswith(keyspace.END)
            ]
            for of in (origin, opening)
        )
        if sorted(had) != sorted(has):
            raise Broken(f"micro-batch {opening.micro_batch} rescales {origin.micro_batch}, but has other rows of keys")
        for _ in range(lateness.check(self._pipeline, self._blobs, origin, opening)):
            self._note("a stage with several watermarks was rescaled")
        self._check_kept(opening)

    def _has_files(self, manifest: Manifest) -> None:
        for name in manifest.file_names():
            if name not in self._blobs.data:
                raise Broken(f"micro-batch {manifest.micro_batch} needs {name}, but it does not exist")

    def _take(self, manifest: Manifest) -> None:
        head = self.head
        if manifest.kind is ManifestKind.OPENING:
            before = self._opened(head, manifest)
            origin = before
            if head is not None and origin is None:
                origin = self._pinned(manifest.abandoned[-1].first - 1)
            self.requests.opened(head, origin, manifest)
            if origin is not None and origin.shape.shards == manifest.shape.shards:
                self._check_moved(origin, manifest)
            elif origin is not None:
                self._check_rescaled(origin, manifest)
        else:
            before = head
            assert head is not None
            self.requests.real(head, manifest)
            if wrong := contradictions(head, manifest):
                raise Broken(f"micro-batch {manifest.micro_batch} was committed: {wrong}")
            if (
                head.mode in (CommitMode.DONE, CommitMode.DRAINED, CommitMode.SUSPENDED)
                and head.epoch == manifest.epoch
            ):
                raise Broken(f"micro-batch {manifest.micro_batch} follows the last one of its driver")
            if manifest.mode in (CommitMode.DRAINED, CommitMode.SUSPENDED) and all(
                pin.micro_batch != manifest.micro_batch for pin in manifest.pins
            ):
                raise Broken(
                    f"the job is {manifest.mode} with micro-batch {manifest.micro_batch}, but that is no savepoint"
                )
            self.commits += 1
            self._micro_batches_records(manifest)
            leftover = self._leftover[manifest.epoch, manifest.micro_batch]
            if leftover is not None:
                inputs = {of.stage: of.input for of in manifest.watermarks}
                ran = self._ran[manifest.micro_batch] = MicroBatchRun(
                    manifest.time, inputs, leftover, manifest.shape.shards
                )
                self._observations.add(ran, self._of(self._every[manifest.micro_batch]))
            self._observations.check(head, manifest)
            self._tell(f"micro-batch {manifest.micro_batch} is committed: {self._summary(manifest)}")
            if not self.commits % _COUNTED:
                self._check_kept(manifest)
        self._has_files(manifest)
        _monotone(before, manifest)
        rewound = before is None and head is not None
        self.head = manifest
        if rewound:
            # The drain is abandoned with its micro-batches.
            self.drained = manifest.mode is CommitMode.DRAINING
            self._recount()
        self.drained |= manifest.mode in (CommitMode.DRAINING, CommitMode.DRAINED)
        if not self.drained:
            self._ledger.check(manifest)

    def _summary(self, manifest: Manifest) -> str:
        """Describe the outputs, drops and files of a micro-batch."""
        counts: Counter[str] = Counter()
        for id in self._every[manifest.micro_batch]:
            for record in self._parts[id].records:
                counts[f"{record.stage} {'put out' if isinstance(record, Out) else 'dropped'}"] += len(record.atoms)
        known = set() if self.head is None else set(self.head.file_names())
        files = [file for shard in manifest.shards for file in shard.files if file.name not in known]
        merged = sum(file.first_micro_batch < file.last_micro_batch for file in files)
        written = [f"{len(files)} shard files"] + ([f"{merged} of them merged"] if merged else [])
        return ", ".join([*(f"{what} {count}" for what, count in counts.items()), *written])

    def _opened(self, head: Manifest | None, manifest: Manifest) -> Manifest | None:
        if head is None:
            return None
        if manifest.parent != head.token or manifest.epoch <= head.epoch:
            raise Broken(
                f"micro-batch {manifest.micro_batch} of epoch {manifest.epoch} opens on "
                f"{head.micro_batch} of epoch {head.epoch}"
            )
        if manifest.abandoned == head.abandoned:
            return head
        return None

    def _recount(self) -> None:
        self._ledger, self._observations = Ledger(self._pipeline), Observations(self._pipeline)
        self._ledger.add(self.all_records())
        for ran, records in self._micro_batches():
            self._observations.add(ran, records)

    def _micro_batches_records(self, manifest: Manifest) -> None:
        ids = tuple(each.payload for each in manifest.committables)
        for id in ids:
            part = self._parts[id]
            of = part.micro_batch, part.epoch, part.time
            if id in self._committed or of != (manifest.micro_batch, manifest.epoch, manifest.time):
                raise Broken(
                    f"{id!r} is committed with micro-batch {manifest.micro_batch} of epoch {manifest.epoch}, "
                    f"but was made for {of}"
                )
            self._committed.add(id)
        self._every[manifest.micro_batch] = ids
        if manifest.mode not in (CommitMode.DRAINING, CommitMode.DRAINED) and not self.drained:
            self._ledger.add([record for id in ids for record in self._parts[id].records])


class Ledger:
    """The expected outputs that are still missing, for each port whose output follows from the events."""

    def __init__(self, pipeline: Pipeline) -> None:
        events = {stage.name: stage.kind.events for stage in pipeline.stages if isinstance(stage.kind, Source)}
        whole = Reference(pipeline, events)
        self._fair = reference.honest(pipeline)
        self._left: dict[Port, Items] = {
            port: items.copy() for port, items in whole.outputs.items() if port.stage in whole.sure
        }
        # The earliest expected output of each port first. Complete entries are removed when they reach the front.
        self._ahead: dict[Port, list[tuple[Timestamp, Item]]] = defaultdict(list)
        for port, items in self._left.items():
            self._ahead[port] = sorted((item.time, item) for item in items)

    def add(self, records: list[Record]) -> None:
        """Subtract the outputs of a committed micro-batch."""
        for port, items in items_of(records).items():
            left = self._left.get(port)
            if left is None:
                continue
            for item, count in items.items():
                left[item] -= count
                if left[item] < 0:
                    raise Broken(f"{port} has put out {item} once too often, or it was never expected")

    def check(self, manifest: Manifest) -> None:
        """Check that no watermark has passed a missing output."""
        marks = {Port(of.stage, out.output): out.watermark for of in manifest.watermarks for out in of.outputs}
        for port, ahead in self._ahead.items():
            if port.stage not in self._fair:
                continue
            while ahead and not self._left[port][ahead[0][1]]:
                heapq.heappop(ahead)
            if ahead and port in marks and marks[port] > ahead[0][0]:
                raise Broken(f"{port} is at {marks[port]}, but {ahead[0][1]} is still missing")


def _requests(at: StageReport) -> str:
    wants = [f"requests a micro-batch at {at.next_due}"] if at.next_due is not None else []
    wants += ["has leftover work"] if at.leftover else []
    wants += [f"waits for {each.port}" for each in at.awaited]
    return f"{at.stage} in shard {at.shard} {', '.join(wants) or 'requests nothing'}"


def _did_something(at: StageReport) -> bool:
    counts = at.counts
    return any((counts.read, counts.written, counts.fired, counts.resumed, counts.unblocked, counts.late, counts.made))


def _monotone(before: Manifest | None, now: Manifest) -> None:
    if before is None:
        return
    was = {of.stage: of for of in before.watermarks}
    for of in now.watermarks:
        old = was.get(of.stage)
        if old is None:
            continue
        outputs = {out.output: out.watermark for out in old.outputs}
        if (
            of.upstream < old.upstream
            or of.input < old.input
            or any(out.watermark < outputs[out.output] for out in of.outputs)
        ):
            raise Broken(f"a watermark of {of.stage} fell with micro-batch {now.micro_batch}")


def _of_global_cell(row: bytes) -> bool:
    if row[0] != keyspace.RowKind.KEYED:
        return False
    _, _, rest = row[3:].partition(keyspace.END)
    return rest.startswith((_GLOBAL_CELL, _GLOBAL_KEY))
