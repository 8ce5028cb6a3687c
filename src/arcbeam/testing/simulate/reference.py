"""What a job must put out, by a plain computation over all elements at once.

Owns what each stage makes of what it gets when nothing is late, and what must at least hold of it when something may be.
Must not know steps, watermarks or state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from arcbeam.engine.clocks import Port
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, Timestamp
from arcbeam.model.windows import IntervalWindow, Window
from arcbeam.testing.simulate.plans import MAIN, Event, Expand, Group, Join, Keep, Pass, Pipeline, Source, Stage
from arcbeam.testing.simulate.records import Broken, Drop, Out, Record


class Item(NamedTuple):
    """An atom somewhere: the unit in which results are compared."""

    key: bytes
    atom: bytes
    time: Timestamp


class Element(NamedTuple):
    """What goes from a stage to the next: some atoms together."""

    key: bytes
    atoms: frozenset[bytes]
    time: Timestamp


Items = Counter[Item]


def honest(pipeline: Pipeline) -> frozenset[str]:
    """The stages to which nothing can come too late: no source above them is ever surprised."""
    found: set[str] = set()
    for stage in pipeline.stages:
        if isinstance(stage.kind, Source):
            if not any(event.surprising for event in stage.kind.events):
                found.add(stage.name)
        elif all(port.stage in found for port in stage.inputs):
            found.add(stage.name)
    return frozenset(found)


def certain(pipeline: Pipeline) -> frozenset[str]:
    """The stages whose output, atom by atom, follows from the events alone."""
    fair, found = honest(pipeline), set[str]()
    for stage in pipeline.stages:
        above = all(port.stage in found for port in stage.inputs)
        match stage.kind:
            case Source():
                sure = True
            case Pass():
                # Which way an element goes is told by its bytes, and so by the order of its atoms.
                sure = above and (len(stage.outputs) == 1 or all(_single(pipeline, port) for port in stage.inputs))
            case Expand() | Join():
                sure = above
            case Keep(way=way):
                sure = above and stage.name in fair and way != "clock or expiration"
            case Group() as group:
                sure = above and stage.name in fair and _settled(group)
        if sure:
            found.add(stage.name)
    return frozenset(found)


def _single(pipeline: Pipeline, port: Port) -> bool:
    """Whether elements of a port have one atom each."""
    stage = pipeline.by_name[port.stage]
    if isinstance(stage.kind, (Source, Expand)):
        return True
    return not isinstance(stage.kind, Group) and all(_single(pipeline, each) for each in stage.inputs)


def _settled(group: Group) -> bool:
    """Whether all that comes in time goes out once, in panes of the window that it is in at last."""
    if group.trigger in ("count once", "watermark or count"):
        return False
    if group.windowing.name == "sessions" and group.trigger not in ("watermark", "repeated watermark"):
        return False
    return not group.accumulating or group.trigger in ("watermark", "repeated watermark")


def of_events(events: Iterable[Event]) -> dict[str, Items]:
    """What a source puts out, by output."""
    found: dict[str, Items] = defaultdict(Counter)
    for event in events:
        found[event.output][Item(event.key, event.atom, Timestamp(event.time))] += 1
    return found


class Reference:
    """The whole job, from its events.

    Args:
        pipeline: what it is.
        given: what stages have really put out whose output does not follow from the events.
        events: what of each source's was read.

    Attributes:
        outputs: what each port must have put out; for those that are given, that.
        arrivals: what each stage must have got.
        sure: the stages whose outputs are computed.
    """

    def __init__(
        self, pipeline: Pipeline, events: Mapping[str, Iterable[Event]], given: Mapping[Port, Items] | None = None
    ) -> None:
        self.pipeline = pipeline
        self.sure = certain(pipeline)
        self.outputs: dict[Port, Items] = {}
        self.arrivals: dict[str, Items] = {}
        for stage in pipeline.stages:
            came: Items = Counter()
            for port in stage.inputs:
                for item, count in self.outputs[port].items():
                    came[item._replace(key=stage.key_of(item.key))] += count
            self.arrivals[stage.name] = came
            if stage.name in self.sure:
                made = _made(stage, came, events.get(stage.name, ()))
            else:
                made = {output: (given or {}).get(Port(stage.name, output), Counter()) for output in stage.outputs}
            for output in stage.outputs:
                self.outputs[Port(stage.name, output)] = made.get(output, Counter())


def _made(stage: Stage, came: Items, events: Iterable[Event]) -> Mapping[str, Items]:
    out: Items = Counter()
    match stage.kind:
        case Source():
            return of_events(events)
        case Pass():
            outputs: dict[str, Items] = {output: Counter() for output in stage.outputs}
            for item, count in came.items():
                outputs[stage.outputs[sum(item.atom) % len(stage.outputs)]][item] += count
            return outputs
        case Expand(copies):
            for (key, atom, time), count in came.items():
                for copy in range(copies):
                    at = Timestamp(min(time + copy, END_OF_GLOBAL_WINDOW))
                    out[Item(key, b"%b.%d" % (atom, copy), at)] += count
        case Join() | Keep() | Group():
            for item, count in came.items():
                for window in windows_of(stage, item, came):
                    out[item._replace(time=_goes_on(stage, item.time, window))] += count
    return {MAIN: out}


def _goes_on(stage: Stage, time: Timestamp, window: Window) -> Timestamp:
    """The time that something of a window has when it goes on."""
    at_end = isinstance(stage.kind, Group) or (isinstance(stage.kind, Keep) and stage.kind.way in ("end", "expiration"))
    return window.max_timestamp if at_end else time


def windows_of(stage: Stage, item: Item, came: Items) -> Sequence[Window]:
    """The windows of an item, merged with those of all others of its key if they merge."""
    assert stage.windowing is not None
    windows = stage.windowing.fn.assign(item.time)
    if stage.windowing.name != "sessions":
        return windows
    gap = stage.windowing.size
    times = sorted({each.time for each in came if each.key == item.key})
    at = times.index(item.time)
    first = last = at
    while first and times[first] - times[first - 1] < gap:
        first -= 1
    while last + 1 < len(times) and times[last + 1] - times[last] < gap:
        last += 1
    return (IntervalWindow(times[first], Timestamp(times[last] + gap)),)


# What was really put out, and what must hold of it.


def items_of(records: Iterable[Record]) -> dict[Port, Items]:
    """What was put out, by port."""
    found: dict[Port, Items] = defaultdict(Counter)
    for record in records:
        if isinstance(record, Out):
            found[Port(record.stage, record.output)].update(Item(record.key, a, record.time) for a in record.atoms)
    return found


def check(pipeline: Pipeline, records: Sequence[Record], *, drained: bool) -> None:
    """Checks a whole job's published results.

    Args:
        pipeline: what it is.
        records: of all steps that count, in order.
        drained: sources that are not bounded may have stopped anywhere.

    Raises:
        Broken: they are not what they must be.
    """
    actual = items_of(records)
    events = {stage.name: _read(stage, actual, drained) for stage in pipeline.stages if isinstance(stage.kind, Source)}
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
                if group.once and stage.name in fair:
                    _once(stage, mine)
            case Keep():
                _kept(stage, mine, came)
            case Join(side) if side.stage in whole.sure and side.stage in fair:
                _joined(stage, mine, whole.outputs[side])


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


def _assigned(stage: Stage, came: Items) -> Iterator[tuple[bytes, bytes, Window | None]]:
    assert stage.windowing is not None
    for item, count in came.items():
        for window in stage.windowing.fn.assign(item.time):
            for _ in range(count):
                yield item.key, item.atom, None if stage.windowing.name == "sessions" else window


def _outcomes(stage: Stage, records: Iterable[Record]) -> Iterator[tuple[bytes, bytes, Window | None]]:
    """All atoms that went out or were dropped, with their windows."""
    assert stage.windowing is not None
    for record in records:
        for atom in record.atoms:
            yield record.key, atom, None if stage.windowing.name == "sessions" else record.window


def _grouped(stage: Stage, group: Group, records: Sequence[Record], came: Items) -> None:
    what = f"what {stage.name} has put out and dropped"
    due: Placed = Counter(_assigned(stage, came))
    if not group.accumulating:
        _same_places(what, Counter(_outcomes(stage, records)), due)
        _counts(stage, group, records)
        return
    drops: Placed = Counter(_outcomes(stage, [record for record in records if isinstance(record, Drop)]))
    panes = [record for record in records if isinstance(record, Out)]
    if group.windowing.name == "sessions":
        # Windows grow, and each begins its panes anew: nothing must be missing, and nothing come from nowhere.
        found = set(_outcomes(stage, records))
        if found != set(due):
            raise Broken(f"{what} is not what has come: {set(due) ^ found}")
        return
    last: dict[tuple[bytes, Window | None], tuple[int, Counter[bytes]]] = {}
    for out in panes:
        assert out.pane is not None
        place = out.key, out.window
        index, before = last.get(place, (-1, Counter()))
        if out.pane.index != index + 1:
            raise Broken(f"{stage.name} has put out pane {out.pane.index} of {place} behind pane {index}")
        now = Counter(out.atoms)
        if not before <= now:
            raise Broken(f"pane {out.pane.index} of {place} of {stage.name} lacks what was in the one before")
        last[place] = out.pane.index, now
    finals: Placed = Counter()
    for (key, window), (_, atoms) in last.items():
        for atom, count in atoms.items():
            finals[key, atom, window] += count
    _same_places(f"the last panes and drops of {stage.name}", finals + drops, due)


def _same_places(what: str, found: Placed, due: Placed) -> None:
    if found != due:
        raise Broken(f"{what} is not all that came, once: {_difference(found, due)}")


def _counts(stage: Stage, group: Group, records: Iterable[Record]) -> None:
    """Panes of a trigger that counts are as large as it counts, but for the last."""
    numbers: dict[tuple[bytes, Window | None], int] = {}
    for out in records:
        if not isinstance(out, Out) or group.windowing.name == "sessions":
            continue
        assert out.pane is not None
        place = out.key, out.window
        if out.pane.index != numbers.get(place, -1) + 1 or out.pane.is_first != (out.pane.index == 0):
            raise Broken(f"{stage.name} has put out pane {out.pane} of {place} behind pane {numbers.get(place)}")
        numbers[place] = out.pane.index


def _once(stage: Stage, records: Iterable[Record]) -> None:
    """Nothing is late: there is one pane for each window, on time."""
    seen: set[tuple[bytes, Window | None]] = set()
    for out in records:
        if isinstance(out, Out):
            assert out.pane is not None
            if (out.key, out.window) in seen or out.pane.timing.value != "on time" or not out.pane.is_first:
                raise Broken(f"{stage.name} has put out {out}, where one pane on time is due")
            seen.add((out.key, out.window))


def _kept(stage: Stage, records: Sequence[Record], came: Items) -> None:
    due: Placed = Counter(_assigned(stage, came))
    _same_places(f"what {stage.name} has put out and dropped", Counter(_outcomes(stage, records)), due)


def _joined(stage: Stage, records: Iterable[Record], side: Items) -> None:
    assert stage.windowing is not None
    there = {window for item in side for window in stage.windowing.fn.assign(item.time)}
    for out in records:
        if isinstance(out, Out) and out.joined != (out.window in there):
            raise Broken(f"{stage.name} has joined {out} with {'something' if out.joined else 'nothing'}")
