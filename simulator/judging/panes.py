"""Invariants of the panes of a grouping: order, timing, timestamps, and which empty panes exist.

Owns the checks of pane metadata; `results` checks the contents. Must not know micro-batches, watermarks or state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Timing, Window
from simulator.judging.records import Broken, Out, Record
from simulator.judging.reference import Items, places_of, time_of_pane
from simulator.scenario.kinds import Group
from simulator.scenario.plans import Stage

_EARLY: Mapping[str, Callable[[int, int], bool]] = {
    "early and late": lambda count, elements: elements == count,
    "counts": lambda count, elements: elements == count,
    "count once": lambda count, elements: elements == count,
    "count or clock": lambda count, elements: elements <= count,
    "count and clock": lambda count, elements: elements >= count,
    "each": lambda count, elements: elements in (count, 1),
    "watermark or count": lambda count, elements: elements == count + 1,
    "always": lambda count, elements: elements == 1,
    **dict.fromkeys(("watermark", "repeated watermark", "watermark and count", "never"), lambda count, elements: False),
}
"""Whether an early pane may have this number of new elements, by trigger and its count. Triggers that follow only the
clock are missing: their panes may have any number."""
Place = tuple[bytes, Window | None]
"""A key and a window."""


def check(stage: Stage, group: Group, records: Sequence[Record], arrived: Items, *, fair: bool) -> None:
    """Check the panes of a grouping.

    Args:
        stage: the stage of the grouping.
        group: its configuration.
        records: its outputs and drops, in order.
        arrived: its input.
        fair: whether no element of the input was late.

    Raises:
        Broken: a pane violates an invariant.
    """
    outs = [record for record in records if isinstance(record, Out)]
    _none_for_nothing(stage, group, outs)
    if fair and group.once:
        _once(stage, outs)
    panes: dict[Place, list[Out]] = defaultdict(list)
    for out in outs:
        panes[out.key, out.window].append(out)
    for place, mine in panes.items():
        _in_turn(stage, place, mine)
        if not group.accumulating:
            _counted(stage, group, mine)
    if fair:
        places = places_of(stage, arrived)
        _all_there(stage, group, panes, {(key, window) for (key, _), windows in places.items() for window in windows})
        if not group.accumulating:
            _timed(stage, group, panes, arrived, places)


def _none_for_nothing(stage: Stage, group: Group, outs: Iterable[Out]) -> None:
    """Check that only the panes that are required even without elements are empty."""
    for out in outs:
        assert out.pane is not None
        on_time = not group.quiet and out.pane.timing is Timing.ON_TIME and group.strategy.trigger.on_time()
        if not out.atoms and not on_time and not (group.closes and out.pane.is_last):
            raise Broken(f"{stage.name} has put out {out}, which is empty")


def _once(stage: Stage, outs: Iterable[Out]) -> None:
    """Check that each window has one pane, and that it is on time."""
    seen: set[Place] = set()
    for out in outs:
        assert out.pane is not None
        if (out.key, out.window) in seen or out.pane.timing is not Timing.ON_TIME or not out.pane.is_first:
            raise Broken(f"{stage.name} has put out {out}, where one pane on time is due")
        seen.add((out.key, out.window))


def _in_turn(stage: Stage, place: Place, outs: Iterable[Out]) -> None:
    """Check that panes are numbered in order, none is early after the one on time, and none follows the last."""
    last = None
    for out in outs:
        now = out.pane
        assert now is not None
        early = now.timing is Timing.EARLY
        spoken = -1 if last is None else last.nonspeculative_index
        wrong = (
            now.index != (0 if last is None else last.index + 1)
            or now.is_first != (last is None)
            or now.nonspeculative_index != (-1 if early else spoken + 1)
            or (
                last is not None
                and (last.is_last or (last.timing is not Timing.EARLY and now.timing is not Timing.LATE))
            )
        )
        if wrong:
            raise Broken(f"{stage.name} has put out {now} of {place} after {last}")
        last = now


def _counted(stage: Stage, group: Group, outs: Iterable[Out]) -> None:
    """Check that early panes have the count of the trigger, however elements were cut into bundles. A merged window
    counts the elements of all its windows.
    """
    is_right = _EARLY.get(group.trigger)
    for out in outs:
        assert out.pane is not None
        counts = range(1, out.elements + 1) if group.windowing.merges else (out.elements,)
        early = out.pane.timing is Timing.EARLY
        if early and is_right is not None and not any(is_right(group.count, count) for count in counts):
            raise Broken(f"{stage.name} has put out {out} with {out.elements} elements early")


def _all_there(stage: Stage, group: Group, panes: Mapping[Place, Sequence[Out]], places: Collection[Place]) -> None:
    """Check that each window, in its final extent, has a pane on time and a closing pane, if these are required even
    without elements.
    """
    # A window that closes before it merges stays closed, and has no pane of its own.
    closes = group.closes and not (group.windowing.merges and group.finishes and not group.together)
    for place in places:
        reported = [out.pane for out in panes.get(place, ()) if out.pane is not None]
        if group.is_on_time and sum(pane.timing is Timing.ON_TIME for pane in reported) != 1:
            raise Broken(f"{stage.name} has put out {reported} of {place}: one that is on time is due")
        if closes and sum(pane.is_last for pane in reported) != 1:
            raise Broken(f"{stage.name} has put out {reported} of {place}: one with which it closes is due")


def _timed(
    stage: Stage,
    group: Group,
    panes: Mapping[Place, Sequence[Out]],
    arrived: Items,
    places: Mapping[tuple[bytes, Timestamp], Sequence[Window]],
) -> None:
    """Check that the timestamp of a pane is the end of its window, or the earliest or latest of its elements."""
    known: dict[tuple[bytes, bytes], set[Timestamp]] = defaultdict(set)
    for item in arrived:
        known[item.key, item.atom].add(item.time)
    for (key, window), outs in panes.items():
        for out in outs:
            times = [
                {time for time in known[key, atom] if group.windowing.merges or window in places[key, time]}
                for atom in out.atoms
            ]
            assert out.window is not None
            if any(len(each) > 1 for each in times):
                continue  # an atom that came twice may have either timestamp
            due = time_of_pane(group, out.window, [time for each in times for time in each])
            if out.time != due:
                raise Broken(f"{stage.name} has put out {out} at {out.time}: its time is {due}")
