"""What the judge of a replay accepts, and what it rejects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import IntervalWindow, PaneInfo, Timing
from simulator.judging.records import Broken, Out
from simulator.scenario.kinds import MAIN, Event, Group, Source
from simulator.scenario.plans import Pipeline, Stage
from simulator.scenario.windowings import Windowing
from tests.spark.streaming.replay.judging import judge

EVENTS = (Event(b"a0", b"k", 4), Event(b"a1", b"k", 5), Event(b"a2", b"k", 14))
GROUP = Group(Windowing("fixed", 10))
PIPELINE = Pipeline(
    (Stage("source-1", 0, Source(EVENTS)), Stage("group-2", 1, GROUP, (Port("source-1", MAIN),))), shards=1
)
ON_TIME = PaneInfo(0, 0, Timing.ON_TIME, True, True)


def read(*events: Event) -> list[Out]:
    return [Out("source-1", MAIN, event.key, (event.atom,), Timestamp(event.time)) for event in events]


def pane(start: int, *atoms: bytes) -> Out:
    window = IntervalWindow(Timestamp(start), Timestamp(start + 10))
    return Out("group-2", MAIN, b"k", atoms, window.max_timestamp, window, ON_TIME, elements=len(atoms))


RIGHT = [*read(*EVENTS), pane(3, b"a1", b"a0"), pane(13, b"a2")]


def surprised(*atoms: bytes) -> Pipeline:
    """Return the same with events that the source does not expect."""
    events = tuple(replace(event, surprising=event.atom in atoms) for event in EVENTS)
    source, group = PIPELINE.stages
    return Pipeline((replace(source, kind=Source(events)), group), shards=1)


def test_right_output_is_accepted_in_any_order() -> None:
    assert judge(PIPELINE, RIGHT) == judge(PIPELINE, RIGHT[::-1]) == []


@pytest.mark.parametrize(
    "outs",
    [
        RIGHT[:-1],
        [*RIGHT, RIGHT[-1]],
        [*RIGHT[1:], RIGHT[1]],
        [*RIGHT[:3], pane(3, b"a0"), RIGHT[-1]],
        [*RIGHT[:3], pane(3, b"a0", b"a1", b"a2")],
        [*RIGHT[:-1], RIGHT[-1]._replace(time=Timestamp(21))],
        [*RIGHT[:-1], RIGHT[-1]._replace(pane=ON_TIME._replace(timing=Timing.EARLY))],
        [*RIGHT[:-1], RIGHT[-1]._replace(key=b"l")],
    ],
    ids=["lacking", "twice", "another", "an atom lacking", "elsewhere", "its time", "its pane", "its key"],
)
def test_wrong_output_is_rejected(outs: list[Out]) -> None:
    with pytest.raises(Broken):
        judge(PIPELINE, outs)


def test_only_surprises_may_be_dropped() -> None:
    (drop,) = judge(surprised(b"a2"), RIGHT[:-1])
    assert (drop.stage, drop.atoms) == ("group-2", (b"a2",))
    with pytest.raises(Broken, match="which its source expected"):
        judge(surprised(b"a0"), RIGHT[:-1])
    with pytest.raises(Broken):
        judge(surprised(b"a2"), [*RIGHT, RIGHT[-1]])
