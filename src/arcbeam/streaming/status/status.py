"""Where a job stands, for people and programs: its stages, what each watermark waits for, and what would free it.

Owns its figures; why watermarks are where they are is `reasons`'. All of it is in one manifest: so it can be told of a
running job and of a folder alone. Must not know where that manifest is from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, behind_shown
from arcbeam.store.log.drivernote import DriverNote
from arcbeam.store.log.troublenote import Trouble
from arcbeam.store.manifest.values import ENDED, Kind, Manifest
from arcbeam.streaming.driverstate import progress_of, times_of
from arcbeam.streaming.status.reasons import Cause, Reasons
from arcbeam.streaming.status.snapshot import Since, standing_of

_TOLD: Final = 4
"""So much of what is left to do is in a line."""

_PARTS: Final = ("seconds", "plan", "spark", "user", "commit")


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """An output of a stage.

    Attributes:
        output: its name.
        watermark: of it.
        since: when the watermark came there; None if it was not kept.
        elements, bytes: that left it in the micro-batch; what goes to two stages by two ways counts twice.
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
        level: where it runs.
        upstream, input: its watermarks.
        input_since: when the input watermark came there; None if it was not kept.
        outputs: of it.
        why: the way from its input watermark to what keeps it, in a line; "" if nothing does.
        micro-batch, total: what it did in the newest micro-batch, and since the job began.
        read_rate, written_rate: elements a second that came and were put out, in the time of `Status.rate`.
        bytes_in: that came to it in the micro-batch.
        restrictions: that are not done.
        backlog: their sizes' sum, in whatever unit their DoFns have.
        behind: microseconds from its input watermark to the time of the job; None if that is at the beginning or the
            end of time.
        next_event, next_due: when what waits has its turn, in event time and by the clock; None if nothing does.
        leftover: in how many shards the micro-batch ended before the work.
        parked: what elements wait for, in words.
        state_rows: in the files of its state; what was written again counts again until files are merged.
        state_bytes: of these: their keys and values.
        kept: how much it keeps: `keys`, and the fields of `arcbeam.engine.state.statemetrics.StateMetrics`; None if it
            was not counted.
    """

    stage: str
    level: int
    upstream: Timestamp
    input: Timestamp
    input_since: Since | None
    outputs: tuple[OutputStatus, ...]
    why: str = ""
    micro_batch: Mapping[str, Any] = field(default_factory=dict)
    total: Mapping[str, Any] = field(default_factory=dict)
    bytes_in: int = 0
    restrictions: int = 0
    backlog: float = 0.0
    next_event: Timestamp | None = None
    next_due: Timestamp | None = None
    leftover: int = 0
    parked: tuple[str, ...] = ()
    state_rows: int = 0
    state_bytes: int = 0
    behind: Duration | None = None
    read_rate: float | None = None
    written_rate: float | None = None
    kept: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A job after a micro-batch.

    Attributes:
        micro_batch: the newest.
        mode: how the job stands with it.
        time: its recorded time.
        watermark: the earliest output watermark of all stages.
        behind: microseconds from there to `time`; None if the watermark is at the beginning or the end of time.
        elapsed: microseconds since the micro-batch before; None if it was not kept.
        rate: elements a second that sources (splittable DoFns) have put out in that time, or in what the micro-batch
            took if that is longer (behind a pause the micro-batch before is one of nothing); None if it was not kept.
        restrictions, backlog: that are not done, and their sizes' sum.
        seconds: what the driver has measured of the micro-batch: `seconds` that it took, of which `plan`, `spark` and
            `user` (code, and what is around it in transforms), and `commit` of the micro-batch before; empty if it was
            not kept.
        stages: producers first.
        causes: why watermarks stand: those that keep something downstream first, then those that stand longest.
        state_bytes: of all files of state, by level.
        state_entries: rows in them; what was written again counts again until files are merged.
        due: when there is something to do by the clock, or was already when the micro-batch ended; None if it waits for
            nothing but what comes.
        driver: what its driver was doing a few seconds ago; None if it has none, or that is not known.
        name: of the job; "" if none was kept.
        committed: when the micro-batch was committed, by the driver's clock, if the script of a TestStream moves the
            job's clock; None of all other jobs: it is `time`.
    """

    micro_batch: int
    mode: str
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
    committed: Timestamp | None = None


def with_driver(status: Status, note: DriverNote | None) -> Status:
    """A status with what the driver was doing; what keeps that from going on is a cause."""
    if note is None or not note.trouble:
        return replace(status, driver=note)
    cause = Cause("driver", "", None, "", None, status.watermark, None, None, False, note.trouble, note.frees)
    return replace(status, driver=note, causes=(cause, *status.causes))


def with_trouble(status: Status, trouble: Trouble | None) -> Status:
    """Return a status whose first cause is why the next micro-batch fails and is tried again, if it is."""
    if trouble is None:
        return status
    cause = Cause(
        kind="failure",
        stage=trouble.stage,
        shard=None,
        name="",
        key=None,
        time=status.watermark,
        since=None,
        due=None,
        by_clock=False,
        text=f"micro-batch {trouble.micro_batch}: {trouble.why}",
        frees="a try of the micro-batch succeeds; the job fails after the last try",
        stages=tuple(stage.stage for stage in status.stages),
    )
    return replace(status, causes=(cause, *status.causes))


def as_record(status: Status) -> dict[str, Any]:
    """A status as JSON's values; times are microseconds since 1970."""
    return asdict(status)


def total_state_metrics(status: Status) -> dict[str, int]:
    """How many keys, timers and waiting elements all stages have that count them."""
    kept = [stage.kept for stage in status.stages if stage.kept is not None]
    names = {"keys": ("keys",), "timers": ("event_timers", "clock_timers"), "waiting": ("parked", "ordered")}
    return {name: sum(each[of] for each in kept for of in fields) for name, fields in names.items()}


def undone(record: Mapping[str, Any]) -> str:
    """What a job that drains has still to do, as of its newest micro-batch, in a line; "" if nothing is known of it.

    Args:
        record: of a status; one of another version may have less.
    """
    doing: list[str] = []
    for stage in record.get("stages", ()):
        name, micro_batch = repr(stage["stage"]), stage.get("micro_batch") or {}
        if live := stage.get("restrictions"):
            doing.append(f"{live} restriction(s) of {name} not done (size {stage['backlog']:g})")
        if shards := stage.get("leftover"):
            doing.append(f"{name} has more than a micro-batch's time takes, in {shards} shard(s)")
        if fired := micro_batch.get("fired"):
            doing.append(f"{fired:,} timer(s) of {name} fired")
        elif waits := [stage[at] for at in ("next_event", "next_due") if stage.get(at) is not None]:
            doing.append(f"{name} waits until {shown_time(min(waits))}")
        if stage.get("parked"):
            doing.append(f"elements of {name} wait until {stage['parked'][0]}")
    more = [f"and {len(doing) - _TOLD} more"] if len(doing) > _TOLD else []
    # Which restriction it is, or timer, is said of what a watermark waits for.
    causes = (each for each in record.get("causes", ()) if each.get("text") and each.get("decides", True))
    cause = next((each["text"].partition(": ")[2] for each in causes), "")
    return "; ".join([*doing[:_TOLD], *more, *([cause] if cause else [])])


def in_words(told: Mapping[str, Any]) -> str:
    """The figures of the line of a micro-batch that people read beside its elements and watermark."""
    behind = "" if told["behind"] is None else f", {behind_shown(told['behind'] / 1e6)}"
    rate = "" if told["rate"] is None else f", {told['rate']:,.0f} elements/s"
    counts = {"late": told["late"], "keys": told["keys"], "timers": told["timers"], "waiting": told["waiting"]}
    there = "".join(f", {count:,} {name}" for name, count in counts.items() if count)
    return f"backlog {told['backlog']:g}{rate}{behind}{there}"


def status_of(manifest: Manifest, name: str = "") -> Status:
    """Where a job stands with a manifest; `name` is the job's."""
    standing = standing_of(manifest)
    levels = {of.stage: of.level for of in manifest.shape.stages}
    there = {of.stage for of in manifest.watermarks}
    # A pipeline that has just gone on may have fewer stages than the one that left it.
    standing = replace(standing, stages=tuple(of for of in standing.stages if of.name in there))
    kept = {of.name: of for of in standing.stages}
    marks = standing.marks(times_of(manifest))
    reasons = Reasons(standing, marks, manifest.time)
    # SUBTLE: a commit without a micro-batch is told by what the micro-batch before it did, and is later.
    elapsed = None if standing.before is None else Duration(standing.time - standing.before)
    took = round(standing.figures.get("seconds", 0.0) * 1e6)

    def rate_of(elements: int) -> float | None:
        return None if not elapsed else round(elements * 1e6 / max(elapsed, took), 1)

    left: Mapping[str, Mapping[str, Any]] = standing.figures.get("outputs", {})
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
        status = StageStatus(
            of.stage, levels.get(of.stage, 0), of.upstream, of.input, stage.input if stage else None, outputs
        )
        rows, size = state.get(of.stage, (0, 0))
        status = replace(status, state_rows=rows, state_bytes=size, behind=_behind(manifest, of.input))
        if stage is not None:
            status = replace(
                status,
                why="" if manifest.mode in ENDED else reasons.add(stage),
                micro_batch=asdict(stage.micro_batch),
                total=asdict(stage.total),
                read_rate=rate_of(stage.micro_batch.read),
                written_rate=rate_of(stage.micro_batch.written),
                kept=None if stage.kept is None else {"keys": stage.kept.keys, **asdict(stage.kept)},
                bytes_in=sum(left.get(port.stage, {}).get(port.output, (0, 0))[1] for port in stage.reads),
                restrictions=stage.live,
                backlog=stage.size,
                next_event=stage.next_event,
                next_due=stage.next_due,
                leftover=stage.leftover,
                parked=tuple(
                    f"{each.port} has something for them, or is past {shown_time(each.until)}" for each in stage.awaited
                ),
            )
        stages.append(status)
    outputs_at = [out.watermark for of in stages for out in of.outputs] or [of.input for of in stages]
    watermark = min(outputs_at, default=MIN_TIMESTAMP)
    made = sum(of.micro_batch.made for of in standing.stages)
    return Status(
        manifest.micro_batch,
        str(manifest.mode),
        manifest.time,
        watermark,
        _behind(manifest, watermark),
        elapsed,
        rate_of(made),
        sum(of.live for of in standing.stages),
        sum(of.size for of in standing.stages),
        {name: standing.figures[name] for name in _PARTS if name in standing.figures},
        tuple(stages),
        reasons.causes(),
        _by_level(manifest, "size"),
        _by_level(manifest, "entries"),
        _due(manifest, stages),
        name=name,
        committed=_timestamp(standing.figures.get("committed")),
    )


def _timestamp(value: Any) -> Timestamp | None:
    return None if value is None else Timestamp(int(value))


def _due(manifest: Manifest, stages: Sequence[StageStatus]) -> Timestamp | None:
    # Who has opened a job runs a micro-batch at once.
    if manifest.kind == Kind.OPENING or any(of.leftover for of in stages):
        return manifest.time
    return min((of.next_due for of in stages if of.next_due is not None), default=None)


def _behind(manifest: Manifest, watermark: Timestamp) -> Duration | None:
    known = MIN_TIMESTAMP < watermark < MAX_TIMESTAMP
    return Duration(manifest.time - watermark) if known else None


def _by_stage(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """Rows of each stage's state, and their bytes."""
    names = {number.to_bytes(2, "big"): name for name, number in progress_of(manifest).numbers.items()}
    found: dict[str, tuple[int, int]] = {}
    for of in (of for shard in manifest.shards for file in shard.files for of in file.owned):
        # A row that is nobody's says which format the shard has.
        if (name := names.get(of.owner)) is not None:
            rows, size = found.get(name, (0, 0))
            found[name] = rows + of.entries, size + of.size
    return found


def _by_level(manifest: Manifest, what: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for shard in manifest.shards:
        found[shard.level] = found.get(shard.level, 0) + sum(getattr(file, what) for file in shard.files)
    return found
