"""Whether the reports of a micro-batch are those of one consistent run, and may follow the head.

Owns the driver's checks. Must not know what is done when they fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import NO_INPUT, InconsistentCutError, digest
from arcbeam.engine.protocol.reports import StageReport, TaskReport
from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.engine.watermarks.stages import Times, Watermarks

Places = Mapping[tuple[str, int], StageReport]
"""Reports by stage and shard."""

NO_PLACES: Final[Places] = {}


def check(layout: Layout, reports: Sequence[TaskReport], first: int = 0) -> bytes:
    """Checks that the reports are of one attempt of each task, and that all tasks have read those very attempts.

    Args:
        layout: of the micro-batch.
        reports: of its tasks.
        first: the level with which it began.

    Returns:
        The digest of the cut.

    Raises:
        InconsistentCutError: not so; a task at fault is named.
    """
    tokens: dict[tuple[int, int], bytes] = {}
    digests: dict[tuple[int, int], bytes] = {}
    used: dict[bytes, tuple[int, int]] = {}
    for report in reports:
        task = report.level, report.task
        if not (first <= report.level < len(layout.tasks) and 0 <= report.task < layout.tasks[report.level]):
            raise InconsistentCutError(f"a report came of {_named(task)}, which the micro-batch does not have")
        if task in tokens:
            raise InconsistentCutError(f"two reports came of {_named(task)}")
        if (other := used.setdefault(report.token, task)) != task:
            raise InconsistentCutError(f"{_named(other)} and {_named(task)} have the same token")
        tokens[task], digests[task] = report.token, report.input_digest
    known = NO_INPUT
    for level, count in enumerate(layout.tasks[first:], first):
        for number in range(count):
            task = level, number
            if task not in tokens:
                raise InconsistentCutError(f"no report came of {_named(task)}")
            if digests[task] != known:
                raise InconsistentCutError(f"{_named(task)} has read other attempts of level {level - 1} than reported")
        known = digest(known, [tokens[level, number] for number in range(count)])
    return known


def placed(layout: Layout, reports: Sequence[TaskReport], before: Places) -> dict[tuple[str, int], StageReport]:
    """The reports by stage and shard.

    Args:
        layout: of the micro-batch.
        reports: that passed `check`.
        before: the same of the head.

    Raises:
        InconsistentCutError: a shard of a stage is missing, was reported by a task that does not own it, or its input
            watermark went back.
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
                    "which is not its own"
                )
            if (known := before.get(place)) is not None and stage.input < known.input:
                raise InconsistentCutError(
                    f"the input watermark of {stage.stage!r} in shard {stage.shard} went back from "
                    f"{shown_time(known.input)} to {shown_time(stage.input)}"
                )
            places[place] = stage
    for name, shard in layout.places():
        if (name, shard) not in places:
            raise InconsistentCutError(f"nothing was reported of {name!r} in shard {shard}")
    return places


def watermarks(layout: Layout, places: Places, committed: Times) -> Watermarks:
    """The watermarks that follow from what all shards say, on top of the head's; advanced.

    Raises:
        InconsistentCutError: a watermark went back, or a shard is ahead of all that it reads.
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
        upstream = marks.upstream(name)
        if report.input > upstream:
            raise InconsistentCutError(
                f"{name!r} in shard {shard} is at {shown_time(report.input)}; what it reads is at "
                f"{shown_time(upstream)}: it has fired what was not complete"
            )
    return marks


def _named(task: tuple[int, int]) -> str:
    return f"task {task[1]} of level {task[0]}"
