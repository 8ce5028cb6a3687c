"""When holds are released: for timers and restrictions, their rows contain it.

Owns no rows: it reads those of `timers` and `residuals`. Must not know how it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from arcbeam.engine.rows.keyspace import RowKind, time_of
from arcbeam.engine.state.residuals import About, due_and_size_of
from arcbeam.engine.watermarks.clocks import Local
from arcbeam.engine.watermarks.holds import Hold, HolderKind, Release
from arcbeam.model.interfaces import StateView

_AT_THEIR_TIME: Final = (HolderKind.TIMER, HolderKind.SORTED, HolderKind.BUFFERED)
"""Holders that are released at the time at which they hold, unless more is known."""


def with_releases(
    view: StateView, stage: int, local: Local, abouts: Mapping[str, About] = MappingProxyType({})
) -> Local:
    """Add its release, and the size of its restriction, to each hold in a shard's times. Each costs one look-up.

    Args:
        view: the view of the shard.
        stage: the stage's number.
        local: the shard's times.
        abouts: what is known of restrictions, by their hexadecimal ids. Only those that hold are described.
    """
    if local.pending is None and all(of.hold is None for of in local.outputs.values()):
        return local
    known: dict[Hold, Hold] = {}

    def released(hold: Hold | None) -> Hold | None:
        if hold is None:
            return None
        found = known.get(hold)
        if found is None:
            found = replace(_released(view, stage, hold), owner=b"")
            about = abouts.get(hold.name.rpartition("~")[2]) if hold.kind is HolderKind.RESIDUAL else None
            if about is not None:
                found = replace(found, about=about.subject(), reason=about.reason)
            known[hold] = found
        return found

    return replace(
        local,
        pending=released(local.pending),
        outputs={
            name: replace(of, pending=released(of.pending), hold=released(of.hold))
            for name, of in local.outputs.items()
        },
    )


def _released(view: StateView, stage: int, hold: Hold) -> Hold:
    if hold.kind is HolderKind.RESIDUAL:
        if (known := due_and_size_of(view, stage, hold.name)) is None:
            return hold
        due, size = known
        return replace(hold, release=Release(due, by_clock=True), size=size)
    return replace(hold, release=_release(view, hold))


def _release(view: StateView, hold: Hold) -> Release | None:
    if hold.kind is HolderKind.TIMER and hold.owner:
        # The timer's place in its index: the kind of the index, and when it fires.
        place = view.get(hold.owner)
        return None if place is None else Release(time_of(place[1:9]), by_clock=place[0] == RowKind.PROCESSING)
    return Release(hold.time, by_clock=False) if hold.kind in _AT_THEIR_TIME else None
