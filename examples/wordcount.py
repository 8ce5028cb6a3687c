"""Word count: how often each word occurs in a set of text files.

    arcbeam run examples/wordcount.py [--input 'path/*.txt'] [--output build/wordcount] [--top 20]

Without `--input` it reads the modules of Python's standard library, about 170 files of code and documentation. The
counts of all words are written to `{output}/words-*.txt`; the most frequent ones are printed.
"""

from __future__ import annotations

import argparse
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
from apache_beam.io import ReadFromText, WriteToText
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")


def words(line: str) -> list[str]:
    """Return the words of a line, in lower case; an apostrophe inside belongs to the word."""
    return WORD.findall(line.lower())


def format_count(item: tuple[str, int]) -> str:
    """Format one line of the results."""
    return f"{item[0]}\t{item[1]}"


def result_files(folder: str) -> list[str]:
    """Return the paths of the results."""
    (found,) = FileSystems.match([FileSystems.join(folder, "words-*.txt")])
    return sorted(file.path for file in found.metadata_list)


def read_counts(folder: str) -> Iterator[tuple[str, int]]:
    """Yield the results from all their files."""
    for path in result_files(folder):
        with FileSystems.open(path) as file:
            for line in file.read().decode("utf-8").splitlines():
                word, count = line.split("\t")
                yield word, int(count)


def main(arguments: list[str] | None = None) -> int:
    """Count and print. Return the exit status."""
    parser = argparse.ArgumentParser(description="Count the words of text files.")
    parser.add_argument("--input", default=f"{sysconfig.get_path('stdlib')}/*.py", help="file pattern")
    parser.add_argument("--output", default="build/wordcount", help="folder or URL of the results")
    parser.add_argument("--top", type=int, default=20, help="how many words to print")
    known, beam_arguments = parser.parse_known_args(arguments)
    output = known.output if "://" in known.output else str(Path(known.output).resolve())
    FileSystems.delete(result_files(output))  # of an earlier run, which may have had more files

    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        (
            pipeline
            | "Read" >> ReadFromText(known.input)
            | "Words" >> beam.FlatMap(words)
            | "Count" >> beam.combiners.Count.PerElement()
            | "Format" >> beam.Map(format_count)
            | "Write" >> WriteToText(FileSystems.join(output, "words"), file_name_suffix=".txt")
        )

    counts = sorted(read_counts(output), key=lambda item: (-item[1], item[0]))
    print(f"{sum(count for _, count in counts):,} words, {len(counts):,} different ones; the most frequent:")
    for word, count in counts[: known.top]:
        print(f"{count:>10,}  {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
