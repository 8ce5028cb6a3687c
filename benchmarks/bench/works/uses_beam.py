"""State and timers, aggregates of rows, and files as Beam pipelines, the same for every Beam runner."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms.combiners import CountCombineFn
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import CombiningValueStateSpec, TimerSpec, on_timer

from arcbeam.io import WriteParts
from bench.works import uses, work
from bench.works.pipelines import PARTS, Pipeline, Tally, numbers
from bench.works.uses import Sale


class Counted(beam.DoFn):
    """Numbers the elements of each key from 1."""

    SEEN = CombiningValueStateSpec("seen", CountCombineFn())

    def process(self, element: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterable[tuple[int, int]]:
        seen.add(1)
        yield element[0], seen.read()


class Later(beam.DoFn):
    """Outputs each element when its timer fires."""

    TIMER = TimerSpec("timer", TimeDomain.WATERMARK)

    def process(self, element: tuple[int, int], timer: Any = beam.DoFn.TimerParam(TIMER)) -> None:
        timer.set(element[1], dynamic_timer_tag=str(element[1]))

    @on_timer(TIMER)
    def fire(
        self, key: int = beam.DoFn.KeyParam, tag: str = beam.DoFn.DynamicTimerTagParam
    ) -> Iterator[tuple[int, int]]:
        yield key, int(tag)


def _stateful(fn: Callable[[], beam.DoFn]) -> Pipeline:
    def build(p: beam.Pipeline, elements: int, folder: str) -> None:
        keyed = numbers(p, elements) | beam.Map(work.keyed)
        _ = keyed | beam.ParDo(fn()) | beam.ParDo(Tally(folder, work.digest_pair))

    return build


def sale(x: int) -> Sale:
    return Sale(work.key_of(x), x)


def _rows() -> beam.PTransform:
    return beam.Map(lambda x: beam.Row(k=int(work.key_of(x)), v=int(x)))


def _aggregate(rows: Callable[[], beam.PTransform], *aggregates: Any) -> Pipeline:
    def build(p: beam.Pipeline, elements: int, folder: str) -> None:
        grouping: Any = beam.GroupBy("k")
        for n, aggregate in enumerate(aggregates):
            grouping = grouping.aggregate_field("v", aggregate, f"a{n}")
        _ = numbers(p, elements) | rows() | grouping | beam.ParDo(Tally(folder, uses.digest_sale))

    return build


_WRITES: dict[str, Callable[[str], beam.PTransform]] = {
    "text": beam.io.WriteToText,
    "parquet": lambda path: beam.io.WriteToParquet(path, uses.SCHEMA),
    "avro": lambda path: beam.io.WriteToAvro(path, uses.AVRO),
}
_READS: dict[str, Callable[[str], beam.PTransform]] = {
    "text": beam.io.ReadFromText,
    "parquet": beam.io.ReadFromParquet,
    "avro": beam.io.ReadFromAvro,
}


class LookAt(beam.DoFn):
    """Checks written files once they exist; writes the answer to a file in `folder`, and removes the written files."""

    def __init__(self, kind: str, written: str, folder: str) -> None:
        self.kind, self.written, self.folder = kind, Path(written), Path(folder)

    def process(self, element: Any, names: list[str]) -> None:
        answer = uses.look_at(self.kind, self.written)
        shutil.rmtree(self.written)
        (self.folder / "answer").write_text(f"{answer.count} {answer.total}")


def _write(kind: str) -> Pipeline:
    def build(p: beam.Pipeline, elements: int, folder: str) -> None:
        written = folder + "-written"
        made = numbers(p, elements) | beam.Map(uses.line_of if kind == "text" else uses.record_of)
        names = made | _WRITES[kind](f"{written}/out")
        _ = p | "Once" >> beam.Create([None]) | beam.ParDo(LookAt(kind, written, folder), beam.pvalue.AsList(names))

    return build


def _write_parts(p: beam.Pipeline, elements: int, folder: str) -> None:
    # Files that are published at the end of the job are checked after its end.
    _ = numbers(p, elements) | beam.Map(uses.line_of) | WriteParts(f"{folder}/{PARTS}")


def _read(kind: str) -> Pipeline:
    def build(p: beam.Pipeline, elements: int, folder: str) -> None:
        made = p | _READS[kind](f"{uses.files(kind, elements)}/*")
        if kind == "text":
            made |= beam.Map(uses.number_of)
        digest = work.digest_number if kind == "text" else uses.digest_record
        _ = made | beam.ParDo(Tally(folder, digest))

    return build


PIPELINES: dict[str, Pipeline] = {
    "state-sum": _stateful(Counted),
    "timers": _stateful(Later),
    "aggregate-row": _aggregate(_rows, sum),
    "aggregate-rows": _aggregate(_rows, sum, max),
    "aggregate-named": _aggregate(lambda: beam.Map(sale).with_output_types(Sale), sum),
    **{f"write-{kind}": _write(kind) for kind in _WRITES},
    **{f"read-{kind}": _read(kind) for kind in _READS},
    "write-parts": _write_parts,
}
