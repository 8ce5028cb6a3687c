"""A splittable DoFn: files are searched in blocks, with its own restriction and tracker.

    arcbeam run examples/splittable.py [--input 'path/*.py'] [--pattern 'TODO|FIXME|XXX'] [--output build/notes]

Each file is a restriction `Blocks`, cut at first into pieces of a few blocks. While a piece is searched, the runner may
split off the rest for an idle worker. A line is found exactly once, however the file was cut. Without `--input` it
searches the notes that the authors of Python's standard library left themselves. The lines found are written to
`{output}/found-*.txt`.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import apache_beam as beam
from apache_beam.io import WriteToText
from apache_beam.io.fileio import MatchFiles
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider

BLOCK = 16 * 1024
"""Bytes of a claim."""
FIRST_CUT = 8
"""Blocks of a piece at the start."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks [start, stop) of a file. A line belongs to the block in which it starts."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"invalid range of blocks: {self.start} to {self.stop}")

    def cut(self, size: int) -> Iterator[Blocks]:
        """Cut the blocks into pieces of at most `size`; yields nothing for no blocks."""
        for start in range(self.start, self.stop, size):
            yield Blocks(start, min(start + size, self.stop))


class BlocksTracker(RestrictionTracker):
    """Claims blocks one by one, in order. What has not been claimed can be split off."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._next = blocks.start  # the first block not claimed; never below start, never above stop

    def current_restriction(self) -> Blocks:
        return self._blocks

    def try_claim(self, position: int) -> bool:
        if position < self._next:
            raise ValueError(f"block {position} claimed when {self._next} is the next")
        if position >= self._blocks.stop:
            self._next = self._blocks.stop
            return False
        self._next = position + 1
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Blocks, Blocks] | None:
        left = self._blocks.stop - self._next
        at = self._next + int(left * fraction_of_remainder)
        if at >= self._blocks.stop:
            return None
        primary, residual = Blocks(self._blocks.start, at), Blocks(at, self._blocks.stop)
        self._blocks = primary
        return primary, residual

    def current_progress(self) -> RestrictionProgress:
        return RestrictionProgress(completed=self._next - self._blocks.start, remaining=self._blocks.stop - self._next)

    def check_done(self) -> bool:
        if self._next < self._blocks.stop:
            raise ValueError(f"blocks {self._next} to {self._blocks.stop} were not searched")
        return True

    def is_bounded(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class File:
    """A file to search. Attributes: path: its path in Beam's file systems; size: in bytes."""

    path: str
    size: int


class WholeFile(RestrictionProvider):
    """The restrictions of a file: all of its blocks, at first in pieces of FIRST_CUT."""

    def initial_restriction(self, element: File) -> Blocks:
        return Blocks(0, -(-element.size // BLOCK))

    def split(self, element: File, restriction: Blocks) -> Iterator[Blocks]:
        yield from restriction.cut(FIRST_CUT)

    def create_tracker(self, restriction: Blocks) -> BlocksTracker:
        return BlocksTracker(restriction)

    def restriction_size(self, element: File, restriction: Blocks) -> int:
        return (restriction.stop - restriction.start) * BLOCK


class Search(beam.DoFn):
    """Files -> (path, offset of the line in bytes, line) of the lines that match a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def setup(self) -> None:
        self._found = re.compile(self._pattern.encode()).search

    def process(
        self,
        element: File,
        tracker: RestrictionTracker = beam.DoFn.RestrictionParam(WholeFile()),
    ) -> Iterator[tuple[str, int, str]]:
        block = tracker.current_restriction().start
        with FileSystems.open(element.path) as file:
            while tracker.try_claim(block):
                for offset, line in lines_of_block(file, block):
                    if self._found(line):
                        yield element.path, offset, line.decode("utf-8", "replace").strip()
                block += 1


def lines_of_block(file: BinaryIO, block: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) for each line that starts in the block; the last one may end in a later block."""
    start, stop = block * BLOCK, (block + 1) * BLOCK
    offset = start
    if start:
        # A line that starts at the block's first byte belongs to the block: look for the end of the line before it.
        file.seek(start - 1)
        offset = start - 1 + len(file.readline())
    else:
        file.seek(0)
    while offset < stop:
        line = file.readline()
        if not line:
            return
        yield offset, line
        offset += len(line)


def format_found(item: tuple[str, int, str]) -> str:
    """Format one line of the results."""
    path, offset, line = item
    return f"{os.path.basename(path)}\t{offset}\t{line}"


def main(arguments: list[str] | None = None) -> int:
    """Search, and print the files with the most matches. Return the exit status."""
    parser = argparse.ArgumentParser(description="Search files for a pattern with a splittable DoFn.")
    parser.add_argument("--input", default=f"{sysconfig.get_path('stdlib')}/*.py", help="file pattern")
    parser.add_argument("--pattern", default=r"\b(TODO|FIXME|XXX)\b", help="regular expression")
    parser.add_argument("--output", type=Path, default=Path("build/notes"), help="folder of the results")
    known, beam_arguments = parser.parse_known_args(arguments)
    output = known.output.resolve()
    shutil.rmtree(output, ignore_errors=True)  # remove files of an earlier run
    output.mkdir(parents=True)

    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        (
            pipeline
            | "Match" >> MatchFiles(known.input)
            | "Files" >> beam.Map(lambda metadata: File(metadata.path, metadata.size_in_bytes))
            | "Search" >> beam.ParDo(Search(known.pattern))
            | "Format" >> beam.Map(format_found)
            | "Write" >> WriteToText(str(output / "found"), file_name_suffix=".txt")
        )

    found = [line.split("\t", 2) for shard in sorted(output.glob("found-*.txt")) for line in _lines(shard)]
    print(f"{len(found):,} lines found; the most in:")
    for name, count in collections.Counter(name for name, _, _ in found).most_common(10):
        print(f"{count:>6}  {name}")
    return 0


def _lines(path: Path) -> list[str]:
    with open(path, encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in file]


if __name__ == "__main__":
    sys.exit(main())
