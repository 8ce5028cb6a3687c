"""Whether what a simulated job has put out is what it must be.

Owns the comparison with the reference, and what must at least hold where something may have been late: all that came
went out, or was dropped, once. Must not know micro-batches, watermarks or state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.windows import Window
from simulator.judging import panes
from simulator.judging.assigning import assigned
from simulator.judging.records import Broken, Drop, Out, Record
from simulator.judging.reference import Item, Items, Reference, honest
from simulator.scenario.kinds import Event, Group, Keep, Source
from simulator.scenario.plans import Pipeline, Stage


def items_of(records: Iterable[Record]) -> dict[Port, Items]:
    """What was put out, by port."""
    found: dict[Port, Items] = defaultdict(Counter)
    for record in records:
        if isinstance(record, Out):
            found[Port(record.stage, record.output)].update(Item(record.key, a, record.time) for a in record.atoms)
    return found


def check(
    pipeline: Pipeline, records: Sequence[Record], *, drained: bool, begun: Collection[str] | None = None
) -> None:
    """Checks a whole job's published results.

    Args:
        pipeline: what it is.
        records: of all micro-batches that count, in order.
        drained: sources that are not bounded may have stopped anywhere.
        begun: the sources that have begun; None: all.

    Raises:
        Broken: they are not what they must be.
    """
    actual = items_of(records)
    events = {
        stage.name: _read(stage, actual, drained) if begun is None or stage.name in begun else ()
        for stage in pipeline.stages
        if isinstance(stage.kind, Source)
    }
    whole = Reference(pipeline, events, actual)
    by_stage: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_stage[record.stage].append(record)
    fair = honest(pipeline)
    for stage in pipeline.stages:
        if stage.name in whole.sure:
            for output in stage.outputs:
                port = Port(stage.name, output)
                _same(f"what {port} has put out", actual.get(port, Counter()), whole.outputs[port])
        mine, came = by_stage[stage.name], whole.arrivals[stage.name]
        match stage.kind:
            case Group() as group:
                _grouped(stage, group, mine, came)
                panes.check(stage, group, mine, came, fair=stage.name in fair)
            case Keep():
                _kept(stage, mine, came)
        if stage.sides and all(side.stage in whole.sure and side.stage in fair for side in stage.sides):
            _joined(stage, mine, [item for side in stage.sides for item in whole.outputs[side]])


def _read(stage: Stage, actual: Mapping[Port, Items], drained: bool) -> Sequence[Event]:
    assert isinstance(stage.kind, Source)
    if not drained or stage.kind.bounded:
        return stage.kind.events
    atoms = {item.atom for output in stage.outputs for item in actual.get(Port(stage.name, output), ())}
    return [event for event in stage.kind.events if event.atom in atoms]


def _same(what: str, found: Items, due: Items) -> None:
    if found != due:
        raise Broken(f"{what} is not what it must be: {_difference(found, due)}")


_Counted = TypeVar("_Counted")


def _difference(found: Counter[_Counted], due: Counter[_Counted]) -> str:
    lacking = sorted((due - found).elements(), key=repr)
    more = sorted((found - due).elements(), key=repr)
    return f"lacking {lacking[:5]}, too much {more[:5]}"


Placed = Counter[tuple[bytes, bytes, Window | None]]


def places_due(stage: Stage, came: Items) -> Iterator[tuple[bytes, bytes, Window | None]]:
    """All atoms that have come to a stage, with their keys and windows; of windows that merge, without."""
    assert stage.windowing is not None
    for item, count in came.items():
        for window in assigned(stage.windowing, item.time):
            for _ in range(count):
                yield item.key, item.atom, None if stage.windowing.merges else window


def outcomes(stage: Stage, records: Iterable[Record]) -> Iterator[tuple[bytes, bytes, Window | None]]:
    """All atoms that went out or were dropped, with their windows."""
    assert stage.windowing is not None
    for record in records:
        for atom in record.atoms:
            yield record.key, atom, None if stage.windowing.merges else record.window


def _grouped(stage: Stage, group: Group, records: Sequence[Record], came: Items) -> None:
    what = f"what {stage.name} has put out and dropped"
    due: Placed = Counter(places_due(stage, came))
    if not group.accumulating:
        _same_places(what, Counter(outcomes(stage, records)), due)
        return
    drops: Placed = Counter(outcomes(stage, [record for record in records if isinstance(record, Drop)]))
    if group.windowing.merges:
        # Windows grow, and each begins its panes anew: nothing must be missing, and nothing come from nowhere.
        found = set(outcomes(stage, records))
        if found != set(due):
            raise Broken(f"{what} is not what has come: {set(due) ^ found}")
        return
    last: dict[tuple[bytes, Window | None], Counter[bytes]] = {}
    for out in records:
        if not isinstance(out, Out):
            continue
        assert out.pane is not None
        place = out.key, out.window
        before = last.get(place, Counter())
        now = Counter(out.atoms)
        if not before <= now:
            raise Broken(f"pane {out.pane.index} of {place} of {stage.name} lacks what was in the one before")
        last[place] = now
    finals: Placed = Counter()
    for (key, window), atoms in last.items():
        for atom, count in atoms.items():
            finals[key, atom, window] += count
    _same_places(f"the last panes and drops of {stage.name}", finals + drops, due)


def _same_places(what: str, found: Placed, due: Placed) -> None:
    if found != due:
        raise Broken(f"{what} is not all that came, once: {_difference(found, due)}")


def _kept(stage: Stage, records: Sequence[Record], came: Items) -> None:
    due: Placed = Counter(places_due(stage, came))
    _same_places(f"what {stage.name} has put out and dropped", Counter(outcomes(stage, records)), due)


def _joined(stage: Stage, records: Iterable[Record], side: Iterable[Item]) -> None:
    assert stage.windowing is not None
    there = {window for item in side for window in assigned(stage.windowing, item.time)}
    for out in records:
        if isinstance(out, Out) and out.joined != (out.window in there):
            raise Broken(f"{stage.name} has joined {out} with {'something' if out.joined else 'nothing'}")
