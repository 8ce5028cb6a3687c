"""Side inputs that change while a job runs: the values that are read, and the number of files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import trigger, window
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.log.chain import read_newest
from arcbeam.store.manifest.values import Manifest
from tests.notes import note, noted
from tests.offsets import WholeUpTo

pytestmark = pytest.mark.usefixtures("spark")

MICRO_BATCHES = 14


class OneAMicroBatch(beam.DoFn, WholeUpTo):
    """Yields a number, and defers the rest to the next micro-batch."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[int]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield at
            tracker.defer_remainder(Timestamp.of(time.time() + 0.05))


def always(mode: Any) -> beam.WindowInto:
    """A window without an end that fires whenever elements arrive."""
    return beam.WindowInto(
        window.GlobalWindows(), trigger=trigger.Repeatedly(trigger.AfterCount(1)), accumulation_mode=mode
    )


@pytest.mark.contract("ENG-05", "STORE-04")
def test_newest_firing_is_read_and_files_stay_few(tmp_path: Path) -> None:
    state, seen_folder = tmp_path / "state", tmp_path / "seen"
    seen_folder.mkdir()
    options = PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={state}"])
    with beam.Pipeline(runner=ArcbeamRunner(), options=options) as p:
        polls = p | beam.Create([MICRO_BATCHES]) | beam.ParDo(OneAMicroBatch())
        # Several firings of a micro-batch, each with all earlier values.
        twice = polls | "Twice" >> beam.FlatMap(lambda n: [n, n]) | always(trigger.AccumulationMode.ACCUMULATING)
        count = twice | beam.combiners.Count.Globally().without_defaults()
        table = polls | beam.FlatMap(lambda n: [(key, n) for key in "abc"])
        table |= "Table" >> always(trigger.AccumulationMode.DISCARDING)
        _ = polls | beam.Map(
            lambda n, count, table, by_key, folder: note((n, count, sorted(table), list(by_key["a"])), folder),
            beam.pvalue.AsSingleton(count),
            beam.pvalue.AsList(table),
            beam.pvalue.AsMultiMap(table),
            str(seen_folder),
        )
    seen = sorted(noted(seen_folder))
    assert [n for n, *_ in seen] == list(range(MICRO_BATCHES))
    last = -1
    for _, count, listed, by_key in seen:
        # A micro-batch may have had more than one poll.
        polls_read = sorted(by_key)
        assert polls_read == list(range(polls_read[0], polls_read[-1] + 1))
        assert listed == sorted((key, poll) for key in "abc" for poll in polls_read)
        assert count % 2 == 0
        assert last <= polls_read[-1]
        last = polls_read[-1]
    assert seen[-1][3][0] == 0, "the pane must have all values"
    head = read_newest(open_blobs(str(state)))
    assert isinstance(head, Manifest)
    assert len(head.side_files) <= 3 * 6
