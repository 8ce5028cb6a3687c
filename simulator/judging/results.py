"""Check that the outputs of a simulated job are correct.

Owns the comparison with the reference. Where data may be late, it checks less: each input element came out or was
dropped, once. Must not know micro-batches, watermarks or state.
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
    """Return all atoms that were put out, by port."""
    found: dict[Port, Items] = defaultdict(Counter)
    for record in records:
        if isinstance(record, Out):
            found[Port(record.stage, record.output)].update(Item(record.key, a, record.time) for a in record.atoms)
    return found


def check(
    pipeline: Pipeline, records: Sequence[Record], *, drained: bool, begun: Collection[str] | None = None
) -> None:
    """Check the published results of a whole job.

    Args:
        pipeline: the pipeline of the job.
        records: the records of all micro-batches that count, in order.
        drained: whether the job was drained; unbounded sources may then have stopped anywhere.
        begun: the sources that have begun; None: all.

    Raises:
        Broken: a result is wrong.
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
                _same(f"the output of {port}", actual.get(port, Counter()), whole.outputs[port])
        mine, arrived = by_stage[stage.name], whole.arrivals[stage.name]
        match stage.kind:
            case Group() as group:
                _grouped(stage, group, mine, arrived)
                panes.check(stage, group, mine, arrived, fair=stage.name in fair)
            case Keep():
                _kept(stage, mine, arrived)
        # A stage that joins later does not find what was put out before.
        there = all(pipeline.since[side.stage] >= pipeline.since[stage.name] for side in stage.sides)
        if stage.sides and there and all(side.stage in whole.sure and side.stage in fair for side in stage.sides):
            _joined(stage, mine, [item for side in stage.sides for item in whole.outputs[side]])


def _read(stage: Stage, actual: Mapping[Port, Items], drained: bool) -> Sequence[Event]:
    assert isinstance(stage.kind, Source)
    if not drained or stage.kind.bounded:
        return stage.kind.events
    atoms = {item.atom for output in stage.outputs for item in actual.get(Port(stage.name, output), ())}
    return [event for event in stage.kind.events if event.atom in atoms]


def _same(what: str, found: Items, due: Items) -> None:
    if found != due:
        raise Broken(f"{what} is wrong: {_difference(found, due)}")


_Counted = TypeVar("_Counted")


def _difference(found: Counter[_Counted], due: Counter[_Counted]) -> str:
    lacking = sorted((due - found).elements(), key=repr)
    more = sorted((found - due).elements(), key=repr)
    return f"missing {lacking[:5]}, unexpected {more[:5]}"


ResultCounts = Counter[tuple[bytes, bytes, Window | None]]


def places_due(stage: Stage, arrived: Items) -> Iterator[tuple[bytes, bytes, Window | None]]:
    """Yield all atoms of a stage's input, with their keys and windows; merging windows count as None."""
    assert stage.windowing is not None
    for item, count in arrived.items():
        for window in assigned(stage.windowing, item.time):
            for _ in range(count):
                yield item.key, item.atom, None if stage.windowing.merges else window


def outcomes(stage: Stage, records: Iterable[Record]) -> Iterator[tuple[bytes, bytes, Window | None]]:
    """Yield all atoms that came out or were dropped, with their keys and windows."""
    assert stage.windowing is not None
    for record in records:
        for atom in record.atoms:
            yield record.key, atom, None if stage.windowing.merges else record.window


def _grouped(stage: Stage, group: Group, records: Sequence[Record], arrived: Items) -> None:
    what = f"the outputs and drops of {stage.name}"
    due: ResultCounts = Counter(places_due(stage, arrived))
    if not group.accumulating:
        _same_places(what, Counter(outcomes(stage, records)), due)
        return
    drops: ResultCounts = Counter(outcomes(stage, [record for record in records if isinstance(record, Drop)]))
    if group.windowing.merges:
        # Each merge starts a new sequence of panes: check only that no atom is missing and none was never in the input.
        found = set(outcomes(stage, records))
        if found != set(due):
            raise Broken(f"{what} differ from its input: {set(due) ^ found}")
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
            raise Broken(f"pane {out.pane.index} of {place} of {stage.name} lacks atoms of the pane before")
        last[place] = now
    finals: ResultCounts = Counter()
    for (key, window), atoms in last.items():
        for atom, count in atoms.items():
            finals[key, atom, window] += count
    _same_places(f"the last panes and drops of {stage.name}", finals + drops, due)


def _same_places(what: str, found: ResultCounts, due: ResultCounts) -> None:
    if found != due:
        raise Broken(f"{what} do not contain each input element once: {_difference(found, due)}")


def _kept(stage: Stage, records: Sequence[Record], arrived: Items) -> None:
    due: ResultCounts = Counter(places_due(stage, arrived))
    _same_places(f"the outputs and drops of {stage.name}", Counter(outcomes(stage, records)), due)


def _joined(stage: Stage, records: Iterable[Record], side: Iterable[Item]) -> None:
    assert stage.windowing is not None
    there = {window for item in side for window in assigned(stage.windowing, item.time)}
    for out in records:
        if isinstance(out, Out) and out.joined != (out.window in there):
            raise Broken(f"{stage.name} has joined {out} with {'something' if out.joined else 'nothing'}")
