"""`observing` finds output watermarks that do not follow from the observed timestamps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.observers import Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.manifest.values import Manifest, OutputWatermark, StageWatermarks
from simulator.judging.firing import MicroBatchRun
from simulator.judging.observing import Observations
from simulator.judging.records import Broken, Out
from simulator.scenario.kinds import MAIN, Event, Pass, Shared, Source
from simulator.scenario.plans import Pipeline, Stage
from tests.simulator.judging.test_requests import manifest

NOW = 1000


def observations(kind: Pass) -> Observations:
    source = Stage("source-1", 0, Source((Event(b"a", b"k", 5),)))
    return Observations(
        Pipeline((source, Stage("pass-2", 1, kind, (Port("source-1", MAIN),))), 1),
    )


def ran(now: int, reported: int = 9) -> MicroBatchRun:
    return MicroBatchRun(Timestamp(now), {"pass-2": Timestamp(reported)}, frozenset())


def outs(*times: int) -> list[Out]:
    return [Out("pass-2", MAIN, b"k", (b"a",), Timestamp(time)) for time in times]


def at(reported: int, output: int) -> Manifest:
    outputs = (OutputWatermark(MAIN, Timestamp(output)),)
    return replace(manifest(1), watermarks=(StageWatermarks("pass-2", *[Timestamp(reported)] * 2, outputs),))


@pytest.mark.parametrize(("policy", "there"), [(Policy.MIN, 25), (Policy.MAX, 40)])
def test_output_watermark_follows_policy_and_never_falls(policy: Policy, there: int) -> None:
    known = observations(Pass(5, policy))
    known.check(at(MIN_TIMESTAMP, MIN_TIMESTAMP), at(MIN_TIMESTAMP, MIN_TIMESTAMP))
    known.add(ran(NOW), outs(30, 20))
    known.check(at(9, 9), at(MIN_TIMESTAMP, 25))
    known.check(at(9, 9), at(40, there))
    known.check(at(40, 57), at(40, 57))
    known.check(at(40, 15), at(int(MAX_TIMESTAMP), int(MAX_TIMESTAMP)))
    for wrong in {25, 14, 40} - {there}:
        with pytest.raises(Broken, match=f"must be at {there}"):
            known.check(at(9, 9), at(40, wrong))


def test_timestamp_far_ahead_of_clock_is_ignored() -> None:
    known = observations(Pass(0, skew=50))
    known.add(ran(NOW), outs(1051, 1050))
    known.check(at(9, 9), at(2000, 1050))
    with pytest.raises(Broken, match="must be at 1050"):
        known.check(at(9, 9), at(2000, 1051))
    known.add(ran(NOW + 1), outs(1051))
    known.check(at(9, 9), at(2000, 1051))


def test_idle_input_counts_again_when_it_advances() -> None:
    known = observations(Pass(0, idle=100))
    known.add(ran(NOW), outs(30))
    known.add(ran(NOW + 99), [])
    known.check(at(9, 9), at(9, 9))
    with pytest.raises(Broken, match="must be at 9"):
        known.check(at(9, 9), at(9, 30))
    known.add(ran(NOW + 100), outs(40))
    known.check(at(9, 9), at(9, 40))
    with pytest.raises(Broken, match="must be at 40"):
        known.check(at(9, 9), at(9, 9))
    known.add(ran(NOW + 150, 35), outs(50))
    known.check(at(9, 40), at(35, 40))
    with pytest.raises(Broken, match="must be at 40"):
        known.check(at(9, 40), at(35, 50))
    known.add(ran(NOW + 250, 35), [])
    known.check(at(35, 40), at(35, 50))


@pytest.mark.parametrize(("policy", "idle", "first"), [(Policy.MIN, 100, 9), (Policy.MAX, None, 30)])
def test_shared_observer_follows_policy_without_ended_inputs(policy: Policy, idle: int | None, first: int) -> None:
    kind = Pass(0, Policy.MAX, idle=idle, shared=Shared("both", policy))
    source = Stage("source-1", 0, Source((Event(b"a", b"k", 5),)))
    parts = [Stage(name, 1, kind, (Port("source-1", MAIN),)) for name in ("pass-2", "pass-3")]
    known, before = Observations(Pipeline((source, *parts), 1)), MIN_TIMESTAMP
    for after, one, other, there in [(0, 9, 30, first), (100, 9, 33, 33), (110, 32, MAX_TIMESTAMP, 33)]:
        inputs = {"pass-2": Timestamp(one), "pass-3": Timestamp(other)}
        known.add(MicroBatchRun(Timestamp(NOW + after), inputs, frozenset()), outs(70))
        known.check(at(9, before), at(one, there))
        for wrong in (there - 1, 70, END_OF_GLOBAL_WINDOW):
            with pytest.raises(Broken, match=f"must be at {there}"):
                known.check(at(9, before), at(one, wrong))
        before = Timestamp(there)


def test_quantile_is_between_ranks_once_known() -> None:
    known = observations(Pass(0, quantile=0.9))
    known.add(ran(NOW), outs(*range(100, 109)))
    known.check(at(9, MIN_TIMESTAMP), at(500, MIN_TIMESTAMP))
    with pytest.raises(Broken, match=f"must be at {MIN_TIMESTAMP}"):
        known.check(at(9, MIN_TIMESTAMP), at(500, 108))
    known.add(ran(NOW + 1), outs(*range(200, 291)))
    for there in (276, 280, 284):
        known.check(at(9, 9), at(500, there))
    for wrong in (9, 100, 265, 290):
        with pytest.raises(Broken, match="must be at 276 to 284"):
            known.check(at(9, 9), at(500, wrong))
    known.add(ran(NOW + 2), outs(*[100] * 1000))
    known.check(at(9, 279), at(500, 279))
