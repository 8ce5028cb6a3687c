"""Whether the output of a replayed job is right, by the simulator's own judgement.

Owns what must be derived here: Spark does not report which elements were dropped, so they are those that are missing,
where elements may be dropped. Must not know how a job runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from arcbeam.model.timestamps import MAX_TIMESTAMP
from arcbeam.model.windows import GLOBAL_WINDOW, Window
from simulator.judging import results
from simulator.judging.records import Broken, Drop, Out
from simulator.judging.reference import Items, Reference, honest
from simulator.scenario.kinds import Expand, Group, Join, Keep, Kind, Pass, Source
from simulator.scenario.plans import Pipeline, Stage

_Places = Counter[tuple[bytes, bytes, Window | None]]


def judge(pipeline: Pipeline, outs: Sequence[Out]) -> Sequence[Drop]:
    """Judge the output.

    Returns:
        What must have been dropped.

    Raises:
        Broken: the output is wrong.
    """
    # In the order of their panes; merged or missing panes are found nonetheless.
    ordered = sorted(outs, key=lambda out: 0 if out.pane is None else out.pane.index)
    events = {stage.name: stage.kind.events for stage in pipeline.stages if isinstance(stage.kind, Source)}
    arrivals = Reference(pipeline, events, results.items_of(ordered)).arrivals
    drops = [
        drop
        for stage in pipeline.stages
        if isinstance(stage.kind, (Group, Keep))
        for drop in _dropped(pipeline, stage, [out for out in ordered if out.stage == stage.name], arrivals[stage.name])
    ]
    results.check(pipeline, [*ordered, *drops], drained=False)
    return drops


def _dropped(pipeline: Pipeline, stage: Stage, outs: Sequence[Out], arrived: Items) -> Iterator[Drop]:
    """Yield what a stage lacks, where elements may be dropped."""
    fair = stage.name in honest(pipeline)
    group = stage.kind if isinstance(stage.kind, Group) else None
    # A stage that finishes after the end of its window drops only what arrives after that.
    finishes = group is not None and group.finishes and not group.together
    surprises = _surprises(pipeline) if _is_prompt(pipeline, stage) and not finishes else None
    for (key, atom, window), count in (_due(stage, arrived) - _found(stage, outs)).items():
        if fair and not finishes:
            raise Broken(f"{stage.name} lacks {atom!r} of {key!r} in {window}: nothing may be dropped there")
        if surprises is not None and atom.partition(b".")[0] not in surprises:
            raise Broken(f"{stage.name} lacks {atom!r} of {key!r} in {window}, which its source expected")
        for _ in range(count):
            place = GLOBAL_WINDOW if window is None else window
            yield Drop(stage.name, key, (atom,), None, place, not finishes, MAX_TIMESTAMP)


def _due(stage: Stage, arrived: Items) -> _Places:
    due: _Places = Counter(results.places_due(stage, arrived))
    return Counter(dict.fromkeys(due, 1)) if _repeats(stage) else due


def _found(stage: Stage, outs: Sequence[Out]) -> _Places:
    """Return a stage's output; of accumulating panes, that of the last one."""
    if _repeats(stage):
        return Counter(dict.fromkeys(results.outcomes(stage, outs), 1))
    if isinstance(stage.kind, Group) and stage.kind.accumulating:
        outs = list({(out.key, out.window): out for out in outs}.values())
    return Counter(results.outcomes(stage, outs))


def _repeats(stage: Stage) -> bool:
    """Return whether it is unknown how often values are output: windows grow, and output all elements again."""
    return isinstance(stage.kind, Group) and stage.kind.accumulating and stage.kind.windowing.merges


def _is_prompt(pipeline: Pipeline, stage: Stage) -> bool:
    """Return whether no stage before this one keeps or observes: then only surprises of its source can be late."""
    above = [pipeline.by_name[port.stage] for port in stage.inputs]
    return all(_passes_on(each.kind) and _is_prompt(pipeline, each) for each in above)


def _passes_on(kind: Kind) -> bool:
    return isinstance(kind, (Source, Expand, Join)) or (isinstance(kind, Pass) and not kind.observes)


def _surprises(pipeline: Pipeline) -> frozenset[bytes]:
    sources = [stage.kind for stage in pipeline.stages if isinstance(stage.kind, Source)]
    return frozenset(event.atom for source in sources for event in source.events if event.surprising)
