"""Pipelines in a streaming job on Spark: --streaming does not change their output."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, userstate, window
from apache_beam.transforms.periodicsequence import PeriodicImpulse

from arcbeam import ArcbeamRunner
from arcbeam.errors import UserCodeError
from arcbeam.store.blobs.errors import IncompatibleStateError
from tests.notes import note, noted
from tests.spark.streaming.fed import fed, feed
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=3", *arguments]))


def timed(p: beam.Pipeline, count: int, keys: int = 3) -> beam.PCollection:
    """Return numbers, each at its own second."""
    made = p | beam.Impulse() | beam.FlatMap(lambda _, count: range(count), count)
    return made | "Time" >> beam.Map(lambda x, keys: window.TimestampedValue((x % keys, x), x), keys)


@pytest.mark.contract("API-01", "ENG-11")
def test_windows_are_combined_over_levels_and_flattened() -> None:
    with pipeline() as p:
        windowed = timed(p, 60) | beam.WindowInto(window.FixedWindows(20))
        sums = windowed | beam.CombinePerKey(sum)
        both = (windowed, sums) | beam.Flatten() | beam.GroupByKey()
        assert_that(
            both | beam.MapTuple(lambda key, values: (key, len(values), max(values) == sum(values) / 2)),
            equal_to([(key, n, True) for key in range(3) for n in (8, 8, 7)]),
        )


class CountToTheEnd(beam.DoFn):
    COUNT = userstate.CombiningValueStateSpec("count", sum)
    END = userstate.TimerSpec("end", userstate.TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        count: Any = beam.DoFn.StateParam(COUNT),
        end: Any = beam.DoFn.TimerParam(END),
        of: Any = beam.DoFn.WindowParam,
    ) -> None:
        count.add(1)
        end.set(of.max_timestamp())

    @userstate.on_timer(END)
    def over(self, key: Any = beam.DoFn.KeyParam, count: Any = beam.DoFn.StateParam(COUNT)) -> Iterator[Any]:
        yield key, count.read()


@pytest.mark.contract("API-01", "ENG-12")
def test_state_and_timers() -> None:
    with pipeline() as p:
        counts = timed(p, 60) | beam.WindowInto(window.FixedWindows(30)) | beam.ParDo(CountToTheEnd())
        assert_that(counts, equal_to([(key, 10) for key in range(3)] * 2))


@pytest.mark.contract("API-01", "ENG-05")
def test_every_kind_of_side_input_is_waited_for() -> None:
    with pipeline() as p:
        rates = p | "Rates" >> beam.Create([(0, 10), (1, 20), (2, 30), (2, 31)])
        most = rates | beam.Values() | beam.CombineGlobally(max)
        found = timed(p, 6) | beam.Map(
            lambda pair, table, every, most: (pair[1], sorted(table[pair[0]]), len(every), most),
            beam.pvalue.AsMultiMap(rates),
            beam.pvalue.AsList(rates),
            beam.pvalue.AsSingleton(most),
        )
        rows = [(n, [[10], [20], [30, 31]][n % 3], 4, 31) for n in range(6)]
        assert_that(found, equal_to(rows))


@pytest.mark.contract("ENG-05")
def test_side_input_is_read_in_elements_window() -> None:
    with pipeline() as p:
        numbers = timed(p, 40) | beam.Values()
        tens = numbers | "Tens" >> beam.WindowInto(window.FixedWindows(10))
        twenties = numbers | "Twenties" >> beam.WindowInto(window.FixedWindows(20))
        sums = twenties | beam.CombineGlobally(sum).without_defaults()
        found = tens | beam.Map(lambda n, total: (n, total), beam.pvalue.AsSingleton(sums))
        assert_that(found, equal_to([(n, sum(range(n // 20 * 20, n // 20 * 20 + 20))) for n in range(40)]))


@pytest.mark.contract("SDF-04")
def test_polled_source_outputs_when_due_and_windows_close(tmp_path: Path) -> None:
    with pipeline() as p:
        start = time.time()
        ticks = p | PeriodicImpulse(start, start + 3, 0.5, apply_windowing=False)
        keyed = ticks | "Key" >> beam.Map(lambda x: (0, time.time() - x))
        counts = keyed | beam.WindowInto(window.FixedWindows(1)) | beam.GroupByKey()
        _ = counts | "Note" >> beam.Map(lambda pair, folder: note(list(pair[1]), folder), str(tmp_path))
    ages = [age for pane in noted(tmp_path) for age in pane]
    assert len(ages) == 6
    assert all(age >= 0 for age in ages)
    assert len(noted(tmp_path)) >= 3


@pytest.mark.contract("ENG-11")
def test_early_panes_precede_the_last_pane(tmp_path: Path) -> None:
    with pipeline() as p:
        firing = beam.WindowInto(
            window.GlobalWindows(),
            trigger=trigger.AfterWatermark(early=trigger.AfterCount(4)),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
        )
        start = time.time()
        ticks = p | PeriodicImpulse(start, start + 4, 0.5, apply_windowing=False)
        panes = ticks | "Key" >> beam.Map(lambda x: (0, x)) | firing | beam.GroupByKey()
        _ = panes | "Note" >> beam.Map(lambda pair, folder: note(len(pair[1]), folder), str(tmp_path))
    assert sum(noted(tmp_path)) == 8
    assert len(noted(tmp_path)) >= 2


def test_error_names_micro_batch_and_nothing_is_committed(tmp_path: Path) -> None:
    p = pipeline(f"--checkpoint_dir={tmp_path / 'state'}")
    _ = timed(p, 3) | "bad one" >> beam.Map(lambda pair: pair[1] // 0)
    with pytest.raises(UserCodeError, match=r"ZeroDivisionError.*while running 'bad one'"):
        p.run().wait_until_finish()


@pytest.mark.contract("END-01")
def test_done_job_stays_done_when_submitted_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "notes").mkdir()

    def run() -> str:
        p = pipeline(f"--checkpoint_dir={tmp_path / 'state'}")
        groups = timed(p, 3) | beam.GroupByKey()
        _ = groups | "Note" >> beam.Map(lambda pair, folder: note(1, folder), str(tmp_path / "notes"))
        state: str = p.run().wait_until_finish()
        return state

    for _ in range(3):  # a driver that is restarted automatically must succeed each time
        assert run() == "DONE"
    assert sum(noted(tmp_path / "notes")) == 3
    assert [r.message for r in caplog.records if r.levelname == "WARNING" and " done" in r.message]


class Ordinal(beam.DoFn):
    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[int]:
        seen.add(1)
        yield seen.read()


class Another(Ordinal):
    SEEN = userstate.BagStateSpec("seen", beam.coders.VarIntCoder())

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[int]:
        seen.add(1)
        yield len(list(seen.read()))


@pytest.mark.contract("STORE-01", "STORE-04", "STORE-05")
def test_cancelled_job_resumes_with_compatible_pipeline(tmp_path: Path) -> None:
    source, state = tmp_path / "source", f"--checkpoint_dir={tmp_path / 'state'}"
    feed(source, 5)

    def begun(folder: Path, keeps: beam.DoFn, *more: str) -> Any:
        folder.mkdir(exist_ok=True)
        options = PipelineOptions(["--streaming", state, *more])
        p = beam.Pipeline(runner=ArcbeamRunner(), options=options)
        keyed = fed(p, source) | "Key" >> beam.Map(lambda x: (0, x))
        if "--shards=5" in more:
            keyed |= "Another" >> beam.Map(lambda pair: pair)
        _ = keyed | "Keep" >> beam.ParDo(keeps) | "Note" >> beam.Map(note, str(folder))
        return p.run()

    before, after = tmp_path / "before", tmp_path / "after"
    first = begun(before, Ordinal(), "--shards=3")
    while_running(first, lambda: len(noted(before)) >= 5)
    first.savepoint("kept")
    first.cancel()
    assert first.state == "CANCELLED"
    with pytest.raises(IncompatibleStateError, match="'Keep'"):
        begun(after, Another()).wait_until_finish()
    feed(source, 24, end=True)
    assert begun(after, Ordinal(), "--shards=5").wait_until_finish() == "DONE"
    assert (sorted(noted(before)), sorted(noted(after))) == ([1, 2, 3, 4, 5], list(range(6, 25)))


class Telling(beam.DoFn):
    """Records in files when it is set up, finalized and torn down; counts its elements."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._count = beam.metrics.Metrics.counter("telling", "elements")

    def setup(self) -> None:
        self._tell("set up")

    def process(self, element: Any, finalizer: Any = beam.DoFn.BundleFinalizerParam) -> Iterator[Any]:
        self._count.inc()
        finalizer.register(lambda: self._tell(f"committed {element}"))
        yield element

    def teardown(self) -> None:
        self._tell("torn down")

    def _tell(self, what: str) -> None:
        note(what, self._folder)


@pytest.mark.contract("SDF-13", "API-06")
def test_commit_runs_finalizers_counters_and_teardown(
    tmp_path: Path,
) -> None:
    p = pipeline()
    _ = p | beam.Create(["a", "b"]) | beam.ParDo(Telling(str(tmp_path)))
    result = p.run()
    assert result.wait_until_finish() == "DONE"
    reported = noted(tmp_path)
    assert sorted(line for line in reported if line.startswith("committed")) == ["committed a", "committed b"]
    assert reported.count("set up") == reported.count("torn down") > 0
    found = result.metrics().query(beam.metrics.MetricsFilter().with_name("elements"))
    assert [counter.committed for counter in found["counters"]] == [2]
