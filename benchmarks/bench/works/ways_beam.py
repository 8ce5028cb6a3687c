"""The ways to write it as Beam pipelines, the same for every Beam runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint

from bench.works import ways, work
from bench.works.pipelines import Pipeline, Tally, numbers, sum_group


class Once(beam.DoFn):
    def process(self, x: int) -> Iterator[int]:
        yield x * 3 + 1


class ZeroOrOnce(beam.DoFn):
    def process(self, x: int) -> Iterator[int]:
        if x % 4:
            yield x ^ 0x5555


class OnceOrTwice(beam.DoFn):
    def process(self, x: int) -> Iterator[int]:
        yield x
        if x % 2:
            yield x + 1


def by_row(x: int) -> tuple[Any, int]:
    key = work.key_of(x)
    return beam.Row(row=key // ways.WIDE, column=key % ways.WIDE), x


def _yields(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = (
        numbers(p, elements)
        | beam.ParDo(Once())
        | beam.ParDo(ZeroOrOnce())
        | beam.ParDo(OnceOrTwice())
        | beam.ParDo(Tally(folder, work.digest_number))
    )


def _globally(combine: Callable[[], beam.PTransform], digest: Callable[[Any], int], *maps: Any) -> Pipeline:
    """Return a pipeline of Maps and a global combine."""

    def build(p: beam.Pipeline, elements: int, folder: str) -> None:
        made = numbers(p, elements)
        for n, function in enumerate(maps):
            made |= f"Map{n}" >> beam.Map(function)
        _ = made | combine() | beam.ParDo(Tally(folder, digest))

    return build


def digest_whole(x: float) -> int:
    return work.digest_number(int(x))


def digest_all(found: Iterable[int]) -> int:
    return work.digest_number(sum(found))


_ROW = RowTypeConstraint.from_fields([("row", int), ("column", int)])


def _keyed(p: beam.Pipeline, elements: int, kind: str) -> beam.PCollection:
    made = numbers(p, elements)
    if kind == "row":
        # The SDK has no coder for keys that are rows of unknown fields.
        return made | beam.Map(by_row).with_output_types(tuple[_ROW, int])
    return made | beam.Map(ways.KEYED[kind])


def _sum(kind: str) -> Pipeline:
    def build(p: beam.Pipeline, elements: int, folder: str) -> None:
        sums = _keyed(p, elements, kind) | beam.CombinePerKey(sum)
        _ = sums | beam.ParDo(Tally(folder, ways.digest_by(kind)))

    return build


def _group(kind: str) -> Pipeline:
    def build(p: beam.Pipeline, elements: int, folder: str) -> None:
        groups = _keyed(p, elements, kind) | beam.GroupByKey()
        _ = groups | beam.MapTuple(sum_group) | beam.ParDo(Tally(folder, ways.digest_by(kind)))

    return build


def _distinct(kind: str) -> Pipeline:
    def build(p: beam.Pipeline, elements: int, folder: str) -> None:
        keys = _keyed(p, elements, kind) | beam.Keys()
        _ = keys | beam.Distinct() | beam.ParDo(Tally(folder, ways.digest_key(kind)))

    return build


PIPELINES: dict[str, Pipeline] = {
    "yields": _yields,
    "count-globally": _globally(beam.combiners.Count.Globally, work.digest_number, work.scale, work.mix, work.scale),
    "sum-globally": _globally(lambda: beam.CombineGlobally(sum), work.digest_number, work.scale, work.mix),
    "top": _globally(lambda: beam.combiners.Top.Largest(ways.LARGEST), digest_all, work.scale, work.mix),
    "mean": _globally(beam.combiners.Mean.Globally, digest_whole, work.scale, work.mix),
    **{f"sum-{kind}": _sum(kind) for kind in ways.KINDS},
    **{f"group-{kind}": _group(kind) for kind in ways.KINDS},
    **{f"distinct-{kind}": _distinct(kind) for kind in ("tuple", "dataclass")},
}

NOT_LOCAL = frozenset({"sum-row"})
"""Works that Beam's local runner cannot do: its tables of accumulators need hashable keys, and rows are not."""
