"""Words about a stage for the text and the picture: its exchanges, flags and names. Imports only `model.plan`."""

from __future__ import annotations

from datetime import timedelta

from arcbeam.model.observers import Observer, Policy, all_observers
from arcbeam.model.plan import Plan, Routing, SideInput, Stage

EXCHANGES = frozenset({Routing.SPREAD, Routing.KEYED, Routing.GROUPED, Routing.SIDE_KEYED})
"""Routings that send rows through a Spark shuffle."""


def words_of(stage: Stage) -> list[str]:
    """Return the special properties of a stage, in words."""
    words = [
        (stage.stateful, "stateful"),
        (stage.splittable, "splittable"),
        (stage.time_sorted, "sorted by time"),
        (stage.finalizes, "finalizes bundles"),
        (bool(stage.observed), "observes time"),
    ]
    return [name for is_set, name in words if is_set]


def transform_names(stage: Stage) -> dict[str, str]:
    """Return full names by id. An id that the stage does not list (its reads, for instance) is its own name."""
    ids = [s.transform for s in stage.side_inputs] + [t for t, _ in stage.states] + [t.transform for t in stage.timers]
    return {id: id for id in ids} | {t.id: t.name for t in stage.transforms}


def side_text(side: SideInput, names: dict[str, str]) -> str:
    """Return how a stage uses a side channel; `names` as from `transform_names`."""
    return f"as {side.tag!r} of {names[side.transform]}"


def observers_of(stage: Stage) -> list[Observer]:
    """Return the transforms of a stage that observe event times, each once."""
    return list({o.name: o for paths in stage.observed.values() for o in all_observers(paths)}.values())


def observed_text(observer: Observer) -> str:
    """Return how an observer computes its watermark."""
    idle = "" if observer.idle_after is None else str(timedelta(microseconds=observer.idle_after))
    if observer.shared is Policy.MAX:
        return "takes the latest watermark of all its inputs"
    if observer.shared is Policy.MIN:
        return f"takes the earliest watermark of its inputs, except those that have not advanced for {idle}"
    earlier = "earlier" if observer.policy is Policy.MIN else "later"
    delay = timedelta(microseconds=observer.delay)
    quantile = "" if observer.quantile is None else f" (its {observer.quantile:g} quantile)"
    words = [f"watermark: the {earlier} of (observed event time{quantile} − {delay}) and its input's watermark"]
    if observer.max_skew is not None:
        words.append(f"ignores times more than {timedelta(microseconds=observer.max_skew)} ahead of the clock")
    if observer.max_jump is not None:
        jump = timedelta(microseconds=observer.max_jump)
        words.append(f"ignores times more than {jump} ahead of the others, until {observer.confirmed_by} confirm them")
    if idle:
        words.append(f"ignores its input's watermark after {idle} without advance")
    return "; ".join(words)


def decided_by(plan: Plan, stage: Stage, observer: Observer) -> list[str]:
    """Return the ids of the stages whose input watermark an observer sets, up to the next observer."""
    todo = [channel for channel, paths in stage.observed.items() if observer in all_observers(paths)]
    found: dict[str, None] = {}
    while todo:
        for reader in map(plan.stage, plan.channels[todo.pop()].consumers):
            if reader.id not in found:
                found[reader.id] = None
                todo += [sink for sink in reader.sinks if sink not in reader.observed]
    return [each.id for each in plan.stages if each.id in found]
