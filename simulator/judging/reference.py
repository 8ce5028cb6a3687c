"""Compute the expected outputs of a job from all elements at once.

Owns the output of each stage for a given input without late data. Must not know micro-batches, watermarks or state, nor
the actual outputs where the expected ones follow from the events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from arcbeam.engine.grouping.strategy import PaneTime
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, Timestamp
from arcbeam.model.windows import Window
from simulator.judging.assigning import merged
from simulator.scenario.kinds import MAIN, Buffer, Event, Expand, Group, Join, Keep, Pass, Source
from simulator.scenario.plans import Pipeline, Stage


class Item(NamedTuple):
    """An atom at one place: the unit of comparison of results."""

    key: bytes
    atom: bytes
    time: Timestamp


class Element(NamedTuple):
    """An element between two stages: some atoms together."""

    key: bytes
    atoms: frozenset[bytes]
    time: Timestamp


Items = Counter[Item]


def honest(pipeline: Pipeline) -> frozenset[str]:
    """Return the stages that never get late data.

    No source above them has a surprising event. No stage above them buffers elements without a hold, or joins later, or
    observes timestamps to derive its watermark.
    """
    found: set[str] = set()
    for stage in pipeline.stages:
        if isinstance(stage.kind, Source):
            if not any(event.surprising for event in stage.kind.events):
                found.add(stage.name)
        elif len({pipeline.since[port.stage] for port in stage.inputs}) > 1:
            # The watermark of the earlier input does not fall when another input joins.
            continue
        elif isinstance(stage.kind, Pass) and stage.kind.observes:
            # It may see elements that are late by more than its delay before its input has a watermark.
            continue
        elif not isinstance(stage.kind, Buffer) and all(port.stage in found for port in stage.inputs):
            found.add(stage.name)
    return frozenset(found)


def certain(pipeline: Pipeline) -> frozenset[str]:
    """Return the stages whose output, atom by atom, follows from the events alone."""
    fair, found = honest(pipeline), set[str]()
    for stage in pipeline.stages:
        above = all(port.stage in found for port in stage.inputs)
        match stage.kind:
            case Source():
                sure = True
            case Pass():
                # The output port depends on the bytes of the element, and so on the order of its atoms.
                sure = above and (len(stage.outputs) == 1 or all(is_single(pipeline, port) for port in stage.inputs))
            case Expand() | Join() | Buffer():
                sure = above
            case Keep(way=way):
                sure = above and stage.name in fair and way != "clock or expiration"
            case Group() as group:
                sure = above and stage.name in fair and _settled(group)
        if sure:
            found.add(stage.name)
    return frozenset(found)


def is_single(pipeline: Pipeline, port: Port) -> bool:
    """Return whether all elements of a port have one atom each."""
    stage = pipeline.by_name[port.stage]
    if isinstance(stage.kind, (Source, Expand)):
        return True
    return not isinstance(stage.kind, Group) and all(is_single(pipeline, each) for each in stage.inputs)


def _settled(group: Group) -> bool:
    """Return whether each element that is on time comes out once, in its final window, with a timestamp that follows
    from that window.
    """
    if group.together:
        # A closing pane repeats all elements.
        return not (group.accumulating and group.closes)
    if group.accumulating or group.windowing.merges or group.pane_time is not PaneTime.END_OF_WINDOW:
        return False
    return group.trigger not in ("count once", "watermark or count")


def of_events(events: Iterable[Event]) -> dict[str, Items]:
    """Return the expected outputs of a source, by output."""
    found: dict[str, Items] = defaultdict(Counter)
    for event in events:
        found[event.output][Item(event.key, event.atom, Timestamp(event.time))] += 1
    return found


class Reference:
    """The expected outputs of a whole job, computed from its events.

    Args:
        pipeline: the pipeline of the job.
        events: the events that were read, by source.
        given: the actual outputs; used for stages whose output does not follow from the events.

    Attributes:
        outputs: the expected output of each port; for stages that are not computed, the given one.
        arrivals: the expected input of each stage.
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
            arrived: Items = Counter()
            for port in stage.inputs:
                for item, count in self.outputs[port].items():
                    arrived[item._replace(key=stage.key_of(item.key))] += count
            self.arrivals[stage.name] = arrived
            if stage.name in self.sure:
                made = _made(stage, arrived, events.get(stage.name, ()))
            else:
                made = {output: (given or {}).get(Port(stage.name, output), Counter()) for output in stage.outputs}
            for output in stage.outputs:
                self.outputs[Port(stage.name, output)] = made.get(output, Counter())


def _made(stage: Stage, arrived: Items, events: Iterable[Event]) -> Mapping[str, Items]:
    out: Items = Counter()
    match stage.kind:
        case Source():
            return of_events(events)
        case Pass():
            outputs: dict[str, Items] = {output: Counter() for output in stage.outputs}
            for item, count in arrived.items():
                outputs[stage.outputs[sum(item.atom) % len(stage.outputs)]][item] += count
            return outputs
        case Expand(copies):
            for (key, atom, time), count in arrived.items():
                for copy in range(copies):
                    at = Timestamp(min(time + copy, END_OF_GLOBAL_WINDOW))
                    out[Item(key, b"%b.%d" % (atom, copy), at)] += count
        case Buffer():
            out = arrived.copy()
        case Join() | Keep() | Group():
            places = places_of(stage, arrived)
            times: dict[tuple[bytes, Window], list[Timestamp]] = defaultdict(list)
            for (key, time), windows in places.items():
                for window in windows:
                    times[key, window].append(time)
            for item, count in arrived.items():
                for window in places[item.key, item.time]:
                    out[item._replace(time=_output_time(stage, item.time, window, times[item.key, window]))] += count
    return {MAIN: out}


def _output_time(stage: Stage, time: Timestamp, window: Window, times: Sequence[Timestamp]) -> Timestamp:
    """Return the timestamp of an output for an element of a window; `times` are all timestamps in that window."""
    match stage.kind:
        case Group() as group:
            return time_of_pane(group, window, times)
        case Keep(way="end" | "expiration"):
            return window.max_timestamp
        case _:
            return time


def time_of_pane(group: Group, window: Window, times: Sequence[Timestamp]) -> Timestamp:
    """Return the timestamp of a pane; `times` are the timestamps of all its elements."""
    match group.pane_time:
        case PaneTime.EARLIEST:
            return min(times, default=window.max_timestamp)
        case PaneTime.LATEST:
            return max(times, default=window.max_timestamp)
        case PaneTime.END_OF_WINDOW:
            return window.max_timestamp


def places_of(stage: Stage, arrived: Items) -> Mapping[tuple[bytes, Timestamp], Sequence[Window]]:
    """Return the final windows of all elements, after all merges, by key and timestamp."""
    windowing = stage.windowing
    assert windowing is not None
    times: dict[bytes, dict[Timestamp, None]] = defaultdict(dict)
    for item in arrived:
        times[item.key][item.time] = None
    return {(key, time): merged(windowing, time, mine) for key, mine in times.items() for time in mine}
