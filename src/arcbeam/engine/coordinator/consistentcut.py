"""Check that the reports of a micro-batch come from one consistent run and may follow the head.

Owns the driver's checks. Must not know what happens when they fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import NO_INPUT, InconsistentCutError, digest
from arcbeam.engine.protocol.reports import StageReport, TaskReport
from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.engine.watermarks.stages import Watermarks, WatermarkTimes

ShardReports = Mapping[tuple[str, int], StageReport]
"""Reports by stage and shard."""

NO_PLACES: Final[ShardReports] = {}


def check(layout: Layout, reports: Sequence[TaskReport], first: int = 0) -> bytes:
    """Check that the reports come from one attempt of each task, and that all tasks have read exactly these attempts.

    Args:
        layout: the layout of the micro-batch.
        reports: the reports of its tasks.
        first: the level with which it began.

    Returns:
        The digest of the cut.

    Raises:
        InconsistentCutError: the check failed; the message names a task at fault.
    """
    tokens: dict[tuple[int, int], bytes] = {}
    digests: dict[tuple[int, int], bytes] = {}
    used: dict[bytes, tuple[int, int]] = {}
    for report in reports:
        task = report.level, report.task
        if not (first <= report.level < len(layout.tasks) and 0 <= report.task < layout.tasks[report.level]):
            raise InconsistentCutError(f"{_named(task)} reported, but the micro-batch has no such task")
        if task in tokens:
            raise InconsistentCutError(f"{_named(task)} reported twice")
        if (other := used.setdefault(report.token, task)) != task:
            raise InconsistentCutError(f"{_named(other)} and {_named(task)} have the same token")
        tokens[task], digests[task] = report.token, report.input_digest
    known = NO_INPUT
    for level, count in enumerate(layout.tasks[first:], first):
        for number in range(count):
            task = level, number
            if task not in tokens:
                raise InconsistentCutError(f"{_named(task)} did not report")
            if digests[task] != known:
                raise InconsistentCutError(f"{_named(task)} read other attempts of level {level - 1} than reported")
        known = digest(known, [tokens[level, number] for number in range(count)])
    return known


def placed(layout: Layout, reports: Sequence[TaskReport], before: ShardReports) -> dict[tuple[str, int], StageReport]:
    """Return the reports by stage and shard.

    Args:
        layout: the layout of the micro-batch.
        reports: reports that passed `check`.
        before: the head's reports by stage and shard.

    Raises:
        InconsistentCutError: a shard of a stage is missing, was reported by a task that does not own it, or its input
            watermark decreased.
    """
    places: dict[tuple[str, int], StageReport] = {}
    for report in reports:
        names = {stage.name for stage in layout.at(report.level)}
        owned = layout.range_of(report.level, report.task)
        for stage in report.stages:
            place = stage.stage, stage.shard
            if stage.stage not in names or stage.shard not in owned or place in places:
                raise InconsistentCutError(
                    f"{_named((report.level, report.task))} reports {stage.stage!r} in shard {stage.shard}, "
                    "which it does not own"
                )
            if (known := before.get(place)) is not None and stage.input < known.input:
                raise InconsistentCutError(
                    f"the input watermark of {stage.stage!r} in shard {stage.shard} decreased from "
                    f"{shown_time(known.input)} to {shown_time(stage.input)}"
                )
            places[place] = stage
    for name, shard in layout.places():
        if (name, shard) not in places:
            raise InconsistentCutError(f"{name!r} in shard {shard} was not reported")
    return places


def watermarks(layout: Layout, places: ShardReports, committed: WatermarkTimes) -> Watermarks:
    """Return the watermarks that follow from the head's and the reports of all shards.

    Raises:
        InconsistentCutError: a watermark decreased, or a shard's is later than all that it reads.
    """
    marks = Watermarks(layout.flows, committed)
    for (name, shard), report in places.items():
        marks.report(name, shard, report.local)
    times = marks.advance()
    try:
        times.check_after(committed)
    except ValueError as e:
        raise InconsistentCutError(str(e)) from e
    for (name, shard), report in places.items():
        if report.input > times.upstream[name]:
            raise InconsistentCutError(
                f"the input watermark of {name!r} in shard {shard} is {shown_time(report.input)}, but its inputs are "
                f"at {shown_time(times.upstream[name])}: it has fired windows that were not complete"
            )
    return marks


def _named(task: tuple[int, int]) -> str:
    return f"task {task[1]} of level {task[0]}"
