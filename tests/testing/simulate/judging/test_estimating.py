"""An output that is not at the earliest of what its estimators have reported is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.store.manifest.values import Manifest, OutputWatermark, StageWatermarks
from arcbeam.testing.simulate.judging.estimating import Estimates
from arcbeam.testing.simulate.judging.records import Broken, Out
from arcbeam.testing.simulate.scenario.kinds import MAIN, Event, Pass, Source
from arcbeam.testing.simulate.scenario.plans import Pipeline, Stage
from tests.testing.simulate.judging.test_wishes import manifest

PIPELINE = Pipeline(
    (
        Stage("source-1", 0, Source((Event(b"a", b"k", 5),))),
        Stage("pass-2", 1, Pass(5, estimators=2), (Port("source-1", MAIN),)),
    ),
    1,
)


def at(upstream: int, output: int) -> Manifest:
    outputs = (OutputWatermark(MAIN, Timestamp(output)),)
    return replace(manifest(1), watermarks=(StageWatermarks("pass-2", *[Timestamp(upstream)] * 2, outputs),))


def test_an_output_is_at_the_earliest_of_its_estimators_and_never_goes_back() -> None:
    estimates = Estimates(PIPELINE)
    estimates.check(at(0, 0), at(9, 9))
    # Two that see every other of these atoms, by their bytes.
    estimates.add([Out("pass-2", MAIN, b"k", (atom,), Timestamp(time)) for atom, time in ((b"a", 30), (b"b", 20))])
    estimates.check(at(9, 9), at(40, 15))
    estimates.check(at(40, 17), at(40, 17))
    estimates.check(at(40, 15), at(int(MAX_TIMESTAMP), int(MAX_TIMESTAMP)))
    for wrong in (25, 14, 40):
        with pytest.raises(Broken, match="must be at 15"):
            estimates.check(at(9, 9), at(40, wrong))
