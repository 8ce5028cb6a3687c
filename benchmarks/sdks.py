"""SDK workers: pipelines on arcbeam's job server and on Prism's, one run beside the other.

    python benchmarks/sdks.py
    python benchmarks/sdks.py --work reshuffle --work go --elements 200000 --runs 1

User code runs in the submitting process (LOOPBACK), in Python, and once in Go; with "worker processes", in processes
that the submitter starts (the experiment `use_loopback_process_worker`, on both servers). Both servers run all the
time, and each run comes after a small one.

In the submitter, all user code shares one interpreter lock, so no runner is faster than the processor time of the SDK's
worker, which is the submitter without its main thread: "at most" compares it with Prism's time. "runner" is the
processor time of arcbeam's server, Spark included, for each time that an element goes to a worker or comes from it. A
bundle of `bundles` and `flat` has one element. Prints a table; with --record, writes it between its markers in
benchmarks/records.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.figures import TIMES, Figure
from bench.peers import CORES
from bench.processes import cpu_by_kind, processes
from bench.report import as_markdown, as_text, replace_section
from bench.sdks import servers
from bench.sdks.pipelines import PIPELINES, Portable
from bench.sdks.servers import Server

ROOT = Path(__file__).resolve().parents[1]
WORKS = (*PIPELINES, "flat", "go")
_WARM_UP = 20_000
_SECONDS = 1800.0
_BUNDLES = 10_000
_MIB = 2**20


class WrongAnswerError(Exception):
    """A server has not done the work."""


class Bench:
    """Runs pipelines.

    Args:
        mine: arcbeam's server.
        prism: Prism's.
        folder: for the Go programs.
        elements: the most elements of a run; None: each pipeline's own number.
        runs: of each pipeline and server.
    """

    def __init__(self, mine: Server, prism: Server, folder: Path, elements: int | None, runs: int) -> None:
        self._mine, self._prism, self._folder, self._runs = mine, prism, folder, runs
        self._most = elements or sys.maxsize

    def figures(self, name: str) -> list[Figure]:
        """Measure a pipeline."""
        if name == "go":
            return self._go()
        if name == "flat":
            return self._flat()
        pipeline, spent = PIPELINES[name], list[float]()
        seconds: dict[str, list[float]] = {"arcbeam": [], "Prism": []}
        workers: dict[str, list[float]] = {"arcbeam": [], "Prism": []}
        elements = {"arcbeam": min(pipeline.elements, self._most), "Prism": min(pipeline.prism, self._most)}
        for _ in range(self._runs):
            for server in (self._mine, self._prism):
                if server is self._prism and not pipeline.prism:
                    continue
                before = sum(cpu_by_kind(server.process.pid).values())
                took, worker = self._submitted(server, name, pipeline, elements[server.name])
                seconds[server.name].append(took)
                workers[server.name].append(worker)
                if server is self._mine:
                    spent.append(sum(cpu_by_kind(server.process.pid).values()) - before)
        return list(_compared(name, pipeline, elements, seconds, workers, spent))

    def _submitted(self, server: Server, name: str, pipeline: Portable, elements: int) -> tuple[float, float]:
        """Return the seconds of a run, and the processor time of the SDK's worker, which is the submitter."""
        options = list(pipeline.options if server is self._mine else ())
        if pipeline.processes:
            options.append("--experiments=use_loopback_process_worker")
        warm_up = min(_WARM_UP, elements)
        command = [sys.executable, "-m", "bench.sdks.submit", name, str(elements), str(warm_up), server.endpoint]
        done = _ran([*command, *options])
        answer, right = json.loads(done.stdout.strip().rpartition("\n")[2]), pipeline.answer(elements)
        if (answer["count"], answer["total"]) != right:
            raise WrongAnswerError(f"{name} of {elements} by {server.name}: {answer} instead of {right}")
        seconds, worker = float(answer["seconds"]), float(answer["processor"])
        _tell(f"{name}: {server.name}, {elements:,} elements, {seconds:.2f} s, of the worker {worker:.2f} s")
        return seconds, worker

    def _go(self) -> list[Figure]:
        binary, elements = servers.programs(self._folder), min(4_000_000, self._most)
        seconds: dict[str, list[float]] = {"arcbeam": [], "Prism": []}
        sums = set()
        for number in range(self._runs):
            for server in (self._mine, self._prism):
                output = self._folder / f"go-{server.name}-{number}"
                output.mkdir()
                runner = ("--runner=universal", f"--endpoint={server.endpoint}", "--environment_type=LOOPBACK")
                command = [str(binary), "--program=largegroups", f"--elements={elements}", f"--output={output}"]
                start = time.perf_counter()
                _ran([*command, *runner])
                seconds[server.name].append(time.perf_counter() - start)
                sums.add((output / "sum").read_text())
                _tell(f"go: {server.name}, {elements:,} elements, {seconds[server.name][-1]:.2f} s")
        if len(sums) > 1:
            raise WrongAnswerError(f"the Go program has different sums: {sums}")
        mine, theirs = (elements / statistics.median(seconds[of]) / 1e6 for of in ("arcbeam", "Prism"))
        return [
            Figure("group, Go", mine, "M/s", 0.3),
            Figure("the same on Prism", theirs, "M/s"),
        ]

    def _flat(self) -> list[Figure]:
        """Memory, threads and open files of server and submitter over many bundles: late in the job against early."""
        bundles = min(_BUNDLES, self._most)
        command = [sys.executable, "-m", "bench.sdks.submit", "bundles", str(bundles), "10", self._mine.endpoint]
        seen: list[dict[str, int]] = []
        done = threading.Event()

        def look(pid: int) -> None:
            while not done.wait(0.2):
                living = [
                    *(each for each in processes(self._mine.process.pid) if each.kind == "worker"),
                    *processes(pid),
                ]
                seen.append({
                    "memory": sum(each.memory for each in living) // _MIB,
                    "threads": sum(each.threads for each in living),
                    "files": sum(each.files for each in living),
                })  # fmt: skip

        _ran([*command, "--bundle_elements=1"], look, done)
        early, late = seen[len(seen) * 3 // 10 : len(seen) // 2], seen[len(seen) * 7 // 10 : len(seen) * 9 // 10]
        growth = {
            what: statistics.median(each[what] for each in late) - statistics.median(each[what] for each in early)
            for what in ("memory", "threads", "files")
        }
        what = f"growth in the second half of {bundles:,} bundles"
        return [
            Figure(f"{what}: memory", growth["memory"], "MiB", 10),
            Figure(f"{what}: threads", growth["threads"], "", 0),
            Figure(f"{what}: open files", growth["files"], "", 0),
        ]


def _compared(
    name: str,
    pipeline: Portable,
    elements: dict[str, int],
    seconds: dict[str, list[float]],
    workers: dict[str, list[float]],
    spent: Sequence[float],
) -> Any:
    took = {of: statistics.median(all) for of, all in seconds.items() if all}
    if not pipeline.prism:
        what = f"{elements['arcbeam']:,} bundles" if pipeline.elements else "tiny"
        yield Figure(what, took["arcbeam"], "s", 4.0 if pipeline.elements else 3.0)
        return
    mine, theirs = (elements[of] / took[of] / 1e6 for of in ("arcbeam", "Prism"))
    yield Figure(name, mine, "M/s")
    yield Figure("the same on Prism", theirs, "M/s")
    yield Figure("times as fast", mine / theirs, TIMES, pipeline.times)
    if not pipeline.processes:
        own = {of: statistics.median(workers[of]) / elements[of] for of in ("arcbeam", "Prism")}
        yield Figure("at most, by the processor time of the SDK's worker", 1e-6 / theirs / own["arcbeam"], TIMES)
        for of in ("arcbeam", "Prism"):
            yield Figure(f"processor time of the SDK's worker, {of}", own[of] * 1e6, "µs")
    if pipeline.hops:
        hop = statistics.median(spent) / (elements["arcbeam"] * pipeline.hops) * 1e6
        yield Figure("runner, each element and hop", hop, "µs", 1.5)


def _ran(
    command: Sequence[str], look: Callable[[int], None] | None = None, done: threading.Event | None = None
) -> subprocess.CompletedProcess[str]:
    # The SDK starts its worker processes as `python`.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks"), "PATH": path}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        looking = threading.Thread(target=look, args=(process.pid,)) if look else None
        if looking:
            looking.start()
        try:
            output, errors = process.communicate(timeout=_SECONDS)
        finally:
            if done and looking:
                done.set()
                looking.join()
            process.kill()
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed: {errors[-3000:]}")
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Measure. Return how many targets are missed."""
    parser = argparse.ArgumentParser(prog="benchmarks/sdks.py", description=__doc__)
    parser.add_argument("--work", action="append", help=f"one of {'; '.join(WORKS)}")
    parser.add_argument("--elements", type=int, help="the most elements of a run")
    parser.add_argument("--runs", type=int, default=3, help="of each pipeline and server")
    parser.add_argument("--record", action="store_true", help="write benchmarks/records.md")
    options = parser.parse_args(arguments)
    works = options.work or WORKS
    if unknown := [work for work in works if work not in WORKS]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {'; '.join(WORKS)}")
    if lacks := servers.missing():
        print(f"SDK workers are not measured: {lacks}")
        return 0
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with servers.prism(folder) as prism, servers.arcbeam(folder) as mine:
            bench = Bench(mine, prism, folder, options.elements, options.runs)
            figures = [figure for work in works for figure in bench.figures(work)]
    table = [["what", "measured", "should be", ""], *(figure.cells() for figure in figures)]
    conditions = (
        f"{datetime.datetime.now().astimezone().date().isoformat()}; `local[{CORES}]`, median of {options.runs}; "
        f"load before: {load:.1f}."
    )
    print(as_text(table))
    print(conditions)
    if options.record:
        replace_section(ROOT / "benchmarks" / "records.md", f"{as_markdown(table)}\n\n{conditions}", "sdks")
    return sum(figure.met is False for figure in figures)


if __name__ == "__main__":
    sys.exit(main())
