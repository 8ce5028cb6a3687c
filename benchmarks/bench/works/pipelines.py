"""The works as Beam pipelines, the same for every Beam runner.

A pipeline's last transform writes one small file per bundle with its part of the answer, as a hand-written Spark job
returns one number per partition to the driver. So a runner that does not run everything has no answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import SlidingWindows, TimestampedValue

from bench.works import uses, work
from bench.works.work import Answer

PARTS = "parts"
"""Name in the answer's folder: files of lines that are the answer."""


class Tally(beam.DoFn):
    """Counts elements and sums their digests; a file per bundle in `folder`."""

    def __init__(self, folder: str, digest: Callable[[Any], int]) -> None:
        self.folder = folder
        self.digest = digest

    def start_bundle(self) -> None:
        self.count = self.total = 0

    def process(self, element: Any) -> None:
        self.count += 1
        self.total += self.digest(element)

    def finish_bundle(self) -> None:
        if self.count:
            (Path(self.folder) / uuid.uuid4().hex).write_text(f"{self.count} {self.total}")


class Ordinal(beam.DoFn):
    """Numbers the elements of each key from 1."""

    SEEN = ReadModifyWriteStateSpec("seen", VarIntCoder())

    def process(self, element: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterable[tuple[int, int]]:
        ordinal = (seen.read() or 0) + 1
        seen.write(ordinal)
        yield element[0], ordinal


def sum_group(key: int, values: Iterable[int]) -> tuple[int, int]:
    return key, sum(values)


def merge_groups(key: int, sides: tuple[Iterable[int], Iterable[int]]) -> tuple[int, int]:
    return key, work.merge(*sides)


def timestamped(x: int) -> tuple[int, int]:
    return TimestampedValue((work.window_key(x), x), work.second_of(x))


def digest_of_window(key: int, mean: float, window: Any = beam.DoFn.WindowParam) -> int:
    return work.digest_window(key, int(window.start), mean)


def same(x: int) -> int:
    return x


def join(x: int, table: dict[int, int]) -> int:
    return x + table[work.key_of(x)]


def numbers(p: beam.Pipeline, elements: int, start: int = 0, label: str = "Numbers") -> beam.PCollection:
    return (
        p
        | f"{label}/Seeds" >> beam.Create(work.seeds(elements, start))
        | f"{label}/Spread" >> beam.Reshuffle()
        | f"{label}/Range" >> beam.FlatMap(work.numbers)
    )


def _map(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = (
        numbers(p, elements)
        | beam.Map(work.scale)
        | beam.Filter(work.keep)
        | beam.Map(work.mix)
        | beam.ParDo(Tally(folder, work.digest_number))
    )


def _group(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = (
        numbers(p, elements)
        | beam.Map(work.keyed)
        | beam.GroupByKey()
        | beam.MapTuple(sum_group)
        | beam.ParDo(Tally(folder, work.digest_pair))
    )


def _count(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = (
        numbers(p, elements)
        | beam.Map(work.key_of)
        | beam.combiners.Count.PerElement()
        | beam.ParDo(Tally(folder, work.digest_pair))
    )


def _reshuffle(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = numbers(p, elements) | beam.Reshuffle() | beam.ParDo(Tally(folder, work.digest_number))


def _cogroup(p: beam.Pipeline, elements: int, folder: str) -> None:
    half = elements // 2
    lefts = numbers(p, half, label="Left") | "Left/Key" >> beam.Map(work.keyed)
    rights = numbers(p, elements - half, half, label="Right") | "Right/Key" >> beam.Map(work.keyed)
    _ = (
        (lefts, rights)
        | beam.CoGroupByKey()
        | beam.MapTuple(merge_groups)
        | beam.ParDo(Tally(folder, work.digest_pair))
    )


def _window(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = (
        numbers(p, elements)
        | beam.Map(timestamped)
        | beam.WindowInto(SlidingWindows(work.WINDOW_SIZE, work.WINDOW_PERIOD))
        | beam.combiners.Mean.PerKey()
        | beam.MapTuple(digest_of_window)
        | beam.ParDo(Tally(folder, same))
    )


def _state(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = (
        numbers(p, elements)
        | beam.Map(work.keyed)
        | beam.ParDo(Ordinal())
        | beam.ParDo(Tally(folder, work.digest_pair))
    )


def _side(p: beam.Pipeline, elements: int, folder: str) -> None:
    table = numbers(p, work.KEYS, label="Table") | "Table/Row" >> beam.Map(work.table_row)
    _ = numbers(p, elements) | beam.Map(join, beam.pvalue.AsDict(table)) | beam.ParDo(Tally(folder, work.digest_number))


def _words(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = (
        p
        | beam.io.ReadFromText(f"{work.corpus(elements)}/*.txt")
        | beam.FlatMap(work.words_of)
        | beam.combiners.Count.PerElement()
        | beam.ParDo(Tally(folder, work.digest_word))
    )


def _tiny(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = p | beam.Create(range(work.TINY)) | beam.Map(same) | beam.ParDo(Tally(folder, work.digest_number))


def _tiny_group(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = (
        p
        | beam.Create(range(work.TINY))
        | beam.Map(work.third)
        | beam.GroupByKey()
        | beam.MapTuple(sum_group)
        | beam.ParDo(Tally(folder, work.digest_pair))
    )


Pipeline = Callable[[beam.Pipeline, int, str], None]
"""Adds a work to a pipeline: for a number of elements, with a folder for the parts of the answer."""

PIPELINES: dict[str, Pipeline] = {
    "map": _map,
    "group": _group,
    "count": _count,
    "reshuffle": _reshuffle,
    "cogroup": _cogroup,
    "window": _window,
    "state": _state,
    "side": _side,
    "words": _words,
    "tiny": _tiny,
    "tiny-group": _tiny_group,
}


def run(build: Pipeline, elements: int, runner: Any, folder: str) -> Answer:
    """Builds and runs a work's pipeline; `folder` is an empty one for the parts of the answer."""
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions([]))
    build(pipeline, elements, folder)
    pipeline.run().wait_until_finish()
    written = Path(folder) / PARTS
    if written.is_dir():
        return uses.look_at("text", written)
    parts = [tuple(map(int, file.read_text().split())) for file in Path(folder).iterdir()]
    return Answer(sum(count for count, _ in parts), sum(total for _, total in parts))
