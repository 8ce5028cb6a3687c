"""The status of a job, for people and programs: its stages, what holds each watermark, and what would release it.

Owns its figures; `reasons` explains watermarks. Everything is in one manifest, so the status of a running job and of a
folder alone are the same. Must not know where that manifest is from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from operator import attrgetter
from statistics import median_low
from typing import Any, Final

from arcbeam.engine.protocol.reports import Counts
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.store.log.drivernote import DriverNote
from arcbeam.store.log.endnote import EndNote
from arcbeam.store.log.troublenote import TroubleNote
from arcbeam.store.manifest.values import ENDED, Manifest, ManifestKind
from arcbeam.streaming.driverstate import progress_of, times_of
from arcbeam.streaming.status import moment
from arcbeam.streaming.status.plain import plain
from arcbeam.streaming.status.reasons import Cause, CauseKind, Reasons
from arcbeam.streaming.status.recentcounts import Mark, gained
from arcbeam.streaming.status.snapshot import Since, snapshot_of

LARGEST_SHARDS_SHOWN: Final = 16
"""Of how many shards a status says the size of a stage's state."""

PARTS: Final = ("seconds", "plan", "spark", "user", "commit")
"""The measured parts of a micro-batch: the whole without its commit, then its parts in order."""

_NOTHING: Final = Mark(0, 0, 0)


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """An output of a stage.

    Attributes:
        output: its name.
        watermark: its watermark.
        since: when the watermark reached its value; None if it was not stored.
        elements, bytes: its output in the micro-batch; output to two stages in two ways counts twice.
        least, mean, most: of the event times of these; None: unknown.
    """

    output: str
    watermark: Timestamp
    since: Since | None
    elements: int = 0
    bytes: int = 0
    least: Timestamp | None = None
    most: Timestamp | None = None
    mean: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A stage.

    Attributes:
        stage: its name.
        level: its level.
        upstream, input: its watermarks.
        input_since: when the input watermark reached its value; None if it was not stored.
        outputs: its outputs.
        why: the chain from its input watermark to what holds it, in a line; "" if nothing does.
        micro_batch, total: its counters in the newest micro-batch, and since the job began; None: not counted yet.
        read_rate, written_rate, made_rate: elements per second that it reads, outputs, and that its source emits; see
            `moment.rate`.
        recent: its counters in `Status.window`; None: not counted yet.
        bytes_in: its input in the micro-batch.
        restrictions: the number of restrictions that are not done.
        backlog: their total size, in their DoFns' own units.
        behind: see `moment.watermark_gap`, of its input watermark.
        next_event, next_due: when its first waiting work is due, in event time and by the clock; None if there is none.
        leftover: the number of shards in which the micro-batch ended before the work.
        blocked: what blocked elements wait for, as text.
        state_rows: rows in the files of its state; a rewritten row counts again until files are merged.
        state_bytes: the size of their keys and values.
        state_shards: the number of shards with rows of it.
        state_median: the bytes of the median of these.
        state_largest: the numbers and bytes of up to `LARGEST_SHARDS_SHOWN` of these, the largest first.
        kept: the size of its state; None if it was not counted.
    """

    stage: str
    level: int
    upstream: Timestamp
    input: Timestamp
    input_since: Since | None
    outputs: tuple[OutputStatus, ...]
    why: str = ""
    micro_batch: Counts | None = None
    total: Counts | None = None
    bytes_in: int = 0
    restrictions: int = 0
    backlog: float = 0.0
    next_event: Timestamp | None = None
    next_due: Timestamp | None = None
    leftover: int = 0
    blocked: tuple[str, ...] = ()
    state_rows: int = 0
    state_bytes: int = 0
    state_shards: int = 0
    state_median: int = 0
    state_largest: tuple[tuple[int, int], ...] = ()
    behind: Duration | None = None
    read_rate: float | None = None
    written_rate: float | None = None
    made_rate: float | None = None
    recent: Mark | None = None
    kept: StateMetrics | None = None

    @property
    def earliest(self) -> Timestamp:
        """The earliest watermark of the stage: that of its input, or of an output that is held."""
        return min((self.input, *(out.watermark for out in self.outputs)))


@dataclass(frozen=True, slots=True)
class Status:
    """A job after a micro-batch. Its gaps and rates are those of a moment, at first that of the commit; see `moment`.

    Attributes:
        micro_batch: the newest micro-batch.
        mode: the mode of its commit.
        time: its recorded time: its start.
        watermark: the minimum output watermark of all stages.
        behind: see `moment.watermark_gap`, of that watermark.
        elapsed: microseconds from the recorded time before to `time`; None if it was not stored.
        rate: elements per second that sources (splittable DoFns) emit; see `moment.rate`.
        restrictions, backlog: the number of unfinished restrictions, and their total size.
        seconds: the driver's measurements of the micro-batch: `seconds` in total, of which `plan`, `spark` and `user`
            (user code and its surroundings in transforms), and `commit` of the previous micro-batch; empty if they were
            not stored.
        stages: producers first.
        causes: what holds watermarks: first causes that hold something downstream, then those that have not moved for
            longest.
        state_bytes: the size of all state files, by level.
        state_entries: the rows in them; a rewritten row counts again until files are merged.
        due: when there is work by the clock, or the end of the micro-batch if there was work then; None if it only
            waits for input.
        driver: what its driver was doing a few seconds ago; None if it has none, or if unknown.
        name: the name of the job; "" if none was stored.
        committed: when the newest manifest was committed, by its driver's clock.
        scripted: whether the script of a TestStream moves the job's clock: `time` is the script's.
        window: the time before the newest commit of which rates are; None: unknown.
        folder: that keeps the job's state; "": none, or unknown.
        ended: how its driver failed or was cancelled; None if it did not.
        job_graph: whether the folder has a job graph; None: unknown, as only the folder says it.
    """

    micro_batch: int
    mode: CommitMode
    time: Timestamp
    watermark: Timestamp
    behind: Duration | None
    elapsed: Duration | None
    rate: float | None
    restrictions: int
    backlog: float
    seconds: Mapping[str, float]
    stages: tuple[StageStatus, ...]
    causes: tuple[Cause, ...]
    state_bytes: Mapping[int, int]
    state_entries: Mapping[int, int]
    due: Timestamp | None = None
    driver: DriverNote | None = None
    name: str = ""
    committed: Timestamp = field(kw_only=True)
    scripted: bool = False
    window: Duration | None = None
    folder: str = ""
    ended: EndNote | None = None
    job_graph: bool | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.ended is not None or self.mode in ENDED

    @property
    def is_suspended(self) -> bool:
        """Whether the job is suspended."""
        return self.mode is CommitMode.SUSPENDED

    @property
    def has_begun(self) -> bool:
        """Whether a micro-batch has been committed: a driver's opening of its folder is none."""
        return bool(self.micro_batch) and self.elapsed is not None

    @property
    def is_stopped(self) -> bool:
        """Whether no driver runs the job any more: its clock stands at its last commit."""
        return self.ended is not None or self.mode in moment.STOPPED

    def clock(self, now: int) -> int:
        """Return the time by the job's clock: that of a TestStream is its script's.

        Args:
            now: the time by the clock.
        """
        return self.time if self.scripted else self.committed if self.is_stopped else now


def with_driver(status: Status, note: DriverNote | None) -> Status:
    """Return a status with the driver's activity; what keeps the driver from progressing is a cause."""
    if note is None or not note.trouble:
        return replace(status, driver=note)
    cause = Cause(CauseKind.DRIVER, "", status.watermark, None, note.trouble, note.released_when)
    return replace(status, driver=note, causes=(cause, *status.causes))


def with_trouble(status: Status, trouble: TroubleNote | None) -> Status:
    """Return a status whose first cause is why the next micro-batch fails and is tried again, if it is."""
    if trouble is None:
        return status
    number, why = trouble.micro_batch, trouble.why
    if not trouble.stage:
        why += ", in an unknown transform"
    elif trouble.stage not in why:
        why += f", in transform '{trouble.stage}'"
    cause = Cause(
        CauseKind.FAILURE,
        trouble.stage,
        status.watermark,
        Since(number, trouble.time),
        f"micro-batch {number}: {why}, since micro-batch {number} ({shown_time(trouble.time)})",
        "a try of the micro-batch succeeds; the job fails after the last try",
        stages=tuple(stage.stage for stage in status.stages),
    )
    return replace(status, causes=(cause, *status.causes))


def as_record(status: Status) -> dict[str, Any]:
    """Return a status as JSON values; times are microseconds since 1970. What only a folder says may be missing."""
    found: dict[str, Any] = plain(replace(status, stages=()))
    found["stages"] = tuple(map(stage_record, status.stages))
    if not status.folder:
        del found["folder"]
    if status.job_graph is None:
        del found["ended"], found["job_graph"]
    return found


def stage_record(stage: StageStatus) -> dict[str, Any]:
    """Return a stage as JSON values, as in the record of its job."""
    found: dict[str, Any] = plain(stage)
    found |= {name: found[name] or {} for name in ("micro_batch", "total")}
    found["recent"] = stage.recent._asdict() if stage.recent else {}
    if stage.kept is not None:
        found["kept"] = {"keys": stage.kept.keys, **found["kept"]}
    return found


def late_of(status: Status) -> int:
    """Return how many elements the newest micro-batch dropped because they were too late."""
    return sum(stage.micro_batch.late for stage in status.stages if stage.micro_batch)


def total_state_metrics(status: Status) -> dict[str, int]:
    """Return the numbers of keys, timers and waiting elements over all stages that count them."""
    kept = [stage.kept for stage in status.stages if stage.kept is not None]
    return {
        "keys": sum(of.keys for of in kept),
        "timers": sum(of.event_timers + of.clock_timers for of in kept),
        "waiting": sum(of.blocked + of.ordered for of in kept),
    }


def status_of(manifest: Manifest, name: str = "") -> Status:
    """Return the status of a job at a manifest; `name` is the job's."""
    snapshot = snapshot_of(manifest)
    levels = {of.stage: of.level for of in manifest.shape.stages}
    there = {of.stage for of in manifest.watermarks}
    # A pipeline that has just resumed the job may have fewer stages than the previous one.
    snapshot = replace(snapshot, stages=tuple(of for of in snapshot.stages if of.name in there))
    kept = {of.name: of for of in snapshot.stages}
    times = times_of(manifest)
    marks = snapshot.marks(times)
    reasons = Reasons(snapshot, marks, manifest.time)
    # SUBTLE: a commit without a micro-batch shows the figures of the micro-batch before it, and is later.
    elapsed = None if snapshot.before is None else Duration(snapshot.time - snapshot.before)
    figures = snapshot.figures
    scripted = bool(figures.get("scripted"))
    # An opening has only a recorded time. That of a micro-batch is its start, if it is not a script's.
    committed = figures.get("committed", manifest.time) if scripted else max(manifest.time, figures.get("committed", 0))
    left: Mapping[str, Mapping[str, Any]] = figures.get("outputs", {})
    state = _by_stage(manifest)
    stages = []
    for of in manifest.watermarks:
        stage = kept.get(of.stage)
        outputs = tuple(
            OutputStatus(
                out.output,
                out.watermark,
                stage.outputs.get(out.output) if stage else None,
                *left.get(of.stage, {}).get(out.output, ()),
            )
            for out in of.outputs
        )
        rows, sizes = state.get(of.stage, (0, {}))
        status = StageStatus(
            of.stage,
            levels.get(of.stage, 0),
            of.upstream,
            of.input,
            stage.input if stage else None,
            outputs,
            state_rows=rows,
            state_bytes=sum(sizes.values()),
            state_shards=len(sizes),
            state_median=median_low(sizes.values()) if sizes else 0,
            state_largest=tuple(nsmallest(LARGEST_SHARDS_SHOWN, sizes.items(), key=lambda each: (-each[1], each[0]))),
        )
        if stage is not None:
            status = replace(
                status,
                why="" if manifest.mode in ENDED else reasons.add(stage),
                micro_batch=stage.micro_batch,
                total=stage.total,
                recent=gained(stage.total, stage.recent, len(snapshot.recent)),
                kept=stage.kept,
                bytes_in=sum(left.get(port.stage, {}).get(port.output, (0, 0))[1] for port in stage.reads),
                restrictions=stage.live,
                backlog=stage.size,
                next_event=stage.next_event,
                next_due=stage.next_due,
                leftover=stage.leftover,
                blocked=tuple(
                    f"{each.port} has output for them, or is past {shown_time(each.until)}" for each in stage.awaited
                ),
            )
        stages.append(status)
    watermark = times.earliest
    causes = reasons.causes()
    if manifest.mode is CommitMode.DRAINING:
        # It fires all timers and ends all restrictions: what would release them otherwise need not happen.
        causes = tuple(replace(cause, released_when="the drain has finished what is left") for cause in causes)
    window = Duration(committed - snapshot.recent[0]) if snapshot.recent else None
    found = Status(
        manifest.micro_batch,
        manifest.mode,
        manifest.time,
        watermark,
        None,
        elapsed,
        None,
        sum(of.live for of in snapshot.stages),
        sum(of.size for of in snapshot.stages),
        {name: figures[name] for name in PARTS if name in figures},
        tuple(stages),
        causes,
        _by_level(manifest, "size"),
        _by_level(manifest, "entries"),
        _due(manifest, stages),
        name=name,
        committed=committed,
        scripted=scripted,
        window=window,
    )
    return at_moment(found, committed)


def at_moment(status: Status, now: int) -> Status:
    """Return a status with the gaps and rates of a moment; see `moment`.

    Args:
        status: of a job.
        now: the time by the clock. The clock of a job with a TestStream is the script's.
    """
    clock = status.clock(now)
    now = status.committed if status.is_stopped else now
    window, since = status.window, max(0, now - status.committed)

    def of(stage: StageStatus) -> StageStatus:
        read, written, made = stage.recent or _NOTHING
        return replace(
            stage,
            behind=moment.watermark_gap(stage.input, clock),
            read_rate=moment.rate(read, window, since),
            written_rate=moment.rate(written, window, since),
            made_rate=moment.rate(made, window, since),
        )

    runs = status.mode is CommitMode.RUNNING
    found = replace(
        status,
        causes=tuple(_cause_at(cause, clock) if runs else cause for cause in status.causes),
        behind=moment.watermark_gap(status.watermark, clock),
        rate=moment.rate(sum((stage.recent or _NOTHING).made for stage in status.stages), window, since),
        stages=tuple(map(of, status.stages)),
    )
    return without_rates(found) if status.is_stopped else found


def without_rates(status: Status) -> Status:
    """Return the status of a job without a driver: nothing is processed, so rates are unknown."""
    stages = (replace(stage, read_rate=None, written_rate=None, made_rate=None) for stage in status.stages)
    return replace(status, rate=None, stages=tuple(stages))


def _cause_at(cause: Cause, clock: int) -> Cause:
    """Return a cause that does not wait for a time in the past."""
    # A restriction that is polled is due by the clock, too, but waits for something else.
    is_due = cause.due is not None and cause.due <= clock and cause.released_when.startswith(moment.CLOCK_REACHES)
    return replace(cause, released_when=moment.DUE_NOW) if is_due else cause


class StatusAt:
    """The status of a job at its newest manifest, made once for all who request it. Callable from several threads.

    Args:
        name: the job's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: tuple[Manifest, Status] | None = None

    def __call__(self, head: Manifest) -> Status:
        """Return the status at a manifest; callers must not change it."""
        made = self._made
        if made is None or made[0] is not head:
            made = self._made = head, status_of(head, self._name)
        return made[1]


def _due(manifest: Manifest, stages: Sequence[StageStatus]) -> Timestamp | None:
    # A driver that has opened a job runs a micro-batch at once.
    if manifest.kind == ManifestKind.OPENING or any(of.leftover for of in stages):
        return manifest.time
    return min((of.next_due for of in stages if of.next_due is not None), default=None)


def _by_stage(manifest: Manifest) -> dict[str, tuple[int, dict[int, int]]]:
    """Return the rows of each stage's state, and their bytes by shard."""
    names = {number.to_bytes(2, "big"): name for name, number in progress_of(manifest).numbers.items()}
    rows: dict[bytes, int] = {}
    sizes: dict[bytes, dict[int, int]] = {}
    for each in manifest.shards:
        shard = each.shard
        for of in each.sums.owned:
            owner = of.owner
            here = sizes.get(owner)
            if here is None:
                here, rows[owner] = sizes.setdefault(owner, {}), 0
            rows[owner] += of.entries
            here[shard] = here.get(shard, 0) + of.size
    # A row without a stage contains the shard's format.
    return {names[owner]: (rows[owner], by_shard) for owner, by_shard in sizes.items() if owner in names}


def _by_level(manifest: Manifest, what: str) -> dict[int, int]:
    found: dict[int, int] = {}
    value_of = attrgetter(what)
    for shard in manifest.shards:
        found[shard.level] = found.get(shard.level, 0) + value_of(shard.sums)
    return found
