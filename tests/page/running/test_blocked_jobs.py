"""A blocked job for each reason in the table of "Why is my job waiting?": the page's headline and `arcbeam status`.

Only Spark is replaced; see `tests.spark.streaming.inprocess`.
"""

from __future__ import annotations

import html
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.testing import test_stream
from apache_beam.transforms import trigger, userstate, window
from click.testing import CliRunner
from typing_extensions import override

from arcbeam.cli import main
from arcbeam.errors import WorkerLostError
from arcbeam.io import WithWatermark
from arcbeam.model.shutdown import GracefulShutdown
from arcbeam.page.sources import FolderSource
from arcbeam.spark.streaming.streamingjob import StreamRun
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.manifest.names import TROUBLE_NOTE
from arcbeam.streaming.driver import heartbeat
from arcbeam.streaming.interfaces import JobListener
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.words import shown
from tests.page.test_app import client
from tests.spark.streaming.inprocess import Fault, dies, ends_cancelled, hangs, run_of, without_spark
from tests.spark.streaming.replay.building import Requiring
from tests.spark.streaming.test_stuck import Hourly, grouped, numbers

pytestmark = pytest.mark.contract("PAGE-01", "WM-06")

TABLE = Path(__file__).parents[3] / "docs" / "howto" / "waiting.md"
FAR = 10**9


class Blocked(NamedTuple):
    """A blocked pipeline.

    Attributes:
        kind: of the cause that decides.
        build: makes the pipeline.
        step: a step whose stage the headline names; "" if the cause is of no stage.
        says: what the headline says of the cause.
        released_when: what it says would release it.
        at_once: whether it is blocked after one micro-batch; others move at first.
        fault: of its cluster.
    """

    kind: str
    build: Callable[[beam.Pipeline], Any]
    step: str
    says: str
    released_when: str
    at_once: bool = False
    fault: Fault | None = None


def _days(of: Any, **how: Any) -> Any:
    """Group by key in windows that do not end, with a watermark that their first element holds."""
    combiner = trigger.TimestampCombiner.OUTPUT_AT_EARLIEST
    windows = beam.WindowInto(window.FixedWindows(86400), timestamp_combiner=combiner, **how)
    keyed = of | "Keyed" >> beam.Map(lambda n: (0, n)) | "In days" >> windows
    return keyed | "Grouped" >> beam.GroupByKey() | "Written" >> beam.Reshuffle()


def _meter(p: beam.Pipeline) -> Any:
    return grouped(numbers(p, "Meter"))


class Slowly(beam.DoFn):
    """Takes its input in order of time, and longer for it than a micro-batch should take."""

    SEEN = userstate.ReadModifyWriteStateSpec("seen", beam.coders.BooleanCoder())

    def process(self, pair: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[tuple[int, int]]:
        seen.write(True)
        time.sleep(0.2)
        yield pair


def _slow(p: beam.Pipeline) -> Any:
    many = numbers(p, "Meter") | "Many" >> beam.FlatMap(lambda n: [(key, n) for key in range(10)])
    return many | "Slowly" >> Requiring(Slowly(), "order") | "Written" >> beam.Reshuffle()


def _rated(p: beam.Pipeline) -> Any:
    rates = (
        numbers(p, "Rates")
        | "None" >> beam.Filter(lambda n: n < 0)
        | "Of a day" >> beam.WindowInto(window.FixedWindows(86400))
    )
    read = numbers(p, "Meter") | "Days" >> beam.WindowInto(window.FixedWindows(86400))
    return read | "Priced" >> beam.Map(lambda n, rate: n * rate, beam.pvalue.AsSingleton(rates))


class Prepares(beam.DoFn, GracefulShutdown):
    """Has something to output before the job ends."""

    def process(self, element: int) -> Iterator[int]:
        yield element

    def prepare_to_shutdown(self) -> None: ...


def _scripted(p: beam.Pipeline) -> Any:
    script = (
        test_stream.TestStream()
        .advance_watermark_to(5)
        .add_elements([6])
        .advance_processing_time(100)
        .add_elements([7])
    )
    return grouped(p | "Script" >> script.advance_processing_time(100).advance_watermark_to_infinity())


ACCUMULATES = {"accumulation_mode": trigger.AccumulationMode.ACCUMULATING}


def _prepares(p: beam.Pipeline) -> None:
    numbers(p, "Meter")
    _ = p | beam.Create([1], reshuffle=False) | "Prepares" >> beam.ParDo(Prepares()) | beam.Reshuffle()


def _hourly(p: beam.Pipeline) -> Any:
    keyed = numbers(p, "Meter") | "By name" >> beam.Map(lambda n: ("meter", n))
    return keyed | "Hourly" >> beam.ParDo(Hourly()) | "Written" >> beam.Reshuffle()


CASES = {
    "deferred": Blocked(
        "restriction",
        lambda p: grouped(numbers(p, "Meter", stalls_at=2, seconds=3600)),
        "Meter",
        "has deferred itself until 2",
        "the clock reaches 2",
        at_once=True,
    ),
    "stalled": Blocked(
        "restriction",
        lambda p: grouped(numbers(p, "Meter", stalls_at=2)),
        "Meter",
        "has not reported a later watermark",
        "its watermark estimator reports a later time",
    ),
    "silent": Blocked(
        "restriction",
        lambda p: grouped(numbers(p, "Meter", tells=False)),
        "Meter",
        "reports no watermark",
        "give it a watermark estimator",
    ),
    "side input": Blocked("side input", _rated, "Priced", "wait for a side input", "gets an element"),
    "timer": Blocked("timer", _hourly, "Hourly", "timer 'flush' of key", "the clock reaches 2"),
    "elements": Blocked(
        "elements",
        _slow,
        "Slowly",
        "waits in shard 0",
        "the next micro-batch processes them",
    ),
    "state": Blocked(
        "state",
        lambda p: _days(numbers(p, "Meter"), trigger=trigger.Repeatedly(trigger.AfterCount(FAR)), **ACCUMULATES),
        "Grouped",
        "held by",
        "the window's pane fires",
    ),
    "script": Blocked("script", _scripted, "Script", "have not advanced the watermark", "one of its events advances"),
    "shutdown": Blocked(
        "shutdown",
        _prepares,
        "Create",
        "has yet to prepare to shut down",
        "the job ends, or is drained",
        at_once=True,
    ),
    "observer": Blocked(
        "observer",
        lambda p: _days(numbers(p, "Meter", stalls_at=2) | WithWatermark(lambda n: n, delay=60)),
        "Meter",
        "as the latest event time, and subtracts a delay of 0:01:00",
        "an element later than",
    ),
    "failure": Blocked(
        "failure",
        lambda p: grouped(numbers(p, "Meter")),
        "Meter",
        "in try 1 of 3",
        "a try of the micro-batch succeeds",
        at_once=True,
        fault=dies,
    ),
    "driver": Blocked("driver", _meter, "", "no task", "a free core", at_once=True, fault=hangs),
}


class Watch(JobListener):
    """Looks at a job until it is blocked as it should be, and then ends it.

    Attributes:
        found: the cause that decides, the output of `arcbeam status`, and the job's page.
        run: of the job.
    """

    def __init__(self, folder: Path, of: Blocked) -> None:
        self._folder, self._of = folder, of
        self._blobs = FolderBlobs(folder, sync=False)
        self._lock = threading.Lock()
        self.found: tuple[Any, str, str] | None = None
        self.run: StreamRun

    @override
    def streaming(self, line: str) -> None:
        self._look()

    @override
    def warned(self, text: str) -> None:
        self._look()

    def hangs(self) -> None:
        """Look at a job whose driver reports nothing more; give up after some seconds."""
        for _ in range(200):
            if self.found is not None:
                break
            with suppress(StoreError):  # the job has not begun
                self._look()
            time.sleep(0.1)
        self.run.interrupt()

    def _look(self) -> None:
        with self._lock:
            self._looks()

    def _looks(self) -> None:
        status, of = status_in(self._blobs), self._of
        cause = next((each for each in status.causes if each.decides or each.kind == "driver"), None)
        if self.found or cause is None or cause.kind != of.kind or of.says not in cause.text:
            return
        if not of.at_once and cause.since.micro_batch == status.micro_batch:
            return
        printed = CliRunner().invoke(main.main, ["status", str(self._folder)]).stdout
        page = client(FolderSource([self._blobs]))
        (at,) = re.findall(r'href="(/job/\w+)"', page.get("/").text)
        self.found = cause, printed, page.get(at).text
        self.run.interrupt()


def _runs(of: Blocked, folder: Path) -> Watch:
    """Run a job, and return what was seen of it."""
    watch = Watch(folder / "job", of)
    with without_spark(of.fault):
        watch.run = run_of(of.build, folder, watch)
        looks = threading.Thread(target=watch.hangs)
        looks.start()
        ends_cancelled(watch.run)
        looks.join()
    return watch


def test_all_reasons_of_the_table_are_here() -> None:
    rows = re.findall(r"^\| ([a-z ,]+) \| ", TABLE.read_text(), re.M)
    # Only a commit of an earlier version lacks its causes; see `tests.page.test_headline`.
    kinds = {of.kind for of in CASES.values()} | {"not reported"}
    assert {kind for row in rows if row != "kind" for kind in row.split(", ")} == kinds


@pytest.mark.parametrize("name", CASES)
def test_headline_of_blocked_job_has_the_words_of_status(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Instead of a minute, some seconds, and half a minute.
    monkeypatch.setattr("arcbeam.streaming.status.headline._LONG_WAIT", 0.0)
    monkeypatch.setattr(heartbeat, "_BUSY_SECONDS", 0.0)
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.0 if name == "driver" else heartbeat.SILENT_SECONDS)
    of = CASES[name]
    found = _runs(of, tmp_path).found
    assert found is not None, status_in(FolderBlobs(tmp_path / "job", sync=False)).causes
    cause, printed, text = found
    headline = re.search(r'<div id="headline".*?<p class="headline (\w+)">(.*?)</p>', text, re.S)
    assert headline
    words = html.unescape(re.sub(r"<[^>]+>", "", headline[2]))
    # The time since when it waits is at the end of a headline.
    shortened = re.sub(r", since micro-batch \d+ \([^)]*\)", "", cause.text)
    assert words.startswith(f"{'Problem' if headline[1] == 'error' else 'Waiting'} {shortened}")
    assert "~" not in words, "no digests"
    assert (of.step in cause.stage, of.says in words, of.released_when in words) == (True, True, True), words
    assert cause.stage in words
    # A driver without a task is blocked in no stage.
    assert (bool(cause.stage), cause.since is not None) == (name != "driver", name != "driver")
    assert cause.since is None or f"Since {shown(cause.since.time)}" in words
    assert f"released when: {cause.released_when}" in words
    assert f"  - {cause.text}\n" in printed
    assert f"    released when: {cause.released_when}\n" in printed


def test_micro_batch_fails_since_its_first_try(tmp_path: Path) -> None:
    blobs, notes = FolderBlobs(tmp_path / "job", sync=False), list[tuple[str, int]]()

    class Notes(JobListener):
        @override
        def warned(self, text: str) -> None:
            note = json.loads(blobs.get(TROUBLE_NOTE))
            notes.append((note["why"], note["time"]))

    with without_spark(dies), pytest.raises(WorkerLostError):
        run_of(_meter, tmp_path, Notes()).run()
    assert len({why for why, _ in notes}) == 2
    assert len({when for _, when in notes}) == 1
