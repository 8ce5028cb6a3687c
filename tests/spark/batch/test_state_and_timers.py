"""Stateful DoFns on Spark: keys of many tasks, real time, state that does not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder, StrUtf8Coder, VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.combiners import CountCombineFn
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from tests.notes import note, noted

pytestmark = pytest.mark.usefixtures("spark")


def _pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(list(arguments)))


class SumAtWindowEnd(beam.DoFn):
    VALUES = BagStateSpec("values", VarIntCoder())
    COUNT = CombiningValueStateSpec("count", CountCombineFn())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        w: Any = beam.DoFn.WindowParam,
        values: Any = beam.DoFn.StateParam(VALUES),
        count: Any = beam.DoFn.StateParam(COUNT),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        values.add(element[1])
        count.add(1)
        end.set(w.end)

    @on_timer(END)
    def on_end(
        self,
        key: Any = beam.DoFn.KeyParam,
        w: Any = beam.DoFn.WindowParam,
        values: Any = beam.DoFn.StateParam(VALUES),
        count: Any = beam.DoFn.StateParam(COUNT),
    ) -> Iterator[Any]:
        yield key, int(w.start), count.read(), sum(values.read())


@pytest.mark.contract("ENG-08", "ENG-12", "BAT-03")
@pytest.mark.parametrize("arguments", [["--shards=1"], ["--shards=7", "--bundle_elements=50"], ["--no_fusion"]])
def test_state_and_timers_of_many_keys_in_windows(tmp_path: Path, arguments: list[str]) -> None:
    with _pipeline(*arguments) as p:
        _ = (
            p
            | beam.Create(range(2_000))
            | beam.Map(lambda n: TimestampedValue((n % 37, n), n % 60)).with_output_types(tuple[int, int])
            | beam.WindowInto(FixedWindows(20))
            | beam.ParDo(SumAtWindowEnd())
            | beam.Map(note, str(tmp_path))
        )
    expected: dict[tuple[int, int], list[int]] = {}
    for n in range(2_000):
        expected.setdefault((n % 37, n % 60 // 20 * 20), []).append(n)
    assert sorted(noted(tmp_path)) == sorted((*at, len(ns), sum(ns)) for at, ns in expected.items())


class Delayed(beam.DoFn):
    """Yields its element after some processing time, and how much too early it did so."""

    DUE = ReadModifyWriteStateSpec("due", PickleCoder())
    LATER = TimerSpec("later", TimeDomain.REAL_TIME)

    def process(
        self, element: Any, due: Any = beam.DoFn.StateParam(DUE), later: Any = beam.DoFn.TimerParam(LATER)
    ) -> None:
        due.write((Timestamp.now() + element[1], element[1]))
        later.set(due.read()[0])

    @on_timer(LATER)
    def on_later(self, key: Any = beam.DoFn.KeyParam, due: Any = beam.DoFn.StateParam(DUE)) -> Iterator[Any]:
        at, delay = due.read()
        yield key, delay, max(0, (at - Timestamp.now()).micros)


@pytest.mark.contract("ENG-12", "BAT-03")
def test_processing_time_timers_fire_on_time(tmp_path: Path) -> None:
    elements = [(f"k{n}", 0.2 * (n % 3)) for n in range(30)]
    with _pipeline() as p:
        _ = (
            p
            | beam.Create(elements).with_output_types(tuple[str, float])
            | beam.ParDo(Delayed())
            | beam.Map(note, str(tmp_path))
        )
    assert sorted(noted(tmp_path)) == sorted((key, delay, 0) for key, delay in elements)


@pytest.mark.contract("BAT-03")
def test_group_into_batches_then_group(tmp_path: Path) -> None:
    with _pipeline("--bundle_elements=100") as p:
        _ = (
            p
            | beam.Create([(n % 5, n) for n in range(1_000)])
            | beam.GroupIntoBatches(64, max_buffering_duration_secs=3_600)
            | beam.Map(lambda batch: (batch[0], len(batch[1])))
            | beam.GroupByKey()
            | beam.MapTuple(lambda key, sizes: (key, sorted(sizes)))
            | beam.Map(note, str(tmp_path))
        )
    assert sorted(noted(tmp_path)) == [(key, [8, 64, 64, 64]) for key in range(5)]


class Hoard(beam.DoFn):
    """Keeps all elements, and outputs its state when a timer fires."""

    ALL = BagStateSpec("all", StrUtf8Coder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self, element: Any, everything: Any = beam.DoFn.StateParam(ALL), end: Any = beam.DoFn.TimerParam(END)
    ) -> None:
        everything.add(element[1])
        end.set(1)

    @on_timer(END)
    def on_end(self, key: Any = beam.DoFn.KeyParam, everything: Any = beam.DoFn.StateParam(ALL)) -> Iterator[Any]:
        held = everything.read()
        everything.clear()
        yield key, held


@pytest.mark.contract("ENG-08")
def test_output_bag_crosses_an_exchange(tmp_path: Path) -> None:
    with _pipeline("--bundle_elements=7") as p:
        _ = (
            p
            | beam.Create([(n % 3, f"{n:03d}") for n in range(300)]).with_output_types(tuple[int, str])
            | beam.ParDo(Hoard())
            | beam.GroupByKey()
            | beam.MapTuple(lambda key, bags: (key, sorted(value for bag in bags for value in bag)))
            | beam.Map(note, str(tmp_path))
        )
    assert sorted(noted(tmp_path)) == [(key, [f"{n:03d}" for n in range(key, 300, 3)]) for key in range(3)]


class Counted(beam.DoFn):
    COUNT = CombiningValueStateSpec("count", CountCombineFn())

    def process(self, element: Any, count: Any = beam.DoFn.StateParam(COUNT)) -> Iterator[Any]:
        count.add(1)
        yield element[0], count.read()


@pytest.mark.contract("PLAN-02", "ENG-12")
@pytest.mark.parametrize("options", [(), ("--no_fusion",), ("--streaming",), ("--streaming", "--no_fusion")])
@pytest.mark.parametrize("beside", ["itself", "another", "nothing"])
def test_state_is_by_key_beside_other_readers(tmp_path: Path, options: tuple[str, ...], beside: str) -> None:
    """A Map that read the input last dropped the key, so that each task counted by itself in batch."""
    with _pipeline(*options) as p:
        other = p | "Other" >> beam.Create([1])
        numbers = p | beam.Create(range(60)) | beam.Reshuffle()
        pairs = numbers | "Key" >> beam.Map(lambda x: (f"k{x % 3}", x)).with_output_types(tuple[str, int])
        sides = {"itself": (beam.pvalue.AsList(pairs),), "another": (beam.pvalue.AsList(other),), "nothing": ()}
        counted = pairs | "Counted" >> beam.ParDo(Counted())
        _ = pairs | "Beside" >> beam.Map(lambda x, *side: x, *sides[beside])
        _ = counted | beam.CombinePerKey(max) | "Note" >> beam.Map(note, str(tmp_path))
    assert sorted(noted(tmp_path)) == [("k0", 20), ("k1", 20), ("k2", 20)]
