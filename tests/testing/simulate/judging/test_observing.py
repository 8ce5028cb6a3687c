"""An observed output that is not where what was put out says is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.observers import Policy
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.manifest.values import Manifest, OutputWatermark, StageWatermarks
from arcbeam.testing.simulate.judging.observing import Observations
from arcbeam.testing.simulate.judging.records import Broken, Out
from arcbeam.testing.simulate.scenario.kinds import MAIN, Event, Pass, Source
from arcbeam.testing.simulate.scenario.plans import Pipeline, Stage
from tests.testing.simulate.judging.test_wishes import manifest


def observations(policy: Policy) -> Observations:
    source = Stage("source-1", 0, Source((Event(b"a", b"k", 5),)))
    return Observations(
        Pipeline((source, Stage("pass-2", 1, Pass(5, policy), (Port("source-1", MAIN),))), 1),
    )


def at(said: int, output: int) -> Manifest:
    outputs = (OutputWatermark(MAIN, Timestamp(output)),)
    return replace(manifest(1), watermarks=(StageWatermarks("pass-2", *[Timestamp(said)] * 2, outputs),))


@pytest.mark.parametrize(("policy", "there"), [(Policy.MIN, 25), (Policy.MAX, 40)])
def test_an_output_is_where_what_was_seen_and_said_puts_it_and_never_goes_back(policy: Policy, there: int) -> None:
    known = observations(policy)
    known.check(at(MIN_TIMESTAMP, MIN_TIMESTAMP), at(MIN_TIMESTAMP, MIN_TIMESTAMP))
    known.add([Out("pass-2", MAIN, b"k", (b"a",), Timestamp(time)) for time in (30, 20)])
    known.check(at(9, 9), at(MIN_TIMESTAMP, 25))
    known.check(at(9, 9), at(40, there))
    known.check(at(40, 57), at(40, 57))
    known.check(at(40, 15), at(int(MAX_TIMESTAMP), int(MAX_TIMESTAMP)))
    for wrong in {25, 14, 40} - {there}:
        with pytest.raises(Broken, match=f"must be at {there}"):
            known.check(at(9, 9), at(40, wrong))
