"""Pipelines whose elements contain a mark, and a search for the mark in all files that their processes write."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import window

from tests.notes import note
from tests.privacy.planted import _waiting, processes
from tests.spark.streaming.fed import fed

MARK = "m4rk3d+el3m3nt"
MANY = 20_000

PLAIN = [
    f"--spark_conf=spark.{name}"
    for name in (
        "shuffle.compress=false",
        "shuffle.spill.compress=false",
        "broadcast.compress=false",
        "shuffle.spill.numElementsForceSpillThreshold=100",
    )
]
"""Settings with which Spark writes elements as they are, and also what it sorts."""


def marked(n: int) -> tuple[int, str]:
    """Return an element of half a KiB."""
    return n % 50, f"{MARK}-{n};" * 20


def bounded(p: beam.Pipeline, folder: Path) -> None:
    """Group more than fits in memory, with a side input; the last stage waits for a file."""
    texts = p | beam.Create(range(MANY)) | "Mark" >> beam.Map(marked)
    side = texts | "Some" >> beam.Filter(lambda pair: pair[0] == 0)
    shuffled = texts | beam.Reshuffle() | beam.GroupByKey()
    counted = shuffled | "Count" >> beam.MapTuple(lambda key, texts: (key, sum(map(len, texts))))
    _ = counted | beam.Map(_waiting, str(folder), beam.pvalue.AsList(side))


def streaming(p: beam.Pipeline, folder: Path) -> None:
    """Collect a source in windows of ten; the last window stays in the state."""
    texts = fed(p, folder / "source") | "Mark" >> beam.FlatMap(lambda n: [marked(n)] * 100)
    panes = texts | beam.Reshuffle() | beam.WindowInto(window.FixedWindows(10)) | beam.GroupByKey()
    _ = panes | "Note" >> beam.Map(lambda pair, to: note(pair[0], to), str(folder / "out"))


def main() -> None:
    """Run a pipeline, with umask 0: `marked.py KIND FOLDER OPTIONS`."""
    kind, folder, *options = sys.argv[1:]
    os.umask(0)
    runner = () if any(each.startswith("--runner") for each in options) else ("--runner=arcbeam.ArcbeamRunner",)
    p: Any = beam.Pipeline(options=PipelineOptions([*runner, *options]))
    {"streaming": streaming, "bounded": bounded}[kind](p, Path(folder))
    p.run().wait_until_finish()


def holding(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the files below a folder that hold elements, and whether other users can read each."""
    waiting = [(folder, True)]
    while waiting:
        at, is_open = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(at) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if stat.S_ISDIR(mode):
                        waiting.append((Path(entry.path), is_open and bool(mode & stat.S_IXOTH)))
                    elif stat.S_ISREG(mode) and MARK.encode() in Path(entry.path).read_bytes():
                        yield Path(entry.path), is_open and bool(mode & stat.S_IROTH)


def written_elsewhere(pid: int, folder: Path) -> set[str]:
    """Return the files outside a folder that a process or its descendants have open for writing."""
    found = set[str]()
    for process in processes(pid):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    path = os.readlink(f"/proc/{process}/fd/{name}")
                    flags = Path(f"/proc/{process}/fdinfo/{name}").read_text().partition("flags:")[2].split()[0]
                    is_file = stat.S_ISREG(os.stat(f"/proc/{process}/fd/{name}").st_mode)
                    if is_file and int(flags, 8) & os.O_ACCMODE and not path.startswith(str(folder)):
                        found.add(path)
    return found


if __name__ == "__main__":
    main()
