"""Stages in a Python SDK worker: the same results as embedded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics
from apache_beam.metrics import monitoring_infos as mi
from apache_beam.transforms.window import (
    FixedWindows,
    Sessions,
    SlidingWindows,
    TimestampedValue,
)

from arcbeam.errors import UserCodeError
from arcbeam.fnapi.descriptors import is_port
from arcbeam.fnapi.environments.workers import workers_here
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.harness.bundle.metrics import merge_metrics, parsed
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW
from tests.fnapi.stage.inworkers import InWorkers, worker_service
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with worker_service() as address:
        yield address


class Named(NamedTuple):
    """A key that is pickled."""

    x: int
    y: str


class Point:
    """A value that only its own SDK can decode."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def __hash__(self) -> int:
        return hash(self.x)

    def __repr__(self) -> str:
        return f"Point({self.x})"


def _plain(p: Any) -> None:
    numbers = p | beam.Create(list(range(50))) | "Negative" >> beam.Map(lambda x: -x)
    even, odd = numbers | beam.Partition(lambda x, _: x % 2, 2)
    _ = even | "Points" >> beam.Map(Point) | beam.Reshuffle() | "x" >> beam.Map(lambda point: point.x) | Collect("even")
    _ = odd | Collect("odd")
    _ = (even, odd) | beam.Flatten() | "Again" >> beam.Reshuffle() | Collect("all")


def _declared_otherwise(p: Any) -> None:
    """The keys leave the Reshuffle with a coder that is deterministic, and enter it with another one."""
    pairs = p | beam.Create([1, 2]) | beam.Map(lambda x: (Named(1, "a"), x)) | beam.Reshuffle()
    _ = pairs | beam.GroupByKey() | beam.MapTuple(lambda key, some: (key, sorted(some))) | Collect("groups")


def _grouped(p: Any) -> None:
    pairs = p | beam.Create([((n % 5, None if n % 3 else "odd"), n) for n in range(40)])
    points = pairs | "Points" >> beam.MapTuple(lambda key, n: (key, Point(n)))
    groups = points | beam.GroupByKey()
    _ = groups | "Sort" >> beam.MapTuple(lambda key, some: (key, sorted(point.x for point in some))) | Collect("groups")
    _ = pairs | beam.CombinePerKey(sum) | Collect("sums")
    _ = pairs | beam.CombineGlobally(beam.combiners.CountCombineFn()).without_defaults() | Collect("count")


def _windowed(windows: Any) -> Callable[[Any], None]:
    def make(p: Any) -> None:
        _ = (
            p
            | beam.Create([("a", 1), ("b", 2), ("a", 14), ("a", 15), ("b", 33), ("a", -7)])
            | beam.Map(lambda kv: TimestampedValue((kv[0], kv[1]), kv[1]))
            | beam.WindowInto(windows)
            | beam.GroupByKey()
            | beam.MapTuple(lambda key, values: (key, sorted(values)))
            | Collect("groups")
        )

    return make


def _sides(p: Any) -> None:
    numbers = p | "Numbers" >> beam.Create(list(range(12)))
    pairs = p | "Pairs" >> beam.Create([(("k", n % 3), Point(n)) for n in range(9)])
    total = numbers | beam.CombineGlobally(sum)

    def look(x: int, some: Any, one: Any, table: Any, lists: Any, none: Any) -> Any:
        key = ("k", x % 4)
        return x, sum(some), one, len(table), sorted(point.x for point in lists[key]), list(none)

    _ = (
        numbers
        | beam.Map(
            look,
            beam.pvalue.AsIter(numbers),
            beam.pvalue.AsSingleton(total),
            beam.pvalue.AsDict(numbers | "Squares" >> beam.Map(lambda x: (x, x * x))),
            beam.pvalue.AsMultiMap(pairs),
            beam.pvalue.AsList(numbers | "None" >> beam.Filter(lambda x: x < 0)),
        )
        | Collect("looked")
    )
    _ = numbers | beam.combiners.Count.Globally() | Collect("count")


def _windowed_sides(p: Any) -> None:
    def timed(name: str, numbers: list[int], size: int) -> Any:
        times = p | name >> beam.Create(numbers) | f"{name} times" >> beam.Map(lambda x: TimestampedValue(x, x))
        return times | f"{name} windows" >> beam.WindowInto(FixedWindows(size))

    main, side = timed("Main", [1, 5, 12, -3, 27], 5), timed("Side", [2, 3, 14, 19, -8], 10)
    _ = main | beam.Map(lambda x, some: (x, sorted(some)), beam.pvalue.AsIter(side)) | Collect("looked")
    keyed = side | beam.Map(lambda x: (x % 2, x))
    _ = main | "Keyed" >> beam.Map(lambda x, of: (x, sorted(of[1])), beam.pvalue.AsMultiMap(keyed)) | Collect("keyed")


_END = END_OF_GLOBAL_WINDOW // 1000
"""Workers see the end of the global window at the next millisecond, as in other SDKs."""


def results(p: Any) -> dict[str, list[str]]:
    """Return everything that was collected, comparable: times in whole milliseconds, as workers have them."""
    from tests.harness.drive import _collected

    prefix = f"{p.run_id}:"
    return {
        name.removeprefix(prefix): sorted(
            repr((value, min(time.micros // 1000, _END), window)) for value, time, window in found
        )
        for name, found in _collected.items()
        if name.startswith(prefix)
    }


@pytest.mark.parametrize(
    "make",
    [
        _plain,
        _declared_otherwise,
        _grouped,
        _sides,
        _windowed_sides,
        _windowed(FixedWindows(10)),
        _windowed(SlidingWindows(20, 10)),
        _windowed(Sessions(5)),
    ],
    ids=[
        "plain",
        "declared otherwise",
        "grouped",
        "side inputs",
        "windowed side inputs",
        "fixed windows",
        "sliding windows",
        "sessions",
    ],
)
def test_results_equal_those_of_embedded_python(service: str, make: Callable[[Any], None]) -> None:
    with InMicroBatches(None) as expected:
        make(expected)
    with InWorkers(service, bundle_elements=7) as p:
        make(p)
    assert any(stage.remote for stage in p.plan.stages)
    assert results(p) == results(expected)
    assert not workers_here._workers


def test_user_metrics_are_those_of_embedded_python(service: str) -> None:
    def count(x: int) -> int:
        Metrics.counter("test", "seen").inc()
        Metrics.distribution("test", "sizes").update(x)
        Metrics.string_set("test", "names").add(str(x % 2))
        return x

    def make(p: Any) -> None:
        _ = p | beam.Create([1, 2, 3]) | "Count" >> beam.Map(count) | Collect()

    def found(p: Any) -> set[tuple[Any, ...]]:
        infos = parsed(merge_metrics(data for report in p.reports for data in report.metrics))
        return {
            (info.urn, info.labels.get("PTRANSFORM"), info.labels.get("PCOLLECTION"), info.payload)
            for info in infos
            if info.urn.startswith("beam:metric:user") or info.urn == mi.ELEMENT_COUNT_URN
        }

    with InMicroBatches(None) as expected:
        make(expected)
    with InWorkers(service) as p:
        make(p)
    assert {each for each in found(p) if each[1]} == {each for each in found(expected) if each[1]}
    assert {each[2]: each[3] for each in found(p)} == {each[2]: each[3] for each in found(expected)}
    infos = parsed(merge_metrics(data for report in p.reports for data in report.metrics))
    assert not [info for info in infos if is_port(info.labels.get("PTRANSFORM", ""))]


def test_error_of_user_code_names_transform_and_has_traceback(service: str) -> None:
    def fail(x: int) -> int:
        raise ValueError("of\n  several lines")

    p = InWorkers(service)
    _ = p | beam.Create([1]) | "Fine" >> beam.Map(lambda x: x) | "Wrong" >> beam.Map(fail) | Collect()
    with pytest.raises(UserCodeError) as raised:
        p.run()
    assert raised.value.step == "Wrong"
    assert raised.value.error.startswith("ValueError: of")
    assert "in fail" in raised.value.traceback
    assert not workers_here._workers


class _EndsItsWorker(beam.DoFn):
    def process(self, x: int) -> Any:
        worker = next(iter(workers_here._workers.values()))
        worker.connection.end("killed")
        yield x


def test_lost_worker_is_no_user_error(service: str) -> None:
    p = InWorkers(service)
    _ = p | beam.Create([1]) | beam.ParDo(_EndsItsWorker()) | Collect()
    with pytest.raises(SdkWorkerLostError, match=r"the SDK worker of the environment at localhost:.* is gone: killed"):
        p.run()


def test_unreachable_service_is_named() -> None:
    p = InWorkers("localhost:1")
    _ = p | beam.Create([1]) | Collect()
    with pytest.raises(SdkWorkerLostError, match=r"at localhost:1 cannot be reached .UNAVAILABLE"):
        p.run()
    assert not workers_here._workers
