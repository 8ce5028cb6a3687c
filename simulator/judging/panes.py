"""What must hold of the panes of a grouping: their order, timing and times, and when there is one though it is empty.

Owns what a pane says of itself; that its contents are right, `results` sees. Must not know micro-batches, watermarks or
state.
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
"""How many new elements an early pane may have, by the trigger and its count; no word on those that follow the clock
alone."""
Place = tuple[bytes, Window | None]
"""A key and a window."""


def check(stage: Stage, group: Group, records: Sequence[Record], came: Items, *, fair: bool) -> None:
    """Checks a grouping's panes.

    Args:
        stage: which one.
        group: what it does.
        records: what it has put out and dropped, in order.
        came: what it got.
        fair: nothing of that was late.

    Raises:
        Broken: they are not as they must be.
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
        places = places_of(stage, came)
        _all_there(stage, group, panes, {(key, window) for (key, _), windows in places.items() for window in windows})
        if not group.accumulating:
            _timed(stage, group, panes, came, places)


def _none_for_nothing(stage: Stage, group: Group, outs: Iterable[Out]) -> None:
    """A pane is empty only if it has to be there nonetheless."""
    for out in outs:
        assert out.pane is not None
        on_time = not group.quiet and out.pane.timing is Timing.ON_TIME and group.strategy.trigger.on_time()
        if not out.atoms and not on_time and not (group.closes and out.pane.is_last):
            raise Broken(f"{stage.name} has put out {out}, which is empty")


def _once(stage: Stage, outs: Iterable[Out]) -> None:
    """There is one pane for each window, on time."""
    seen: set[Place] = set()
    for out in outs:
        assert out.pane is not None
        if (out.key, out.window) in seen or out.pane.timing is not Timing.ON_TIME or not out.pane.is_first:
            raise Broken(f"{stage.name} has put out {out}, where one pane on time is due")
        seen.add((out.key, out.window))


def _in_turn(stage: Stage, place: Place, outs: Iterable[Out]) -> None:
    """Panes are numbered in order; one is on time, none is early behind it, none at all behind the last."""
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
            raise Broken(f"{stage.name} has put out {now} of {place} behind {last}")
        last = now


def _counted(stage: Stage, group: Group, outs: Iterable[Out]) -> None:
    """What comes early comes when the trigger has counted it, however elements were cut into bundles; if windows become
    one, it has counted those of all of them.
    """
    is_right = _EARLY.get(group.trigger)
    for out in outs:
        assert out.pane is not None
        counts = range(1, out.elements + 1) if group.windowing.merges else (out.elements,)
        early = out.pane.timing is Timing.EARLY
        if early and is_right is not None and not any(is_right(group.count, count) for count in counts):
            raise Broken(f"{stage.name} has put out {out} with {out.elements} elements early")


def _all_there(stage: Stage, group: Group, panes: Mapping[Place, Sequence[Out]], places: Collection[Place]) -> None:
    """Each window, when it has grown for the last time, has a pane that is on time, and one with which it closes, if
    these are wanted even when empty.
    """
    # What has closed before it grows stays closed, and has no pane of its own.
    closes = group.closes and not (group.windowing.merges and group.finishes and not group.together)
    for place in places:
        said = [out.pane for out in panes.get(place, ()) if out.pane is not None]
        if group.punctual and sum(pane.timing is Timing.ON_TIME for pane in said) != 1:
            raise Broken(f"{stage.name} has put out {said} of {place}: one that is on time is due")
        if closes and sum(pane.is_last for pane in said) != 1:
            raise Broken(f"{stage.name} has put out {said} of {place}: one with which it closes is due")


def _timed(
    stage: Stage,
    group: Group,
    panes: Mapping[Place, Sequence[Out]],
    came: Items,
    places: Mapping[tuple[bytes, Timestamp], Sequence[Window]],
) -> None:
    """A pane has the time of its window's end, or the earliest or latest of what is in it."""
    known: dict[tuple[bytes, bytes], set[Timestamp]] = defaultdict(set)
    for item in came:
        known[item.key, item.atom].add(item.time)
    for (key, window), outs in panes.items():
        for out in outs:
            times = [
                {time for time in known[key, atom] if group.windowing.merges or window in places[key, time]}
                for atom in out.atoms
            ]
            assert out.window is not None
            if any(len(each) > 1 for each in times):
                continue  # an atom that came twice may be here with either
            due = time_of_pane(group, out.window, [time for each in times for time in each])
            if out.time != due:
                raise Broken(f"{stage.name} has put out {out} at {out.time}: its time is {due}")
