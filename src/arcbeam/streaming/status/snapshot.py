"""The state of a job's stages at a commit, stored in its manifest: what holds each watermark, and since when.

Owns what is stored of all shards' reports, its format, and its conversion to the engine's reasons. It is small: it has
an entry for each stage, not for each shard or key. Must not know how it is shown (`status`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from arcbeam import documents
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.reports import COUNTED, Awaited, Counts, StageReport
from arcbeam.engine.state.statemetrics import NO_STATE, StateMetrics, together
from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holds import Hold, HolderKind, Release
from arcbeam.engine.watermarks.stages import StageFlow, Watermarks, WatermarkTimes
from arcbeam.model.observers import Observer, ObserverPaths, Policy
from arcbeam.model.timestamps import MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.store.manifest.values import Manifest, ManifestKind
from arcbeam.streaming.status.plain import plain
from arcbeam.streaming.status.recentcounts import Mark, mark_of, remembered

VERSION: Final = 1
"""Of the format of `Snapshot`."""


class Sort(StrEnum):
    """The sort of a limit."""

    PENDING = "p"
    """Pending work for an output, or for the stage if there is no output."""
    HOLD = "h"


@dataclass(frozen=True, slots=True)
class Limit:
    """The earliest limit of one sort over all shards of a stage.

    Attributes:
        shard: its shard.
        sort: its sort.
        output: the output that it limits; None: the input.
        what: the hold.
        waits_for: the side input that a blocked element waits for.
        quiet: it has not moved for as long as `idle_after` of an observer.
    """

    shard: int
    sort: Sort
    output: str | None
    what: Hold
    waits_for: Port | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Since:
    """The commit with which a watermark reached its value: its micro-batch and its time.

    The time is that of the commit; in a job with a TestStream it is the script's.
    """

    micro_batch: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage.

    Attributes:
        name: its name.
        reads: the outputs that it reads.
        shards: the number of its shards.
        input: since when its input watermark has its value.
        outputs: the same for each output.
        limits: what holds the watermarks.
        micro-batch, total: its counters in the micro-batch, and since the job began.
        live: the number of restrictions that are not done.
        size: their total size.
        next_event: its first event-time timer or waiting element.
        next_due: when its first timer or restriction is due by the clock.
        leftover: the number of shards whose budget ended before their work.
        awaited: what blocked elements wait for.
        kept: the size of its state.
        observed: the paths to those of its outputs that have observers upstream.
        recent: its counters at the last of `Snapshot.recent`, at all of them if it is old enough.
    """

    name: str
    reads: tuple[Port, ...]
    shards: int
    input: Since
    outputs: Mapping[str, Since]
    limits: tuple[Limit, ...] = ()
    micro_batch: Counts = field(default_factory=Counts)
    total: Counts = field(default_factory=Counts)
    live: int = 0
    size: float = 0.0
    next_event: Timestamp | None = None
    next_due: Timestamp | None = None
    leftover: int = 0
    awaited: tuple[Awaited, ...] = ()
    kept: StateMetrics = NO_STATE
    observed: Mapping[str, ObserverPaths] = field(default_factory=dict)
    recent: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All stages, producers first.

    Attributes:
        stages: each stage.
        time, before: the recorded times of the micro-batch and of the commit before it.
        figures: the driver's measurements of the micro-batch, by name; JSON values. `committed` is the time of its
            commit by the driver's clock, `scripted` whether a TestStream sets its recorded time.
        recent: the times of the commits at which counters are remembered; see `recentcounts`.
    """

    stages: tuple[StageSnapshot, ...] = ()
    time: Timestamp = MIN_TIMESTAMP
    before: Timestamp | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    recent: tuple[Timestamp, ...] = ()

    def encoded(self) -> bytes:
        """Return the value for a manifest."""
        stages = [_record(of) for of in self.stages]
        record = {
            "time": self.time,
            "before": self.before,
            "figures": dict(self.figures),
            "recent": self.recent,
            "stages": stages,
        }
        return documents.encode(VERSION, record)

    def renamed(self, names: Mapping[str, str]) -> Snapshot:
        """Return the snapshot with some stages renamed."""

        def port(of: Port) -> Port:
            return Port(names.get(of.stage, of.stage), of.output)

        def limit(of: Limit) -> Limit:
            return of if of.waits_for is None else replace(of, waits_for=port(of.waits_for))

        return replace(
            self,
            stages=tuple(
                replace(
                    of,
                    name=names.get(of.name, of.name),
                    reads=tuple(map(port, of.reads)),
                    limits=tuple(map(limit, of.limits)),
                    awaited=tuple(replace(each, port=port(each.port)) for each in of.awaited),
                )
                for of in self.stages
            ),
        )

    def without(self, removed: Container[str]) -> Snapshot:
        """Return the snapshot without some stages; a later stage of the same name begins again."""
        return replace(self, stages=tuple(of for of in self.stages if of.name not in removed))

    def marks(self, times: WatermarkTimes) -> Watermarks:
        """Return the driver's watermarks, for explanations of what holds them.

        Args:
            times: the watermarks of the same manifest.
        """
        ports = {Port(of.name, output) for of in self.stages for output in of.outputs}
        marks = Watermarks(
            (
                StageFlow(
                    of.name,
                    tuple(port for port in of.reads if port in ports),
                    tuple(of.outputs),
                    of.shards,
                    of.observed,
                )
                for of in self.stages
            ),
            times,
        )
        for of in self.stages:
            for shard, local in _locals(of).items():
                marks.report(of.name, shard, local)
        return marks


def snapshot_of(manifest: Manifest) -> Snapshot:
    """Return a manifest's snapshot; empty for a job's first one."""
    if not manifest.snapshot:
        return Snapshot()
    record = documents.decode(manifest.snapshot, VERSION, "the snapshot of a job's stages")
    stages, recent = tuple(map(_stage, record["stages"])), tuple(map(Timestamp, record["recent"]))
    return Snapshot(stages, record["time"], record["before"], record["figures"], recent)


def snapshot_after(
    head: Manifest,
    layout: Layout,
    reports: Mapping[str, Sequence[StageReport]],
    times: WatermarkTimes,
    now: Since,
    figures: Mapping[str, Any],
) -> Snapshot:
    """Return the snapshot after a micro-batch.

    Args:
        head: the manifest before the micro-batch.
        layout: the layout of the job.
        reports: the reports of the micro-batch, by stage.
        times: its watermarks.
        now: the micro-batch, and its recorded time.
        figures: measurements of it.
    """
    earlier = snapshot_of(head)
    had = {of.name: of for of in earlier.stages}
    scripted = bool(figures.get("scripted"))
    committed = max(now.time, Timestamp(figures.get("committed", now.time)))
    advanced = now if scripted else replace(now, time=committed)
    commits, is_marked = _marks(head, earlier, committed, scripted=scripted)
    before = {of.stage: of for of in head.watermarks}
    stages = []
    for placed in layout.stages:
        name, of = placed.name, reports.get(placed.name, ())
        known, marks = had.get(name), before.get(name)
        was = {out.output: out.watermark for out in marks.outputs} if marks else {}
        moved = known is None or marks is None or marks.input != times.inputs.get(name)
        outputs = {
            port.output: advanced
            if known is None or was.get(port.output) != times.outputs.get(port)
            else known.outputs.get(port.output, advanced)
            for port in placed.ports
        }
        micro_batch = _sum(report.counts for report in of)
        kept = known.kept if known else NO_STATE
        total = _sum((known.total, micro_batch)) if known else micro_batch
        stages.append(
            StageSnapshot(
                name,
                placed.flow.inputs,
                placed.flow.shards,
                advanced if moved or known is None else known.input,
                outputs,
                _remembering(known, _limits(of, placed.flow.outputs)),
                micro_batch,
                total,
                sum(report.restrictions.live for report in of),
                sum(report.restrictions.size for report in of),
                min((report.next_event for report in of if report.next_event is not None), default=None),
                min((report.next_due for report in of if report.next_due is not None), default=None),
                sum(report.leftover for report in of),
                tuple(sorted({awaited for report in of for awaited in report.awaited})),
                together((kept, *(report.kept for report in of))),
                placed.flow.observed,
                _marked(head, known, total if is_marked else None, len(commits)),
            )
        )
    return Snapshot(tuple(stages), now.time, head.time, figures, tuple(commits))


def _marks(
    head: Manifest, earlier: Snapshot, committed: Timestamp, *, scripted: bool
) -> tuple[Sequence[Timestamp], bool]:
    """Return the commits at which counters are remembered, and whether the new one is among them."""
    times = earlier.recent
    if head.kind == ManifestKind.OPENING:
        # Rates begin again with each driver. The recorded time of a script is not the clock's.
        times = () if scripted else (head.time,)
    return remembered(times, committed)


def _marked(head: Manifest, known: StageSnapshot | None, total: Counts | None, many: int) -> tuple[Mark, ...]:
    """Return the remembered counters of a stage.

    Args:
        head: the manifest before.
        known: the stage there; None: it is new.
        total: its counters now, if they are remembered.
        many: the number of remembered commits.
    """
    marks = known.recent if known else ()
    if head.kind == ManifestKind.OPENING:
        marks = (mark_of(known.total),) if known else ()
    found = marks if total is None else (*marks, mark_of(total))
    return found[max(0, len(found) - many) :]


def _limits(reports: Sequence[StageReport], outputs: Sequence[str]) -> Iterator[Limit]:
    """Yield the earliest limit of each sort; of equal ones that of the first shard."""

    def first(sort: Sort, output: str | None, found: Iterable[tuple[int, Hold | None, Port | None, bool]]) -> Any:
        there = [(shard, what, port, quiet) for shard, what, port, quiet in found if what is not None]
        if there:
            shard, what, port, quiet = min(there, key=lambda each: each[1].time)
            yield Limit(shard, sort, output, what, port if what.kind is HolderKind.BLOCKED else None, quiet)

    yield from first(Sort.PENDING, None, ((of.shard, of.local.pending, of.local.waits_for, False) for of in reports))
    for output in outputs:
        there = [(of.shard, of.local.outputs[output], of.local.waits_for) for of in reports]
        yield from first(Sort.PENDING, output, ((shard, of.pending, port, of.quiet) for shard, of, port in there))
        yield from first(Sort.HOLD, output, ((shard, of.hold, None, of.quiet) for shard, of, _ in there))


def _remembering(before: StageSnapshot | None, limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return the limits with the last known subjects of restrictions: these are only known in micro-batches that run
    them.
    """
    holds = [limit.what for limit in before.limits] if before else []
    abouts = {hold.name: hold for hold in holds if hold.about}
    return tuple(
        replace(limit, what=replace(limit.what, about=of.about, reason=of.reason))
        if not limit.what.about and (of := abouts.get(limit.what.name))
        else limit
        for limit in limits
    )


def _locals(of: StageSnapshot) -> dict[int, Local]:
    """Return the shards' times, as far as they limit a watermark."""
    silent = Local(None, {output: OutputTime() for output in of.outputs})
    locals = dict.fromkeys(range(of.shards), silent)
    for limit in of.limits:
        local = locals[limit.shard]
        waits_for = limit.waits_for or local.waits_for
        if limit.output is None:
            local = replace(local, pending=limit.what, waits_for=waits_for)
        else:
            known = local.outputs[limit.output]
            pending, hold = (limit.what, known.hold) if limit.sort is Sort.PENDING else (known.pending, limit.what)
            output = OutputTime(pending, hold, known.quiet or limit.quiet)
            local = replace(local, outputs={**local.outputs, limit.output: output}, waits_for=waits_for)
        locals[limit.shard] = local
    return locals


def _sum(counts: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*map(COUNTED, counts), strict=True)))


# The JSON format.

_PLAIN: Final = ("name", "shards", "live", "size", "next_event", "next_due", "leftover")


def _record(of: StageSnapshot) -> dict[str, Any]:
    return {
        **{name: getattr(of, name) for name in _PLAIN},
        "reads": [_port(port) for port in of.reads],
        "input": [of.input.micro_batch, of.input.time],
        "outputs": {output: [since.micro_batch, since.time] for output, since in of.outputs.items()},
        "limits": [
            [each.shard, each.sort, each.output, _what(each.what), each.waits_for and _port(each.waits_for), each.quiet]
            for each in of.limits
        ],
        "micro_batch": plain(of.micro_batch),
        "total": plain(of.total),
        "awaited": [[_port(each.port), each.until] for each in of.awaited],
        "kept": {name: value for name, value in plain(of.kept).items() if value},
        "observed": {output: _ways(ways) for output, ways in of.observed.items()},
        "recent": of.recent,
    }


def _ways(ways: ObserverPaths) -> list[Any]:
    return [
        of
        and [
            of.name,
            of.delay,
            of.policy,
            _ways(of.upstream),
            of.idle_after,
            of.quantile,
            of.max_jump,
            of.confirmed_by,
            of.max_skew,
            of.shared,
            of.part,
        ]
        for of in ways
    ]


def _ways_of(record: list[Any]) -> ObserverPaths:
    return tuple(of and _observer(*of) for of in record)


def _observer(
    name: str,
    delay: Duration,
    policy: str,
    upstream: list[Any],
    idle_after: Duration | None,
    quantile: float | None,
    max_jump: Duration | None,
    confirmed_by: int,
    max_skew: Duration | None,
    shared: str | None,
    part: str,
) -> Observer:
    together = None if shared is None else Policy(shared)
    known = idle_after, quantile, max_jump, confirmed_by, max_skew, together, part
    return Observer(name, delay, Policy(policy), _ways_of(upstream), *known)


def _port(port: Port) -> list[str]:
    return [port.stage, port.output]


def _what(what: Hold) -> list[Any]:
    release = what.release and [what.release.at, what.release.by_clock]
    return [what.time, what.name, what.kind.name, what.output, what.key, release, what.about, what.size, what.reason]


def _stage(record: dict[str, Any]) -> StageSnapshot:
    return StageSnapshot(
        **{name: record[name] for name in _PLAIN},
        reads=tuple(Port(*port) for port in record["reads"]),
        input=Since(*record["input"]),
        outputs={output: Since(*since) for output, since in record["outputs"].items()},
        limits=tuple(
            Limit(shard, Sort(sort), output, _what_of(*what), Port(*port) if port else None, quiet)
            for shard, sort, output, what, port, quiet in record["limits"]
        ),
        micro_batch=Counts(**record["micro_batch"]),
        total=Counts(**record["total"]),
        awaited=tuple(Awaited(Port(*port), Timestamp(until)) for port, until in record["awaited"]),
        kept=StateMetrics(**record["kept"]),
        observed={output: _ways_of(ways) for output, ways in record["observed"].items()},
        recent=tuple(Mark(*mark) for mark in record["recent"]),
    )


def _what_of(
    time: int,
    name: str,
    kind: str,
    output: str,
    key: str | None,
    release: list[Any] | None,
    about: str,
    size: float | None,
    reason: str,
) -> Hold:
    at = Release(Timestamp(release[0]), release[1]) if release else None
    hold = Hold(Timestamp(time), HolderKind[kind], name, output, key, release=at, about=about, size=size)
    return replace(hold, reason=reason)
