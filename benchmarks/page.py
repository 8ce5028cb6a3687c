"""The page with many jobs and stages: how long a page takes, how large an update is, and what viewers cost.

    python benchmarks/page.py [--stages 200] [--jobs 20] [--ended 2000] [--viewers 5] [--record]

A job of that many stages runs first, without Spark, and its folder is kept after each micro-batch. Copies of it are
the jobs. `arcbeam page` shows them in a process of its own, while one of them commits once a second: the next state
of its folder is copied there. Viewers read the updates of its page as a browser does. The page of a driver
(`--page_address`) reads no folder: its cost is measured separately, of the same states.

Prints a table of figures and their targets. With --record it is written between its markers in benchmarks/records.md.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from bench.figures import Figure
from bench.report import as_markdown, as_text, replace_section

from arcbeam.page.serving import PageServer, PageSettings
from arcbeam.page.sources import Listed
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.historyfile import history_in
from arcbeam.store.log.planfile import plan_in
from arcbeam.streaming.interfaces import JobListener
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.history import job_record
from arcbeam.streaming.status.status import Status
from tests.page import samples
from tests.spark.streaming.inprocess import ends_cancelled, run_of, without_spark
from tests.spark.streaming.test_stuck import numbers

ROOT = Path(__file__).resolve().parents[1]
_CHAINS = 4
_TICK = os.sysconf("SC_CLK_TCK")
_STATES = 12
_PAGES = 7
_SECONDS_IN_DRIVER = 60


class Kept(JobListener):
    """Keeps the folder of a job after each micro-batch, and ends the job after enough of them."""

    def __init__(self, folder: Path, states: Path, count: int) -> None:
        self._folder, self._states, self._count, self.number, self.run = folder, states, count, 0, None

    @override
    def streaming(self, line: str) -> None:
        if self.number < self._count:
            shutil.copytree(self._folder, self._states / str(self.number))
            self.number += 1
        else:
            self.run.interrupt()


def chains(p: beam.Pipeline, stages: int) -> None:
    """A source, and chains of stages after it."""
    source = numbers(p, "Meter") | "Keyed" >> beam.Map(lambda n: (n % 8, n)).with_output_types(tuple[int, int])
    for chain in range(_CHAINS):
        at = source
        for stage in range((stages - 2) // _CHAINS):
            at |= f"Chain {chain}/Step {stage}/Shuffle" >> beam.Reshuffle()
            at |= f"Chain {chain}/Step {stage}/Add" >> beam.MapTuple(lambda key, n: (key, n + 1))
        _ = at | f"Chain {chain}/Written" >> beam.Map(str)


def states_of(folder: Path, stages: int, count: int) -> list[Path]:
    """Run a job, and return its folder after each of its first micro-batches."""
    kept = Kept(folder / "job", folder / "states", count)
    with without_spark():
        kept.run = run_of(lambda p: chains(p, stages), folder, kept)
        ends_cancelled(kept.run)
    # How it ended is in the last state only.
    shutil.copytree(folder / "job", folder / "states" / "ended")
    return [folder / "states" / str(number) for number in range(count)]


@contextmanager
def served(folders: list[Path], log: Path) -> Iterator[tuple[subprocess.Popen[Any], str]]:
    """Run `arcbeam page`; yield its process and its address."""
    command = [str(Path(sys.executable).with_name("arcbeam")), "page", "--port=0", "--insecure", *map(str, folders)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        while not (found := re.search(r"http://([\w.:]+)/", log.read_text(encoding="utf-8"))):
            if process.poll() is not None:
                raise RuntimeError(log.read_text(encoding="utf-8"))
            time.sleep(0.05)
        yield process, found[1]
    finally:
        process.terminate()
        process.wait()


def loaded(address: str, path: str) -> tuple[float, float, str]:
    """Return seconds to the first byte of a page, seconds to its last, and the page."""
    with closing(http.client.HTTPConnection(address, timeout=120)) as connection:
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        first = answer.read(1)
        to_first = time.perf_counter() - began
        text = first + answer.read()
        return to_first, time.perf_counter() - began, text.decode()


def cpu_of(process: subprocess.Popen[Any]) -> float:
    """Return the processor time of a process in seconds."""
    stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, stat[11:13])) / _TICK


class Viewer(threading.Thread):
    """A browser that shows a page.

    Attributes:
        sizes: the bytes of the updates that it got.
    """

    def __init__(self, address: str, path: str) -> None:
        super().__init__(daemon=True)
        _, _, text = loaded(address, path)
        version = re.search(r'data-version="([^"]+)"', text)
        assert version is not None
        self._address, self._path = address, f"{path}/events?version={version[1]}"
        self.sizes: list[int] = []

    @override
    def run(self) -> None:
        with closing(http.client.HTTPConnection(self._address, timeout=60)) as connection:
            connection.request("GET", self._path)
            answer = connection.getresponse()
            kind, size = "", 0
            while line := answer.readline():
                size += len(line)
                if line.startswith(b"event: "):
                    kind = line[7:].strip().decode()
                elif not line.strip():
                    if kind == "change":
                        self.sizes.append(size)
                    kind, size = "", 0


def view(address: str, path: str, viewers: int) -> None:
    """Be some viewers, until the page ends."""
    threads = [Viewer(address, path) for _ in range(viewers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class InDriver(samples.Jobs):
    """A job in this process. A driver has its status."""

    status: Status

    @override
    def job(self, id: str) -> Listed | None:
        return Listed(id, "in this process", self.status)


def cost_in_driver(states: list[Path], viewers: int) -> float:
    """Return the share of a core that the page of a driver takes, of a job that commits once a second."""
    blobs = [FolderBlobs(state, sync=False) for state in states]
    statuses = [replace(status_in(each), driver=None, due=None, folder="") for each in blobs]
    plan, history = plan_in(blobs[0]), job_record(history_in(blobs[0]))
    jobs = InDriver(plans={} if plan is None else {"job": plan}, histories={"job": history})
    jobs.status = statuses[0]
    with PageServer(jobs, PageSettings(insecure=True)) as server:
        command = [sys.executable, __file__, "--view", f"127.0.0.1:{server.port}", f"--viewers={viewers}"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            time.sleep(15)  # Until all have loaded the page.
            spent, began = time.process_time(), time.perf_counter()
            # Long enough for many updates: a large page is rendered each 5 s.
            for jobs.status in itertools.islice(itertools.cycle(statuses), _SECONDS_IN_DRIVER):
                time.sleep(1)
            busy = (time.process_time() - spent) / (time.perf_counter() - began)
            process.terminate()
    return busy


def complete(address: str, path: str) -> float | None:
    """Return the seconds until a browser has shown a page completely; None without Chromium."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        found = []
        for _ in range(3):
            page.goto(f"http://{address}{path}", wait_until="load")
            found.append(float(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")))
        browser.close()
    return statistics.median(found) / 1000


def measured(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """Make the jobs, and measure their page."""
    states = states_of(folder / "large", options.stages, _STATES)
    states_of(folder / "small", 6, 1)
    running = [folder / "jobs" / f"running-{number}" for number in range(options.jobs)]
    ended = [folder / "jobs" / f"ended-{number}" for number in range(options.ended)]
    for each in running:
        shutil.copytree(states[0], each)
    for each in ended:
        shutil.copytree(folder / "small" / "states" / "ended", each)
    with served([*running, *ended], folder / "log") as (process, address):
        began = time.perf_counter()
        while (listed := loaded(address, "/"))[2].find("jobs are loaded") >= 0:
            time.sleep(0.2)
        all_loaded = time.perf_counter() - began
        jobs = re.findall(r'id="job-(\w+)".*?<span class="quiet">([^<]*)', listed[2], re.S)
        (id,) = (id for id, label in jobs if label == str(running[0]))
        path = f"/job/{id}"
        stages = json.dumps(loaded(address, path)[2]).count('id=\\"row-')
        figures = [Figure("all jobs are listed", all_loaded, "s")]
        for name, at in (
            (f"list of {len(running)} jobs, {len(ended):,} ended", "/"),
            (f"job of {stages} stages", path),
        ):
            times = [loaded(address, at)[:2] for _ in range(_PAGES)]
            figures.append(Figure(f"{name}: first byte", statistics.median(first for first, _ in times), "s", 0.3))
            figures.append(Figure("… last byte", statistics.median(last for _, last in times), "s", 2))
            if (shown := complete(address, at)) is not None:
                figures.append(Figure("… complete in Chromium", shown, "s", 2))
        viewers = [Viewer(address, path) for _ in range(options.viewers)]
        for viewer in viewers:
            viewer.start()
        # The list of jobs was requested before, and is read for 5 s more.
        time.sleep(7)
        spent, began = cpu_of(process), time.perf_counter()
        for state in states[1:]:
            shutil.copytree(state, running[0], dirs_exist_ok=True)
            time.sleep(1)
        busy = (cpu_of(process) - spent) / (time.perf_counter() - began)
        sizes = [size for viewer in viewers for size in viewer.sizes]
        assert sizes, "no updates"
    return [
        *figures,
        Figure(f"the largest of {len(sizes)} updates", max(sizes) / 1e3, "kB", 20),
        Figure(f"{len(viewers)} viewers of a job that commits each second", 100 * busy, "% of a core"),
        Figure("… of the page of a driver", 100 * cost_in_driver(states, len(viewers)), "% of a core", 1),
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stages", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--ended", type=int, default=2000)
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--view", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--record", action="store_true", help="write benchmarks/records.md")
    options = parser.parse_args()
    if options.view:
        view(options.view, "/job/job", options.viewers)
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(options, Path(folder))
    table = [["what", "measured", "should be", ""], *(figure.cells() for figure in figures)]
    conditions = f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} cores; load before: {load:.1f}."
    sys.stdout.write(f"{as_text(table)}\n\n{conditions}\n")
    if options.record:
        replace_section(ROOT / "benchmarks" / "records.md", f"{as_markdown(table)}\n\n{conditions}", "page")


if __name__ == "__main__":
    main()
