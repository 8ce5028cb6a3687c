"""What the text and the picture both say about a stage: its exchanges, flags and names. Knows only `model.plan`."""

from __future__ import annotations

from datetime import timedelta

from arcbeam.model.observers import Observer, Policy, along
from arcbeam.model.plan import Plan, Routing, SideInput, Stage

EXCHANGES = frozenset({Routing.SPREAD, Routing.KEYED, Routing.GROUPED, Routing.SIDE_KEYED})
"""Routings that send rows through a Spark shuffle."""


def words_of(stage: Stage) -> list[str]:
    """What is special about a stage, in words."""
    words = [
        (stage.stateful, "stateful"),
        (stage.splittable, "splittable"),
        (stage.time_sorted, "sorted by time"),
        (stage.finalizes, "finalizes bundles"),
        (bool(stage.observed), "observes time"),
    ]
    return [name for is_set, name in words if is_set]


def transform_names(stage: Stage) -> dict[str, str]:
    """Id to full name; ids that the stage does not list (its reads, for instance) stand for themselves."""
    ids = [s.transform for s in stage.side_inputs] + [t for t, _ in stage.states] + [t.transform for t in stage.timers]
    return {id: id for id in ids} | {t.id: t.name for t in stage.transforms}


def side_text(side: SideInput, names: dict[str, str]) -> str:
    """How a stage uses a side channel; `names` as from `transform_names`."""
    return f"as {side.tag!r} of {names[side.transform]}"


def observers_of(stage: Stage) -> list[Observer]:
    """The transforms of a stage that observe event times, each once."""
    return list({o.name: o for ways in stage.observed.values() for o in along(ways)}.values())


def observed_text(observer: Observer) -> str:
    """What an observer makes of what it has seen."""
    idle = "" if observer.idle_after is None else str(timedelta(microseconds=observer.idle_after))
    if observer.shared is Policy.MAX:
        return "takes the latest watermark of all its inputs"
    if observer.shared is Policy.MIN:
        return f"takes the earliest watermark of its inputs, without those that have stood for {idle}"
    with_input = "the earlier" if observer.policy is Policy.MIN else "the later"
    delay = timedelta(microseconds=observer.delay)
    quantile = "" if observer.quantile is None else f" (its {observer.quantile:g} quantile)"
    words = [f"observes event time{quantile}, less {delay}; {with_input} of that and its input's watermark"]
    if observer.max_skew is not None:
        words.append(f"not believed: {timedelta(microseconds=observer.max_skew)} ahead of the clock")
    if observer.max_jump is not None:
        jump = timedelta(microseconds=observer.max_jump)
        words.append(f"not believed: {jump} ahead of the rest, until {observer.confirmed_by} others confirm it")
    if idle:
        words.append(f"its input does not count where it has stood for {idle}")
    return "; ".join(words)


def decided_by(plan: Plan, stage: Stage, observer: Observer) -> list[str]:
    """The ids of the stages whose input watermark an observer decides: as far as to the next observer."""
    todo = [channel for channel, ways in stage.observed.items() if observer in along(ways)]
    found: dict[str, None] = {}
    while todo:
        for reader in map(plan.stage, plan.channels[todo.pop()].consumers):
            if reader.id not in found:
                found[reader.id] = None
                todo += [sink for sink in reader.sinks if sink not in reader.observed]
    return [each.id for each in plan.stages if each.id in found]
