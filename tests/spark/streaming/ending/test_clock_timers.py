"""What waits for processing time when a finite source ends: it is output at its time, as in batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate, window
from apache_beam.transforms.userstate import TimeDomain
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from tests.notes import note, noted
from tests.spark.streaming.fed import fed, feed

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.contract("END-01", "ENG-12")]

_FEW = 10


class Calls(beam.DoFn):
    """Gathers elements for one call: a few of a key, or fewer when one has waited for a second."""

    GATHERED = userstate.BagStateSpec("gathered", beam.coders.VarIntCoder())
    LONG = userstate.TimerSpec("long", TimeDomain.REAL_TIME)

    def process(
        self,
        pair: tuple[int, int],
        gathered: Any = beam.DoFn.StateParam(GATHERED),
        long: Any = beam.DoFn.TimerParam(LONG),
    ) -> Iterator[Any]:
        there = [*gathered.read(), pair[1]]
        if len(there) == _FEW:
            gathered.clear()
            long.clear()
            yield sorted(there)
        else:
            gathered.add(pair[1])
            long.set(Timestamp.of(time.time() + 1))

    @userstate.on_timer(LONG)
    def waited(self, gathered: Any = beam.DoFn.StateParam(GATHERED)) -> Iterator[Any]:
        yield sorted(gathered.read())
        gathered.clear()


def _run(numbers: Any, out: Path, windows: Any) -> None:
    pairs = numbers | "Key" >> beam.Map(lambda n: (n % 3, n)).with_output_types(tuple[int, int])
    called = pairs | "In" >> beam.WindowInto(windows) | "Call" >> beam.ParDo(Calls())
    # The output has the elements' time, so it is not late in a grouping.
    grouped = called | beam.WithKeys(0) | "Group" >> beam.GroupByKey()
    _ = grouped | "Note" >> beam.Map(lambda pair, to: note(sorted(n for some in pair[1] for n in some), to), str(out))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("windows", [window.GlobalWindows(), window.FixedWindows(10**9)])
def test_clock_timers_of_bounded_input_all_fire(tmp_path: Path, windows: Any, streaming: bool) -> None:
    with beam.Pipeline(
        runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=2"] if streaming else [])
    ) as p:
        _run(p | beam.Create(range(64)), tmp_path, windows)
    assert [n for some in noted(tmp_path) for n in some] == list(range(64))


def test_clock_timers_of_ending_stream_all_fire(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    out.mkdir()
    feed(source, 64, end=True)
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=2"]))
    _run(fed(p, source), out, window.FixedWindows(10**9))
    assert p.run().wait_until_finish() == "DONE"
    assert [n for some in noted(out) for n in some] == list(range(64))
