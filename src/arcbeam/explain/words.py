"""What the text and the picture both say about a stage: its exchanges, flags and names. Knows only `model.plan`."""

from __future__ import annotations

from arcbeam.model.plan import Routing, SideInput, Stage

EXCHANGES = frozenset({Routing.SPREAD, Routing.KEYED, Routing.GROUPED, Routing.SIDE_KEYED})
"""Routings that send rows through a Spark shuffle."""


def words_of(stage: Stage) -> list[str]:
    """What is special about a stage, in words."""
    words = [
        (stage.stateful, "stateful"),
        (stage.splittable, "splittable"),
        (stage.time_sorted, "sorted by time"),
        (stage.finalizes, "finalizes bundles"),
    ]
    return [name for is_set, name in words if is_set]


def transform_names(stage: Stage) -> dict[str, str]:
    """Id to full name; ids that the stage does not list (its reads, for instance) stand for themselves."""
    ids = [s.transform for s in stage.side_inputs] + [t for t, _ in stage.states] + [t.transform for t in stage.timers]
    return {id: id for id in ids} | {t.id: t.name for t in stage.transforms}


def side_text(side: SideInput, names: dict[str, str]) -> str:
    """How a stage uses a side channel; `names` as from `transform_names`."""
    return f"as {side.tag!r} of {names[side.transform]}"
