"""The exchange on Spark: skew, emptiness, elements of 64 MB, many shards, all kinds of keys, killed workers."""

from __future__ import annotations

import enum
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam import pvalue
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to, is_empty
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from arcbeam import ArcbeamRunner
from tests.spark.batch.distributed import DISTRIBUTED

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("spark")


def _pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([DISTRIBUTED, *arguments]))


def _counters(result: Any) -> dict[str, int]:
    return {m.key.metric.name: m.committed for m in result.metrics().query()["counters"]}


@pytest.mark.contract("BAT-01")
class TestSkew:
    def test_all_elements_have_one_key(self) -> None:
        with _pipeline("--shards=4", "--group_memory_mb=1") as p:
            numbers = p | beam.Create(range(8)) | beam.Reshuffle() | beam.FlatMap(lambda i: range(i, 200_000, 8))
            grouped = numbers | beam.Map(lambda i: ("only", i)) | beam.GroupByKey()
            found = grouped | beam.MapTuple(lambda key, values: (key, sum(1 for _ in values), sum(values)))
            assert_that(found, equal_to([("only", 200_000, sum(range(200_000)))]))

    def test_combine_with_one_key(self) -> None:
        with _pipeline("--shards=4") as p:
            numbers = p | beam.Create(range(8)) | beam.Reshuffle() | beam.FlatMap(lambda i: range(i, 100_000, 8))
            assert_that(numbers | beam.CombineGlobally(sum), equal_to([sum(range(100_000))]))
            listed = numbers | beam.combiners.ToList() | beam.Map(lambda found: (len(found), sum(found)))
            assert_that(listed, equal_to([(100_000, sum(range(100_000)))]), "listed")


class _Seen(beam.DoFn):
    """Counts the groups with the expected content."""

    def process(self, element: tuple[int, Iterable[int]]) -> None:
        key, values = element
        right = sorted(values) == [key, key + 5]
        Metrics.counter("seen", "right" if right else "wrong").inc()


@pytest.mark.contract("BAT-01", "PLAN-04")
@pytest.mark.parametrize("shards", [64, pytest.param(1000, marks=pytest.mark.long)])
def test_many_shards_for_ten_elements(shards: int) -> None:
    p = _pipeline(f"--shards={shards}")
    pairs = p | beam.Create([(i % 5, i) for i in range(10)])
    _ = pairs | beam.Reshuffle() | beam.GroupByKey() | beam.ParDo(_Seen())
    result = p.run()
    result.wait_until_finish()
    assert _counters(result) == {"right": 5}


@pytest.mark.contract("BAT-01", "BAT-02")
class TestEmpty:
    def test_group_reshuffle_and_flatten(self) -> None:
        with _pipeline() as p:
            nothing = p | beam.Create([(0, 0)]) | beam.Filter(lambda _: False)
            assert_that(nothing | beam.GroupByKey(), is_empty(), "group")
            assert_that(nothing | beam.Reshuffle(), is_empty(), "reshuffle")
            assert_that(nothing | beam.CombinePerKey(sum), is_empty(), "combine")
            assert_that(
                nothing | "Window" >> beam.WindowInto(FixedWindows(1)) | "G" >> beam.GroupByKey(), is_empty(), "w"
            )
            some = p | "Some" >> beam.Create([(1, 1)])
            assert_that((nothing, some) | beam.Flatten() | "G2" >> beam.GroupByKey(), equal_to([(1, [1])]), "flatten")
            assert_that((nothing, nothing) | "F2" >> beam.Flatten(), is_empty(), "flatten nothing")
            assert_that((p | "Never" >> beam.Create([])) | "R2" >> beam.Reshuffle(), is_empty(), "never")

    def test_cogroup(self) -> None:
        with _pipeline() as p:
            nothing = p | beam.Create([(0, 0)]) | beam.Filter(lambda _: False)
            some = p | "Some" >> beam.Create([(1, "a")])
            found = {"some": some, "nothing": nothing} | beam.CoGroupByKey()
            assert_that(found, equal_to([(1, {"some": ["a"], "nothing": []})]))
            assert_that((nothing, nothing) | "Both" >> beam.CoGroupByKey(), is_empty(), "both")

    def test_side_inputs(self) -> None:
        with _pipeline() as p:
            nothing = p | beam.Create([(0, 0)]) | beam.Filter(lambda _: False)
            one = p | "One" >> beam.Create([1])
            found = one | beam.Map(
                lambda x, it, li, di, mm, si: (x, list(it), li, dict(di), list(mm[5]), si),
                pvalue.AsIter(nothing),
                pvalue.AsList(nothing),
                pvalue.AsDict(nothing),
                pvalue.AsMultiMap(nothing),
                pvalue.AsSingleton(nothing, default_value="none"),
            )
            assert_that(found, equal_to([(1, [], [], {}, [], "none")]))
            other = p | "Other" >> beam.Create([1])
            none = nothing | beam.Map(lambda x, side: (x, list(side)), pvalue.AsIter(other))
            assert_that(none, is_empty(), "none")


@dataclass(frozen=True)
class Place:
    name: str
    floor: int


class Pair(NamedTuple):
    a: int
    b: str


class Color(enum.Enum):
    RED = 1
    BLUE = 2


KEYS: list[Any] = [
    "",
    "a",
    "ä",
    "日本",
    "\U0001f600",
    "a" * 1000,
    b"",
    b"\0\xff",
    None,
    0,
    1,
    -(2**62),
    1.5,
    float("inf"),
]
KEYS += [(), (1, "a"), (1, ("b", None)), (b"x", 2.5), True, False, 1.0, "1", b"1"]
KEYS += [Place("hall", 0), Place("hall", 1), Pair(1, "a"), Color.RED, Color.BLUE]


def _label(key: Any) -> str:
    return f"{type(key).__name__}:{key!r}"


@pytest.mark.contract("BAT-01", "BAT-02")
@pytest.mark.parametrize("shards", [1, 7])
def test_keys_of_all_kinds(shards: int) -> None:
    """1, 1.0, True and "1" are four keys; each is found as itself by GroupByKey, a combine and a multimap."""
    with _pipeline(f"--shards={shards}", "--allow_non_deterministic_key_coders") as p:
        pairs = (
            p
            | beam.Create(range(3 * len(KEYS)))
            | beam.Reshuffle()
            | beam.Map(lambda i: (KEYS[i % len(KEYS)], i // len(KEYS))).with_output_types(tuple[Any, int])
        )
        expected = [(_label(key), [0, 1, 2]) for key in KEYS]
        grouped = pairs | beam.GroupByKey() | beam.MapTuple(lambda key, values: (_label(key), sorted(values)))
        assert_that(grouped, equal_to(expected), "grouped")
        summed = pairs | beam.CombinePerKey(sum) | "Label" >> beam.MapTuple(lambda key, total: (_label(key), total))
        assert_that(summed, equal_to([(_label(key), 3) for key in KEYS]), "summed")
        found = (
            p
            | "Indexes" >> beam.Create(range(len(KEYS)))
            | beam.Map(lambda i, side: (_label(KEYS[i]), sorted(side[KEYS[i]])), pvalue.AsMultiMap(pairs))
        )
        assert_that(found, equal_to([(_label(key), [0, 1, 2]) for key in KEYS]), "found")


def _large(i: int) -> bytes:
    return bytes([i + 65]) * (64 * MIB)


def _digest(value: bytes) -> tuple[int, int, int]:
    return len(value), value[0], value[-1]


@pytest.mark.contract("BAT-01", "BAT-02", "PLAN-04")
@pytest.mark.parametrize("where", ["group", "reshuffle", "side"])
def test_element_of_64_mib(where: str) -> None:
    expected = (64 * MIB, 65, 65)
    with _pipeline("--group_memory_mb=16") as p:
        large = p | beam.Create([0]) | beam.Reshuffle() | beam.Map(_large)
        if where == "group":
            small = p | "Small" >> beam.Create([b"s"] * 10)
            pairs = (large, small) | beam.Flatten() | beam.Map(lambda value: ("k", value))
            found = pairs | beam.GroupByKey() | beam.MapTuple(lambda k, vs: max(_digest(v) for v in vs))
            assert_that(found, equal_to([expected]))
        elif where == "reshuffle":
            assert_that(large | "Again" >> beam.Reshuffle() | beam.Map(_digest), equal_to([expected]))
        else:
            found = p | "One" >> beam.Create([1]) | beam.Map(lambda _, s: _digest(s), pvalue.AsSingleton(large))
            keyed = large | "Key" >> beam.Map(lambda value: ("k", value))
            looked = (
                p
                | "Two" >> beam.Create([1])
                | "Look up" >> beam.Map(lambda _, s: [_digest(v) for v in s["k"]], pvalue.AsMultiMap(keyed))
            )
            assert_that(found, equal_to([expected]))
            assert_that(looked, equal_to([[expected]]), "looked up")


class _Numbers(beam.DoFn):
    """Yields numbers with their key and padding; records its process and the part that it has begun."""

    def __init__(self, folder: str, each: int, parts: int) -> None:
        self._folder, self._each, self._parts = folder, each, parts

    def process(self, part: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
        Path(self._folder, f"making-{os.getpid()}").touch()
        padding = os.urandom(200)
        for n in range(part * self._each, (part + 1) * self._each):
            yield n * 7919 % 5003, (n, padding)


class _Twice(beam.DoFn):
    """Counts and sums the values of a group, twice; records its process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, element: tuple[int, Iterable[tuple[int, bytes]]]) -> Iterator[tuple[int, int, int]]:
        Path(self._folder, f"reading-{os.getpid()}").touch()
        key, values = element
        first = [sum(1 for _ in values), sum(n for n, _ in values)]
        assert first == [sum(1 for _ in values), sum(n for n, _ in values)]
        Metrics.counter("kill", "count").inc(first[0])
        Metrics.counter("kill", "total").inc(first[1])
        yield key, first[0], first[1]


@pytest.mark.contract("BAT-04", "STORE-02")
def test_kill_9_of_workers_during_shuffle_is_exact(tmp_path: Path) -> None:
    """A worker is killed on each side of two exchanges that follow each other; every count and sum is exact."""
    each, parts = 30_000, 8
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        for side in ("making", "reading"):
            victim = 0
            while not victim and not over.is_set():
                alive = [int(path.name.split("-")[1]) for path in tmp_path.glob(f"{side}-*")]
                victim = next((pid for pid in alive if pid not in killed and Path(f"/proc/{pid}").exists()), 0)
                time.sleep(0.01)
            if victim:
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

    keys = Counter(n * 7919 % 5003 for n in range(each * parts))
    killer = threading.Thread(target=kill)
    p = _pipeline("--shards=4", "--group_memory_mb=4")
    made = p | beam.Create(range(parts)) | beam.Reshuffle() | beam.ParDo(_Numbers(str(tmp_path), each, parts))
    sums = made | beam.GroupByKey() | beam.ParDo(_Twice(str(tmp_path)))
    by_size = sums | beam.Map(lambda found: (found[1], found[2])) | "By size" >> beam.GroupByKey()
    totals = by_size | beam.MapTuple(lambda size, totals: (size, len(list(totals)), sum(totals)))
    expected = []
    for size in set(keys.values()):
        chosen = {key for key, count in keys.items() if count == size}
        expected.append((size, len(chosen), sum(n for n in range(each * parts) if n * 7919 % 5003 in chosen)))
    assert_that(totals, equal_to(expected))
    killer.start()
    try:
        result = p.run()
        result.wait_until_finish()
    finally:
        over.set()
        killer.join()
    assert len(killed) == 2
    total = each * parts
    counters = _counters(result)
    assert (counters["count"], counters["total"]) == (total, total * (total - 1) // 2)


@pytest.mark.contract("BAT-01")
def test_windows_of_a_key_are_grouped_apart() -> None:
    with _pipeline("--shards=3", "--group_memory_mb=1") as p:
        timed = p | beam.Create(range(1000)) | beam.Map(lambda i: TimestampedValue(("k", i), i))
        grouped = timed | beam.WindowInto(FixedWindows(100)) | beam.GroupByKey()
        assert_that(
            grouped | beam.MapTuple(lambda k, values: sorted(values)),
            equal_to([list(range(i, i + 100)) for i in range(0, 1000, 100)]),
        )


@pytest.mark.contract("BAT-02")
def test_mutual_side_inputs_run() -> None:
    with _pipeline() as p:
        a, b = p | "A" >> beam.Create([1]), p | "B" >> beam.Create([2])
        found_b = a | "A with b" >> beam.Map(lambda x, side: (x, *side), pvalue.AsIter(b))
        found_a = b | "B with a" >> beam.Map(lambda x, side: (x, *side), pvalue.AsIter(a))
        assert_that((found_a, found_b) | beam.Flatten(), equal_to([(1, 2), (2, 1)]))
