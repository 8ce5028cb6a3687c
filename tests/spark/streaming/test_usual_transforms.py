"""Beam's own transforms with --streaming on Spark: polled sources, sinks in windows, processing time timers."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io import fileio
from apache_beam.io.components.adaptive_throttler import AdaptiveThrottler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window
from apache_beam.transforms.deduplicate import Deduplicate
from apache_beam.transforms.periodicsequence import PeriodicImpulse, PeriodicSequence
from apache_beam.transforms.util import WaitOn
from apache_beam.utils import retry
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam import ArcbeamRunner
from tests.notes import note, noted
from tests.offsets import Endless
from tests.spark.streaming.fed import fed, feed
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=3", *arguments]))


def ticks(p: beam.Pipeline, seconds: float = 1.5, every: float = 0.25) -> beam.PCollection:
    """Return some instants from now, each at its time."""
    start = time.time()
    return p | PeriodicImpulse(start, start + seconds, every, apply_windowing=False)


def numbered(p: beam.Pipeline, count: int = 6) -> beam.PCollection:
    """Return numbers from 0, each at its time."""
    start = Timestamp.of(time.time())
    end = start + Duration(count * 0.25)
    return p | PeriodicImpulse(start, end, 0.25, data=list(range(count)))


@pytest.mark.contract("SDF-04", "SDF-12")
def test_concurrent_sequences_are_complete() -> None:
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
            equal_to([(round(n / 10 + micro_batch / 2, 3), 1) for n in range(4) for micro_batch in range(2)]),
        )


def test_new_files_are_matched_once_and_read(tmp_path: Path) -> None:
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


def test_file_is_read_completely_in_streaming(tmp_path: Path) -> None:
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
    """Yields the time, several times a second, until a folder has a number of notes."""

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
def test_incomplete_batch_is_output_after_its_time(tmp_path: Path) -> None:
    """The source reports no watermark, so only the clock can trigger it."""
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
    assert sum(seconds >= 0.3 for seconds in waited) >= len(waited) - 1, (
        "all but the last, which the end of input releases"
    )


@pytest.mark.contract("ENG-12")
def test_duplicate_within_time_is_output_once(tmp_path: Path) -> None:
    with pipeline() as p:
        twice = ticks(p, 2) | beam.FlatMap(lambda at: ["always", f"at {at}"])
        first = twice | Deduplicate(event_time_duration=Duration(1000))
        _ = first | beam.Map(note, str(tmp_path))
    found = Counter(noted(tmp_path))
    assert found["always"] == 1
    assert len(found) == 9
    assert set(found.values()) == {1}


@pytest.mark.contract("ENG-05")
def test_wait_ends_with_the_awaited_window(tmp_path: Path) -> None:
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


class Service:
    """A service that doubles numbers, and refuses every other request as too many.

    Attributes:
        url: its address.
        refused: the numbers of refused requests.
        answered: the numbers of answered requests.
    """

    def __init__(self) -> None:
        self.refused: list[int] = []
        self.answered: list[int] = []
        service, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.path.removeprefix("/"))
                with lock:
                    busy = len(service.refused) <= len(service.answered)
                    (service.refused if busy else service.answered).append(number)
                reported = b"" if busy else str(2 * number).encode()
                self.send_response(429 if busy else 200)
                self.send_header("Content-Length", str(len(reported)))
                self.end_headers()
                self.wfile.write(reported)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Service:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _too_many(error: Exception) -> bool:
    return isinstance(error, urllib.error.HTTPError) and error.code == 429


class Ask(beam.DoFn):
    """Calls a service for each element, as the SDK's `io.requestresponse` does.

    The throttler runs before a call; retries with increasing pauses are around both.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def setup(self) -> None:
        self._throttler = AdaptiveThrottler(window_ms=1000, bucket_ms=100, overload_ratio=2)

    def process(self, element: int) -> Iterator[tuple[int, int]]:
        yield element, self._requested(element)

    @retry.with_exponential_backoff(
        num_retries=20, initial_delay_secs=0.01, max_delay_secs=0.1, retry_filter=_too_many, logger=lambda *_: None
    )
    def _requested(self, element: int) -> int:
        while self._throttler.throttle_request(time.time() * 1000):
            time.sleep(0.01)
        began = time.time()
        with urllib.request.urlopen(f"{self._url}/{element}", timeout=30) as response:
            answer = int(response.read())
        self._throttler.successful_request(began * 1000)
        return answer


@pytest.mark.contract("BAT-04", "ENG-02")
def test_throttled_service_is_retried_while_watermarks_advance(
    tmp_path: Path,
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    out.mkdir()
    expected = [[(n, 2 * n) for n in range(at, at + 10)] for at in range(0, 40, 10)]
    feed(source, 20)
    with Service() as service:
        p = pipeline()
        answers = fed(p, source) | "Ask" >> beam.ParDo(Ask(service.url))
        tens = answers | beam.WindowInto(window.FixedWindows(10)) | beam.WithKeys(0) | beam.GroupByKey()
        _ = tens | beam.Map(lambda pair, to: note(sorted(pair[1]), to), str(out))
        result = p.run()
        while_running(result, lambda: sorted(noted(out)) == expected[:2])
        feed(source, 40, end=True)
        assert result.wait_until_finish() == "DONE"
    assert sorted(noted(out)) == expected
    assert set(service.answered) == set(range(40))
    assert len(service.refused) >= 40
