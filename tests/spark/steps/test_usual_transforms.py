"""Beam's own transforms with --streaming, on Spark: sources that are polled, sinks in windows, timers of the clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io import fileio
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window
from apache_beam.transforms.deduplicate import Deduplicate
from apache_beam.transforms.periodicsequence import PeriodicImpulse, PeriodicSequence
from apache_beam.transforms.util import WaitOn
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam import ArcbeamRunner
from tests.notes import note, noted
from tests.offsets import Endless

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=3", *arguments]))


def ticks(p: beam.Pipeline, seconds: float = 1.5, every: float = 0.25) -> beam.PCollection:
    """Some moments from now on, each when it has come."""
    start = time.time()
    return p | PeriodicImpulse(start, start + seconds, every, apply_windowing=False)


def numbered(p: beam.Pipeline, count: int = 6) -> beam.PCollection:
    """Numbers from 0, each when its moment has come."""
    start = Timestamp.of(time.time())
    end = start + Duration(count * 0.25)
    return p | PeriodicImpulse(start, end, 0.25, data=list(range(count)))


@pytest.mark.contract("SDF-04", "SDF-12")
def test_several_sequences_at_once_are_each_complete() -> None:
    start = time.time()
    with pipeline() as p:
        sequences = p | beam.Create([(start + n / 10, start + n / 10 + 1, 0.5) for n in range(4)])
        counts = (
            sequences
            | PeriodicSequence()
            | beam.WindowInto(window.FixedWindows(1000))
            | beam.combiners.Count.PerElement()
        )
        assert_that(
            counts | beam.MapTuple(lambda at, count: (round(float(at) - start, 3), count)),
            equal_to([(round(n / 10 + step / 2, 3), 1) for n in range(4) for step in range(2)]),
        )


def test_files_that_come_are_matched_once_and_read(tmp_path: Path) -> None:
    watched, read = tmp_path / "watched", tmp_path / "read"
    watched.mkdir()
    read.mkdir()
    (watched / "first.txt").write_text("a\nb\n")

    def late(line: str, folder: str) -> None:
        if line == "a":
            Path(folder, "second.txt").write_text("c\nd\n")
        note(line, str(read))

    now = time.time()
    with pipeline() as p:
        files = p | fileio.MatchContinuously(
            str(watched / "*.txt"), interval=0.3, start_timestamp=now, stop_timestamp=now + 4
        )
        lines = files | beam.Map(lambda file: file.path) | beam.io.ReadAllFromText()
        _ = lines | beam.Map(late, str(watched))
    assert Counter(noted(read)) == Counter("abcd")


def test_a_file_is_read_whole_where_a_stream_is_expected(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{n}\n" for n in range(1000)))
    with pipeline() as p:
        total = p | beam.io.ReadFromText(str(tmp_path / "lines")) | beam.Map(int) | beam.CombineGlobally(sum)
        assert_that(total, equal_to([499500]))


@pytest.mark.contract("ENG-05")
def test_text_is_written_in_windows(tmp_path: Path) -> None:
    with pipeline() as p:
        _ = (
            numbered(p, 8)
            | beam.Map(str)
            | beam.io.WriteToText(str(tmp_path / "out"), file_name_suffix=".txt", num_shards=1, triggering_frequency=1)
        )
    files = list(tmp_path.glob("out*.txt"))
    assert sorted(int(line) for file in files for line in file.read_text().split()) == list(range(8))
    assert len(files) >= 2


def test_files_are_written_in_windows(tmp_path: Path) -> None:
    with pipeline() as p:
        _ = (
            numbered(p, 8)
            | beam.Map(str)
            | beam.WindowInto(window.FixedWindows(1))
            | fileio.WriteToFiles(str(tmp_path), sink=lambda dest: fileio.TextSink(), shards=1)
        )
    files = [file for file in tmp_path.iterdir() if file.is_file()]
    assert sorted(int(line) for file in files for line in file.read_text().split()) == list(range(8))
    assert len(files) >= 2


class Until(beam.DoFn):
    """The time, several times a second, until a folder has so many notes."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: tuple[str, int], tracker: Any = beam.DoFn.RestrictionParam(Endless())) -> Iterator[Any]:
        folder, count = element
        at = tracker.current_restriction().start
        if len(noted(Path(folder))) >= count:
            tracker.try_claim(2**60)
        elif tracker.try_claim(at):
            yield 0, time.time()
            tracker.defer_remainder(Duration(0.1))


@pytest.mark.contract("ENG-12", "SDF-10")
def test_a_batch_that_is_not_full_goes_out_when_it_has_waited_long_enough(tmp_path: Path) -> None:
    """Though no watermark is reported: it is the clock that counts."""
    with pipeline() as p:
        keyed = (
            p
            | beam.Create([(str(tmp_path), 3)], reshuffle=False)
            | beam.ParDo(Until()).with_output_types(tuple[int, float])
        )
        batches = keyed | beam.GroupIntoBatches(1000, max_buffering_duration_secs=0.3)
        _ = batches | beam.Map(lambda batch, to: note(time.time() - min(batch[1]), to), str(tmp_path))
    waited = noted(tmp_path)
    assert len(waited) >= 3
    assert sum(seconds >= 0.3 for seconds in waited) >= len(waited) - 1, "all but the last, which the end let out"


@pytest.mark.contract("ENG-12")
def test_what_comes_again_within_a_time_comes_out_once(tmp_path: Path) -> None:
    with pipeline() as p:
        twice = ticks(p, 2) | beam.FlatMap(lambda at: ["always", f"at {at}"])
        first = twice | Deduplicate(event_time_duration=Duration(1000))
        _ = first | beam.Map(note, str(tmp_path))
    found = Counter(noted(tmp_path))
    assert found["always"] == 1
    assert len(found) == 9
    assert set(found.values()) == {1}


@pytest.mark.contract("ENG-05")
def test_who_waits_goes_on_when_the_window_of_what_it_waits_for_is_over(tmp_path: Path) -> None:
    done, seen = tmp_path / "done", tmp_path / "seen"
    done.mkdir()
    seen.mkdir()

    def work(at: Any, folder: str) -> Any:
        note(float(at), folder)
        return at

    with pipeline() as p:
        windowed = ticks(p, 2.5) | beam.WindowInto(window.FixedWindows(1))
        worked = windowed | "Work" >> beam.Map(work, str(done))
        waited = windowed | WaitOn(worked)
        _ = waited | "See" >> beam.Map(
            lambda at, done, seen: note((float(at), sum(int(other) == int(at) for other in noted(Path(done)))), seen),
            str(done),
            str(seen),
        )
    every = Counter(int(at) for at in noted(done))
    assert sum(every.values()) == 10
    assert sorted(noted(seen)) == [(at, every[int(at)]) for at in sorted(noted(done))]
