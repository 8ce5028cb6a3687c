"""Stages with little data in one task: the same outputs, counters and errors as with tasks of their own.

The limit is met in the middle of a stage's output, and a stage's time is over in the middle of its input.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsDict, AsList, AsSingleton

from arcbeam import ArcbeamRunner
from arcbeam.errors import UserCodeError
from tests.spark.batch.distributed import DISTRIBUTED
from tests.spark.countedpipelines import CountedPipeline

pytestmark = pytest.mark.usefixtures("spark")


_LIMITS = {"little": "--local_exchange_kb=1", "some": "--local_exchange_kb=10", "usual": "--local_exchange_kb=4096"}


def _pipeline(*options: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--shards=3", *options]))


def _written(folder: Path) -> Counter[str]:
    return Counter(line for file in folder.iterdir() for line in file.read_text().splitlines())


def _write(element: Any, folder: str) -> Any:
    """Note an element in a file of its process: outputs that are compared come from no part of the runner."""
    with open(os.path.join(folder, str(os.getpid())), "a", encoding="utf-8") as file:
        file.write(f"{json.dumps(element)}\n")
    return element


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


@pytest.mark.contract("BAT-07")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
def test_outputs_and_counters_do_not_depend_on_the_limit(seed: int, tmp_path: Path) -> None:
    found = {}
    for name, option in {"distributed": DISTRIBUTED, **_LIMITS}.items():
        counts, outputs = _folder(tmp_path, f"{name}-counts"), _folder(tmp_path, name)
        counted = CountedPipeline(seed, counts)
        pipeline = _pipeline(option)
        counted.build(pipeline)
        for n, each in enumerate(counted.collections):
            _ = each | f"Pair {n}" >> beam.Map(lambda x, n: (n, x), n) | f"Write {n}" >> beam.Map(_write, str(outputs))
        result = pipeline.run()
        result.wait_until_finish()
        counted.check(result)
        found[name] = _written(outputs)
    assert found["distributed"].total() > 100
    for name in _LIMITS:
        assert found[name] == found["distributed"], name


def _many(key: int) -> Iterable[tuple[int, str]]:
    return ((n % 5, f"{key}-{n}" * 20) for n in range(300))


def _sizes(group: tuple[int, Iterable[str]]) -> tuple[int, int, int]:
    values = sorted(group[1])
    return group[0], len(values), sum(map(len, values))


def _looked_up(element: tuple[int, int, int], names: dict[int, int], all_: list[Any], total: int) -> list[int]:
    return [*element, names[element[0]], len(all_), total]


@pytest.mark.contract("BAT-07")
@pytest.mark.parametrize("kilobytes", [1, 60, 200, 4096])
def test_limit_is_met_in_a_group_a_key_and_a_side_input(kilobytes: int, tmp_path: Path) -> None:
    with _pipeline(f"--local_exchange_kb={kilobytes}") as p:
        many = p | beam.Create(range(4)) | beam.FlatMap(_many)
        sizes = many | beam.GroupByKey() | beam.Map(_sizes)
        names = many | beam.combiners.Count.PerKey()
        total = many | "Ones" >> beam.Map(lambda _: 1) | beam.CombineGlobally(sum)
        _ = (
            sizes
            | beam.Map(_looked_up, AsDict(names), AsList(many), AsSingleton(total))
            | beam.Map(_write, str(tmp_path))
        )
    # Each key has 60 values of each of the four elements.
    length = {key: 20 * sum(len(f"{e}-{n}") for e in range(4) for n in range(300) if n % 5 == key) for key in range(5)}
    assert _written(tmp_path) == Counter(json.dumps([key, 240, length[key], 240, 1200, 1200]) for key in range(5))


class _Slow(beam.DoFn):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def process(self, element: Any) -> Iterable[Any]:
        time.sleep(self._seconds)
        yield [element, os.getpid()]


@pytest.mark.contract("BAT-07")
@pytest.mark.parametrize("seconds", [0.15, 1.3])
@pytest.mark.parametrize("kind", ["created", "reshuffled", "keyed", "stateful"])
def test_few_slow_elements_use_all_slots(kind: str, seconds: float, tmp_path: Path, spark: Any) -> None:
    number = 16 if seconds < 1 else 4
    with _pipeline("--shards=8") as p:
        elements = p | beam.Create(range(number))
        if kind == "reshuffled":
            elements |= beam.Reshuffle()
        if kind in ("keyed", "stateful"):
            elements = elements | "Pair" >> beam.Map(lambda x: (x, x))
        if kind == "keyed":
            elements = elements | beam.GroupByKey() | "Key" >> beam.Map(lambda group: group[0])
        if kind == "stateful":
            elements = elements | beam.ParDo(_First()) | "Key" >> beam.Keys()
        slow = elements | beam.ParDo(_Slow(seconds))
        _ = slow | "Noted" >> beam.Map(_write, str(tmp_path))
        # What follows finds each of them, whichever task has processed it.
        total = slow | beam.Map(lambda pair: pair[0]) | beam.CombineGlobally(sum)
        _ = total | "Total" >> beam.Map(_write, str(_folder(tmp_path.parent, f"{tmp_path.name}-total")))
    pairs = [json.loads(line) for line in _written(tmp_path).elements()]
    assert sorted(element for element, _ in pairs) == list(range(number))
    assert len({process for _, process in pairs}) >= spark.sparkContext.defaultParallelism
    assert _written(tmp_path.parent / f"{tmp_path.name}-total") == Counter([str(sum(range(number)))])


@pytest.mark.contract("BAT-07")
def test_slow_elements_of_different_branches_use_different_slots(tmp_path: Path) -> None:
    outputs, together = _folder(tmp_path, "outputs"), _folder(tmp_path, "together")
    with _pipeline() as p:
        branches = []
        for n in range(2):
            pair = p | f"Create {n}" >> beam.Create([(n, n)]) | f"Group {n}" >> beam.GroupByKey()
            branches.append(pair | f"Key {n}" >> beam.Keys() | f"Slow {n}" >> beam.ParDo(_Slow(3)))
        both = branches | beam.Flatten() | beam.Map(_write, str(outputs)) | beam.Map(lambda pair: (0, pair[0]))
        _ = both | "Together" >> beam.GroupByKey() | beam.Map(_sorted) | "Noted" >> beam.Map(_write, str(together))
    pairs = [json.loads(line) for line in _written(outputs).elements()]
    assert len({process for _, process in pairs}) >= 2
    assert _written(together) == Counter(["[0, [0, 1]]"])


class _First(beam.DoFn):
    SEEN = beam.transforms.userstate.ReadModifyWriteStateSpec("seen", beam.coders.VarIntCoder())

    def process(self, element: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterable[tuple[int, int]]:
        if seen.read() is None:
            seen.write(1)
            yield element


def _dies_once(element: int, marker: str) -> int:
    if element == 3 and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return element


@pytest.mark.contract("BAT-07")
def test_worker_that_dies_repeats_its_stages(tmp_path: Path) -> None:
    outputs = _folder(tmp_path, "outputs")
    with _pipeline() as p:
        sums = p | beam.Create([(n % 3, n) for n in range(9)]) | beam.CombinePerKey(sum)
        died = sums | "Keys" >> beam.Keys() | "Key" >> beam.Map(lambda key: key + 2)
        after = died | beam.Map(_dies_once, str(tmp_path / "died"))
        _ = (
            after
            | beam.Map(lambda key: (0, key))
            | beam.GroupByKey()
            | beam.Map(_sorted)
            | beam.Map(_write, str(outputs))
        )
    assert (tmp_path / "died").exists()
    # Only outputs of the last attempt reach the end.
    assert _written(outputs) == Counter(["[0, [2, 3, 4]]"])


class _SlowAndDiesOnce(beam.DoFn):
    """Needs so long for the first element that others begin with the rest; its worker dies after that, once."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def process(self, element: int) -> Iterable[int]:
        if element == 0:
            time.sleep(2.5)
            if not (self._folder / "died").exists():
                (self._folder / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        (self._folder / f"{element}-{uuid.uuid4().hex}").touch()
        yield element


@pytest.mark.contract("BAT-07", "BAT-04")
def test_rest_of_an_attempt_that_fails_later_counts_once(tmp_path: Path) -> None:
    outputs, calls = _folder(tmp_path, "outputs"), _folder(tmp_path, "calls")
    p = _pipeline("--shards=8")
    numbers = p | beam.Create(range(8)) | beam.ParDo(_SlowAndDiesOnce(str(calls)))
    _ = (
        numbers
        | beam.Map(_counted)
        | beam.Map(lambda n: (0, n))
        | beam.GroupByKey()
        | beam.Map(_sorted)
        | beam.Map(_write, str(outputs))
    )
    result = p.run()
    result.wait_until_finish()
    # What the first attempt has left counts; the second's rest does not. What the first had taken is processed again.
    assert Counter(file.name.partition("-")[0] for file in calls.glob("*-*")) == {"0": 2} | {
        str(n): 1 for n in range(1, 8)
    }
    assert _written(outputs) == Counter([f"[0, {list(range(8))}]"])
    (counter,) = result.metrics().query(MetricsFilter().with_name("counted"))["counters"]
    assert counter.committed == 8


def _counted(element: int) -> int:
    Metrics.counter("local stages", "counted").inc()
    return element


def _sorted(group: tuple[int, Iterable[int]]) -> tuple[int, list[int]]:
    return group[0], sorted(group[1])


def _fails(group: tuple[int, Iterable[int]]) -> int:
    return 1 // (group[0] - 2)


@pytest.mark.contract("BAT-07")
@pytest.mark.parametrize("option", [DISTRIBUTED, *_LIMITS.values()])
def test_error_names_the_transform_and_the_element(option: str) -> None:
    with pytest.raises(UserCodeError) as caught, _pipeline(option) as p:
        _ = p | beam.Create([(n, n) for n in range(4)]) | beam.GroupByKey() | "Culprit" >> beam.Map(_fails)
    assert isinstance(caught.value, ZeroDivisionError)
    assert caught.value.step == "Culprit"
    assert "(2, [2])" in str(caught.value)
