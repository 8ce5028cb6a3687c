"""`side_input` compares what was read from a side input with the outputs of earlier micro-batches."""

from __future__ import annotations

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.timestamps import Timestamp
from simulator.judging.records import Broken, Out
from simulator.judging.sideinputs import Committed, check
from simulator.scenario.kinds import MAIN, Event, Join, Source
from simulator.scenario.plans import Pipeline, Stage
from simulator.scenario.windowings import TENS

PORT = Port("source-1", MAIN)
STAGES = frozenset(("source-1", "join-2"))


def job(newest: bool) -> Pipeline:
    source = Source((Event(b"a", b"k", 3), Event(b"b", b"k", 4)))
    stages = Stage("source-1", 0, source), Stage("join-2", 1, Join(PORT, newest=newest), (PORT,))
    return Pipeline(stages, 1)


def put(*atoms: bytes) -> Out:
    return Out("source-1", MAIN, b"k", atoms, Timestamp(3))


def read(*atoms: bytes) -> Out:
    (window,) = TENS.fn.assign(Timestamp(3))
    return Out("join-2", MAIN, b"k", (b"x",), Timestamp(3), window, joined=bool(atoms), side_input=atoms)


@pytest.mark.parametrize(
    ("newest", "micro_batches"),
    [
        (False, [[read(), put(b"a")], [read(b"a"), put(b"b")], [read(b"a", b"b")]]),
        (True, [[read(), put(b"a")], [read(b"a"), put(b"b"), put(b"c")], [read(b"b", b"c")], [read(b"b", b"c")]]),
    ],
)
def test_reading_contents_of_earlier_micro_batches_passes(newest: bool, micro_batches: list[list[Out]]) -> None:
    check(job(newest), [Committed(records, STAGES) for records in micro_batches])


@pytest.mark.parametrize(
    ("newest", "atoms"),
    [(False, [b"b"]), (False, [b"a", b"a", b"b"]), (False, []), (True, [b"a", b"b"]), (True, [b"a"]), (True, [])],
)
def test_reading_other_contents_is_found(newest: bool, atoms: list[bytes]) -> None:
    with pytest.raises(Broken, match="join-2 has read"):
        check(job(newest), [Committed([record], STAGES) for record in (put(b"a"), put(b"b"), read(*atoms))])


def test_reader_that_joins_does_not_find_earlier_contents() -> None:
    before = Committed([put(b"a")], STAGES - {"join-2"})
    later = [Committed([put(b"b")], STAGES), Committed([read(b"b")], STAGES)]
    check(job(newest=False), [before, *later])
    with pytest.raises(Broken, match="join-2 has read"):
        check(job(newest=False), [Committed([put(b"a")], STAGES), *later])
