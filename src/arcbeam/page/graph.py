"""The graph of a job: the picture of its plan, with the figures of its status.

Owns which figures a stage and an edge show. Where they are is decided in `arcbeam.explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from arcbeam.console.progressline import BatchProgress
from arcbeam.explain import LivePicture, as_live_svg, plan_of
from arcbeam.page.views import gap_text, stage_with
from arcbeam.streaming.status.headline import failing, headline_of
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.status import StageStatus, Status
from arcbeam.streaming.status.words import backlog_shown, bytes_shown, without_driver

PREFIX: Final = "g-"
"""Of the ids of all elements of a graph."""
_SHADES: Final = 4
"""The number of colours for the share of a stage."""
_FITS: Final = 42
"""Characters of a line of figures in a stage's box, which are bold."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The picture of a plan.

    Attributes:
        picture: with empty slots.
        stages: the ids of the stages in the picture, by their names in a status.
        outputs: by the id of each channel in the picture: its producers, as (stage, output) in a status.
        transforms: the stage of each transform.
    """

    picture: LivePicture
    stages: Mapping[str, str]
    outputs: Mapping[str, tuple[tuple[str, str], ...]]
    transforms: Mapping[str, str]

    def shown(self, status: Status, tasks: Record | None = None) -> tuple[str, dict[str, str]]:
        """Return the picture with the figures of a status, and the elements that show these, by their ids.

        Args:
            status: of the job.
            tasks: figures of tasks, as `arcbeam.streaming.status.taskfigures.task_record`; None: unknown.
        """
        return self.picture.filled(dict(self._figures(status, busy_shares(status, tasks))))

    def progressed(self, progress: BatchProgress, states: Sequence[tuple[str, str]]) -> tuple[str, dict[str, str]]:
        """Return the picture with the figures of a bounded job, and the elements that show these, by their ids.

        Args:
            progress: of the job, with the plan of this graph.
            states: of each stage its state, with the number of its tasks, and its level.
        """
        total = sum(stage.seconds for stage in progress.stages)
        figures: dict[str, tuple[str, str]] = {}
        for id, stage, state in zip(self.stages.values(), progress.stages, states, strict=True):
            share = stage.seconds / total if total else 0.0
            words = [f"{share:.0%} of the time", f"{stage.elements:,} elements"] if stage.seconds else []
            figures[f"{id}-live"] = state
            figures[f"{id}-more"] = " · ".join(words), f"busy-{round(share * _SHADES)}" if words else ""
        return self.picture.filled(figures)

    def failing(self, status: Status) -> str:
        """Return the stage in which a job has failed, or its next micro-batch fails; "" if none does, or unknown."""
        name = failing(status)
        return (stage_with(name, self.transforms) or (name if name in self.stages else "")) if name else ""

    def place_of(self, stage: str) -> str:
        """Return the id of the element with a stage's figures; "" if the stage is not in the picture."""
        return f"{PREFIX}{self.stages[stage]}-live" if stage in self.stages else ""

    def _figures(self, status: Status, busy: Mapping[str, float]) -> Iterator[tuple[str, tuple[str, str]]]:
        known = {stage.stage: stage for stage in status.stages}
        fails = self.failing(status)
        blocking, runs = _blocking(status), not without_driver(status)
        for name, id in self.stages.items():
            if (stage := known.get(name)) is not None:
                emitted = stage.made_rate if stage.total and stage.total.made else None
                words = [
                    "fails" if name == fails else "waits" if name in blocking else "",
                    _rate(stage.read_rate if emitted is None else emitted) if runs else "",
                    gap_text(status, stage.earliest),
                ]
                style = "error" if name == fails else "warning" if name in blocking else ""
                yield f"{id}-live", (" · ".join(filter(None, words)), style)
                share = busy.get(name)
                yield f"{id}-more", (_more(stage, share), "" if share is None else f"busy-{round(share * _SHADES)}")
        for id, producers in self.outputs.items():
            writers = [(known[stage], output) for stage, output in producers if stage in known]
            if writers:
                yield f"{id}-live", (" · ".join(filter(None, _of_edge(status, writers, runs))), "")


def _blocking(status: Status) -> frozenset[str]:
    """Return the stages that hold the watermark of another one for so long that a headline says so, too."""
    deciding = (cause for cause in status.causes if cause.decides)
    return frozenset(cause.stage for cause in deciding if headline_of(status, cause).level != "good")


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.3g}/s" if rate < 1000 else f"{rate:,.0f}/s"


def busy_shares(status: Status, tasks: Record | None) -> dict[str, float]:
    """Return the share of each stage in the time of a micro-batch: that of its level's slowest task.

    A task runs all stages of its level, which therefore have the same share.
    """
    of = (tasks or {}).get("stages", {})
    levels = {stage.stage: stage.level for stage in status.stages if stage.stage in of}
    slowest: dict[int, float] = {}
    for name, level in levels.items():
        slowest[level] = max(slowest.get(level, 0.0), of[name]["seconds"][-1])
    total = sum(slowest.values())
    return {name: slowest[level] / total for name, level in levels.items()} if total else {}


def _more(stage: StageStatus, busy: float | None) -> str:
    """Return a line of figures that fits into the stage's box: if they are too long, with three digits of each."""
    line = " · ".join(_figures_in_words(stage, busy, backlog_shown))
    return line if len(line) <= _FITS else " · ".join(_figures_in_words(stage, busy, _brief))


def _figures_in_words(stage: StageStatus, busy: float | None, number: Callable[[float], str]) -> Iterator[str]:
    if busy is not None:
        yield f"busy {busy:.0%}"
    if stage.restrictions:
        yield f"backlog {number(stage.backlog)}"
    if stage.state_bytes:
        yield f"state {bytes_shown(stage.state_bytes)}"
    if stage.total and stage.total.late:
        yield f"{number(stage.total.late)} late"


def _brief(number: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if size <= number < 1000 * size:
            return f"{number / size:.3g}{unit}"
    return backlog_shown(number)


def _of_edge(status: Status, writers: list[tuple[StageStatus, str]], runs: bool) -> Iterator[str]:
    outputs = [(stage, out) for stage, name in writers for out in stage.outputs if out.output == name]
    rates = []
    for stage, out in outputs:
        counts, rate = stage.micro_batch, stage.written_rate
        if rate is not None and len(stage.outputs) == 1:
            rates.append(rate)
        elif rate is not None and counts and counts.written:
            rates.append(rate * out.elements / counts.written)
    if runs and len(rates) == len(outputs):
        yield _rate(sum(rates))
    if outputs:
        yield gap_text(status, min(out.watermark for _, out in outputs))


def graph_of(plan: Record, links: Mapping[str, str]) -> Graph:
    """Return the graph of a plan.

    Args:
        plan: its record, as `arcbeam.explain.plan_record`.
        links: the address of each stage's page, by its name in a status.

    Raises:
        ValueError: it is not the record of a plan.
    """
    drawn = plan_of(plan)
    stages = {stage.uid: stage.id for stage in drawn.stages}
    svg = as_live_svg(drawn, PREFIX, {id: links[name] for name, id in stages.items() if name in links})
    outputs: dict[str, list[tuple[str, str]]] = {}
    for stage in plan["stages"]:
        for sink, output in zip(stage["sinks"], stage.get("outputs", ()), strict=False):
            outputs.setdefault(f"c{sink}", []).append((str(stage["uid"]), str(output)))
    transforms = {transform.name: stage.uid for stage in drawn.stages for transform in stage.transforms}
    return Graph(LivePicture.of(svg, PREFIX), stages, {id: tuple(of) for id, of in outputs.items()}, transforms)
