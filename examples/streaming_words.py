"""Word count over a growing folder: every few seconds, the words of the new files.

    arcbeam run examples/streaming_words.py [--folder path] [--every 2] [--seconds 10] [--checkpoint_dir …]

Each file is read once when it appears. Every `--every` seconds a window ends, and the counts of its words are written
to a file `{output}/{time}.tsv`. After `--seconds` it stops looking for files, and ends; with 0 it runs until it is
cancelled. With `--checkpoint_dir` it resumes where it was: no file is counted twice.

Without `--folder` it watches a folder of its own, into which it copies modules of Python's standard library.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")


def words(file: fileio.ReadableFile) -> list[str]:
    """Return the words of a file, in lower case; an apostrophe inside belongs to the word."""
    return WORD.findall(file.read_utf8().lower())


def write(keyed: tuple[None, Iterable[tuple[str, int]]], output: str, window: Any = beam.DoFn.WindowParam) -> None:
    """Write the counts of a window, the most frequent word first; a retry writes the same file."""
    counts = sorted(keyed[1], key=lambda item: (-item[1], item[0]))
    name = window.end.to_utc_datetime().strftime("%H-%M-%S") + ".tsv"
    Path(output, name).write_text("".join(f"{word}\t{count}\n" for word, count in counts), encoding="utf-8")


def copy_modules(folder: Path, ended: threading.Event) -> None:
    """Copy a module of Python's standard library to a folder, and another one every half second."""
    for module in itertools.cycle(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
        # Renamed when it is complete, because a new file is read immediately.
        shutil.copy(module, folder.parent / module.name)
        (folder.parent / module.name).rename(folder / module.name)
        if ended.wait(0.5):
            return


def summary(output: Path) -> None:
    """Print the most frequent words of each window."""
    for file in sorted(output.glob("*.tsv")):
        lines = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
        most = ", ".join(f"{word} {count}" for word, count in lines[:8])
        print(f"until {file.stem.replace('-', ':')}  {sum(int(count) for _, count in lines):>8,} words: {most}")


def main(arguments: list[str] | None = None) -> int:
    """Watch, count and print. Return the exit status."""
    parser = argparse.ArgumentParser(description="Count the words of new files in a folder.")
    parser.add_argument("--folder", type=Path, help="folder to watch (default: one that fills itself)")
    parser.add_argument("--output", type=Path, default=Path("build/streaming_words"), help="folder of the results")
    parser.add_argument(
        "--every", type=float, default=1.0, help="seconds of a window, and between two checks for files"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to watch; 0: until cancelled")
    known, beam_arguments = parser.parse_known_args(arguments)
    output = known.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    # Explicit, because the SDK's default start is its import time, and the time to watch counts from the start.
    start = Timestamp.now()
    stop = start + known.seconds if known.seconds else MAX_TIMESTAMP

    with tempfile.TemporaryDirectory() as own:
        folder, ended = known.folder, threading.Event()
        if folder is None:
            folder = Path(own) / "watched"
            folder.mkdir()
            threading.Thread(target=copy_modules, args=(folder, ended), daemon=True).start()
        with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
            (
                pipeline
                | "Watch"
                >> fileio.MatchContinuously(
                    f"{folder.resolve()}/*", known.every, start_timestamp=start, stop_timestamp=stop
                )
                | "Open" >> fileio.ReadMatches()
                | "Words" >> beam.FlatMap(words)
                | "Window" >> beam.WindowInto(FixedWindows(known.every))
                | "Count" >> beam.combiners.Count.PerElement()
                | "Together" >> beam.GroupBy(lambda _: None)
                | "Write" >> beam.Map(write, str(output))
            )
        ended.set()
    summary(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
