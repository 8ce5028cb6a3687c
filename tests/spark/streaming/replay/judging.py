"""Whether what a replayed job has put out is what it must be: by the simulator's own judgement.

Owns what must be concluded here: on Spark nobody tells what was dropped, so that is what is lacking, where something
may be. Must not know how a job is run.
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
    """Judges all that came out.

    Returns:
        What must have been dropped.

    Raises:
        Broken: it is not what must come out.
    """
    # In the order of their panes; that two are one, or that one is lacking, is seen nonetheless.
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


def _dropped(pipeline: Pipeline, stage: Stage, outs: Sequence[Out], came: Items) -> Iterator[Drop]:
    """What a stage lacks, where it may."""
    fair = stage.name in honest(pipeline)
    group = stage.kind if isinstance(stage.kind, Group) else None
    # One that finishes behind the end of its window drops only what comes behind that.
    finishes = group is not None and group.finishes and not group.together
    surprises = _surprises(pipeline) if _is_prompt(pipeline, stage) and not finishes else None
    for (key, atom, window), count in (_due(stage, came) - _found(stage, outs)).items():
        if fair and not finishes:
            raise Broken(f"{stage.name} lacks {atom!r} of {key!r} in {window}: nothing may be dropped there")
        if surprises is not None and atom.partition(b".")[0] not in surprises:
            raise Broken(f"{stage.name} lacks {atom!r} of {key!r} in {window}, with which its source has reckoned")
        for _ in range(count):
            place = GLOBAL_WINDOW if window is None else window
            yield Drop(stage.name, key, (atom,), None, place, not finishes, MAX_TIMESTAMP)


def _due(stage: Stage, came: Items) -> _Places:
    due: _Places = Counter(results.places_due(stage, came))
    return Counter(dict.fromkeys(due, 1)) if _repeats(stage) else due


def _found(stage: Stage, outs: Sequence[Out]) -> _Places:
    """What a stage has put out; of panes that accumulate those of the last."""
    if _repeats(stage):
        return Counter(dict.fromkeys(results.outcomes(stage, outs), 1))
    if isinstance(stage.kind, Group) and stage.kind.accumulating:
        outs = list({(out.key, out.window): out for out in outs}.values())
    return Counter(results.outcomes(stage, outs))


def _repeats(stage: Stage) -> bool:
    """Whether it cannot be told how often something came out: windows grow, and have all of their elements again."""
    return isinstance(stage.kind, Group) and stage.kind.accumulating and stage.kind.windowing.merges


def _is_prompt(pipeline: Pipeline, stage: Stage) -> bool:
    """Whether nothing above a stage keeps or observes: then only what has surprised its source can be late."""
    above = [pipeline.by_name[port.stage] for port in stage.inputs]
    return all(_passes_on(each.kind) and _is_prompt(pipeline, each) for each in above)


def _passes_on(kind: Kind) -> bool:
    return isinstance(kind, (Source, Expand, Join)) or (isinstance(kind, Pass) and not kind.observes)


def _surprises(pipeline: Pipeline) -> frozenset[bytes]:
    sources = [stage.kind for stage in pipeline.stages if isinstance(stage.kind, Source)]
    return frozenset(event.atom for source in sources for event in source.events if event.surprising)
