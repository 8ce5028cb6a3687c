"""Each DoFn is set up once and torn down once, after success and after failure; no Spark job runs if none needs it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from arcbeam import ArcbeamRunner
from arcbeam.errors import UserCodeError
from arcbeam.spark.batch import boundedjob as batch
from arcbeam.spark.tasks.ending.teardown import TeardownReported, tear_down_workers


class Counting(beam.DoFn):
    """Writes a file for each call of its life cycle, named after the call and the process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def _note(self, what: str) -> None:
        with open(os.path.join(self._folder, f"{what}-{os.getpid()}-{id(self)}"), "a") as f:
            f.write("x")

    def setup(self) -> None:
        self._note("setup")

    def start_bundle(self) -> None:
        self._note("start")

    def process(self, element: int) -> Iterator[int]:
        if element == 13:
            raise ValueError("unlucky")
        yield element

    def teardown(self) -> None:
        self._note("teardown")


class CountingSum(beam.CombineFn):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def setup(self) -> None:
        Path(self._folder, f"setup-{os.getpid()}-{id(self)}").write_text("x")

    def teardown(self) -> None:
        with open(os.path.join(self._folder, f"teardown-{os.getpid()}-{id(self)}"), "a") as f:
            f.write("x")

    def create_accumulator(self) -> int:
        return 0

    def add_input(self, accumulator: int, element: int) -> int:
        return accumulator + element

    def merge_accumulators(self, accumulators: Any) -> int:
        return sum(accumulators)

    def extract_output(self, accumulator: int) -> int:
        return accumulator


def _calls(folder: Path, what: str) -> dict[str, int]:
    """Count the calls of each instance."""
    return {p.name.removeprefix(what): len(p.read_text()) for p in folder.glob(f"{what}-*")}


def _pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(list(arguments)))


@pytest.mark.contract("BAT-03", "END-04")
@pytest.mark.usefixtures("spark")
def test_each_instance_has_one_setup_and_teardown(tmp_path: Path) -> None:
    with _pipeline("--shards=6", "--bundle_elements=5") as p:
        _ = p | beam.Create(range(14, 100)) | beam.Reshuffle() | beam.ParDo(Counting(str(tmp_path)))
    setups = _calls(tmp_path, "setup")
    assert setups
    assert set(setups.values()) == {1}
    assert _calls(tmp_path, "teardown") == setups
    assert sum(_calls(tmp_path, "start").values()) > len(setups), "bundles share an instance"


@pytest.mark.contract("BAT-03")
@pytest.mark.usefixtures("spark")
def test_combine_fn_is_torn_down(tmp_path: Path) -> None:
    with _pipeline() as p:
        _ = p | beam.Create([(x % 3, x) for x in range(100)]) | beam.CombinePerKey(CountingSum(str(tmp_path)))
    setups = _calls(tmp_path, "setup")
    assert setups
    assert _calls(tmp_path, "teardown") == setups


@pytest.mark.contract("END-04")
@pytest.mark.usefixtures("spark")
def test_teardown_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="unlucky"), _pipeline("--shards=4") as p:
        _ = p | beam.Create(range(20)) | beam.Reshuffle() | beam.ParDo(Counting(str(tmp_path)))
    torn_down = _calls(tmp_path, "teardown")
    assert torn_down
    assert set(torn_down.values()) == {1}
    assert torn_down.keys() <= _calls(tmp_path, "setup").keys()


def test_no_spark_job_without_teardown(spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requested: list[Any] = []

    def ask(*arguments: Any, order: Any, seconds: float, name: str) -> TeardownReported:
        requested.append((arguments, order))
        return TeardownReported(set(), [])

    monkeypatch.setattr(batch, "tear_down_workers", ask)
    with _pipeline() as p:
        _ = p | beam.Create([1]) | beam.Map(str)
    assert not requested
    with _pipeline() as p:
        _ = p | beam.Create([1]) | beam.ParDo(Counting(str(tmp_path)))
    ((arguments, order),) = requested
    assert order == sorted(order, reverse=True), "consumers before producers"
    tear_down_workers(*arguments, order=order)


class Hangs(beam.DoFn):
    """Its teardown never ends."""

    def process(self, element: int) -> list[int]:
        return [element]

    def teardown(self) -> None:
        time.sleep(600)


@pytest.mark.contract("END-05")
@pytest.mark.parametrize("mode", [(), ("--streaming",)])
def test_hanging_teardown_does_not_block_the_job(
    spark: Any, mode: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    with _pipeline("--shutdown_seconds=2", *mode) as p:
        _ = p | beam.Create([1]) | beam.ParDo(Hangs())
    assert time.monotonic() - began < 60
    assert re.search(r"tearing down: .* [12](\.\d+)? s\b", caplog.text)
    assert not [each for each in threading.enumerate() if "teardown" in each.name and not each.daemon]
    # The slots are free again, and the workers have ended.
    assert spark.range(0, 4, 1, 4).count() == 4
    with _pipeline() as p:
        assert_that(p | beam.Create([1]), equal_to([1]))


class Breaks(Counting):
    def teardown(self) -> None:
        raise ValueError("it is stuck")


@pytest.mark.contract("END-05")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("mode", [(), ("--streaming",)])
def test_failed_teardown_is_logged_and_others_run(
    tmp_path: Path, mode: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with _pipeline(*mode) as p:
        numbers = p | beam.Create([1]) | "Before" >> beam.ParDo(Counting(str(tmp_path)))
        _ = numbers | "Broken" >> beam.ParDo(Breaks(str(tmp_path))) | "After" >> beam.ParDo(Counting(str(tmp_path)))
    setups, torn_down = _calls(tmp_path, "setup"), _calls(tmp_path, "teardown")
    assert 3 * len(torn_down) == 2 * len(setups)
    assert re.search(r"'Broken'.*ValueError: it is stuck \(", caplog.text)


def test_ended_worker_is_not_waited_for(spark: Any) -> None:
    assert tear_down_workers(spark, "no-such-job", {"nowhere:1"}, 2).left == {"nowhere:1"}


@pytest.mark.contract("END-05")
def test_teardown_without_slots_ends_when_driver_stops(spark: Any) -> None:
    reported = tear_down_workers(spark, "no-such-job", {"elsewhere:1"}, 2, seconds=600.0, given_up=lambda: True)
    assert reported.left == {"elsewhere:1"}
    assert len(reported.errors) == 1
