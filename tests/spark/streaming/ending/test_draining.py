"""A drain with everything that could delay a job's end: it ends within seconds, and outputs all that it has read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate, window
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.model.timestamps import MAX_TIMESTAMP
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_manifest, read_newest
from tests.notes import note, noted
from tests.spark.streaming.fed import fed, feed
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")

_DAY = 86_400.0
_READ = 40


class Looping(beam.DoFn):
    """A timer that sets itself again whenever it fires."""

    TICK = userstate.TimerSpec("tick", userstate.TimeDomain.WATERMARK)
    COUNT = userstate.CombiningValueStateSpec("count", sum)

    def process(self, pair: Any, tick: Any = beam.DoFn.TimerParam(TICK), time: Any = beam.DoFn.TimestampParam) -> None:
        tick.set(time + 60)

    @userstate.on_timer(TICK)
    def again(
        self,
        time: Any = beam.DoFn.TimestampParam,
        tick: Any = beam.DoFn.TimerParam(TICK),
        count: Any = beam.DoFn.StateParam(COUNT),
    ) -> Iterator[Any]:
        count.add(1)
        if count.read() == 1:
            yield "looped"
        tick.set(time + 60)


class Tomorrow(beam.DoFn):
    """Keeps elements until the end of their window, and has a timer for tomorrow."""

    KEPT = userstate.BagStateSpec("kept", beam.coders.VarIntCoder())
    LATER = userstate.TimerSpec("later", userstate.TimeDomain.REAL_TIME)
    END = userstate.TimerSpec("end", userstate.TimeDomain.WATERMARK)

    def process(
        self,
        pair: tuple[int, int],
        kept: Any = beam.DoFn.StateParam(KEPT),
        later: Any = beam.DoFn.TimerParam(LATER),
        end: Any = beam.DoFn.TimerParam(END),
        of: Any = beam.DoFn.WindowParam,
    ) -> None:
        kept.add(pair[1])
        later.set(Timestamp.of(time.time() + _DAY))
        end.set(of.max_timestamp())

    @userstate.on_timer(LATER)
    def tomorrow(self) -> Iterator[Any]:
        yield "tomorrow"

    @userstate.on_timer(END)
    def over(self, kept: Any = beam.DoFn.StateParam(KEPT)) -> Iterator[Any]:
        yield ("kept", sorted(kept.read()))


class Deferring(beam.DoFn, beam.RestrictionProvider):
    """Yields one of two numbers per day; the rest is bounded, so a drain finishes it."""

    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, 2)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return int(restriction.size())

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[Any]:
        start = tracker.current_restriction().start
        if tracker.try_claim(start):
            yield ("deferred", element, start)
            if start == 0:
                tracker.defer_remainder(Duration(_DAY))


@pytest.mark.contract("END-02", "SDF-09")
def test_drain_ends_within_seconds(tmp_path: Path) -> None:
    source, state, out, read = (tmp_path / name for name in ("source", "state", "out", "read"))
    for folder in (out, read):
        folder.mkdir()
    feed(source, _READ)
    p = beam.Pipeline(
        runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={state}"])
    )
    numbers = fed(p, source) | "Read" >> beam.Map(lambda n, to: note(n, to) or n, str(read))
    pairs = numbers | "Key" >> beam.Map(lambda n: (n % 2, n))
    sessions = pairs | beam.WindowInto(window.Sessions(3600)) | "Sessions" >> beam.GroupByKey()
    hours = pairs | "Hours" >> beam.WindowInto(window.FixedWindows(3600))
    batches = pairs | beam.GroupIntoBatches(1_000_000, max_buffering_duration_secs=_DAY)
    outs = (
        sessions | beam.Map(lambda pair: ("session", pair[0], sorted(pair[1]))),
        batches | "Batch" >> beam.Map(lambda pair: ("batch", pair[0], sorted(pair[1]))),
        hours | "Loop" >> beam.ParDo(Looping()),
        hours | "Tomorrow" >> beam.ParDo(Tomorrow()),
        numbers | "Few" >> beam.Filter(lambda n: n < 2) | beam.ParDo(Deferring()),
    )
    for number, each in enumerate(outs):
        _ = each | f"Out {number}" >> beam.Map(note, str(out))
    result = p.run()
    while_running(result, lambda: len(noted(read)) >= _READ)
    began = time.monotonic()
    result.drain("last")
    assert result.wait_until_finish(120_000) == "DRAINED"
    assert time.monotonic() - began < 60
    evens, odds = (list(range(key, _READ, 2)) for key in (0, 1))
    assert sorted(noted(out), key=repr) == sorted(
        [
            *(("session", key, some) for key, some in enumerate((evens, odds))),
            *(("batch", key, some) for key, some in enumerate((evens, odds))),
            *(("kept", some) for some in (evens, odds)),
            # A drain does not wait for it, and what it has gathered is not lost.
            *("tomorrow", "tomorrow"),
            *(("deferred", n, part) for n in (0, 1) for part in (0, 1)),
            *("looped", "looped"),
        ],
        key=repr,
    )
    blobs = FolderBlobs(state)
    head = known(read_newest(blobs))  # type: ignore[arg-type]
    pin = head.pin("last")
    assert pin is not None
    saved = read_manifest(blobs, pin.micro_batch)
    assert saved.residuals == ()
    assert saved.holds == ()
    assert {output.watermark for of in saved.watermarks for output in of.outputs} == {MAX_TIMESTAMP}
    assert saved.committables == ()
