"""Pipelines of which parts run in SDK workers, and others in this process or in workers of another environment."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.environments import python_sdk_capabilities
from apache_beam.transforms.window import FixedWindows, Sessions

from arcbeam import GracefulShutdown
from arcbeam.errors import UnsupportedPipelineError
from arcbeam.fnapi.environments.workers import workers_here
from arcbeam.io import WithWatermark
from tests.fnapi.stage import test_custom_windows, test_loopback, test_stateful
from tests.fnapi.stage.inworkers import InWorkers, external, worker_service
from tests.fnapi.stage.test_loopback import results
from tests.harness.batch.splittables import Range
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[str, str]]:
    with worker_service() as one, worker_service() as other:
        yield one, other


EMBEDDED = runner_pb.Environment(urn=python_urns.EMBEDDED_PYTHON, capabilities=python_sdk_capabilities())


class Mixed(InWorkers):
    """See `InWorkers`; some of the transforms run in another environment.

    Args:
        address: of the service that starts workers.
        other: the other environment.
        seed: which transforms.
    """

    def __init__(self, address: str, other: Any, seed: int, **settings: Any) -> None:
        super().__init__(address, **settings)
        self._other, self._random = other, random.Random(seed)

    def _into_workers(self, proto: Any) -> None:
        super()._into_workers(proto)
        proto.components.environments["other"].CopyFrom(self._other)
        leaves = [t for t in proto.components.transforms.values() if t.environment_id and not t.subtransforms]
        for transform in self._random.sample(leaves, max(1, len(leaves) // 2)):
            transform.environment_id = "other"


PIPELINES: dict[str, Callable[[Any], None]] = {
    "plain": test_loopback._plain,
    "grouped": test_loopback._grouped,
    "side inputs": test_loopback._sides,
    "windowed side inputs": test_loopback._windowed_sides,
    "fixed windows": test_loopback._windowed(FixedWindows(10)),
    "sessions": test_loopback._windowed(Sessions(5)),
    "stateful": lambda p: test_stateful._build(p, 3),
}


@pytest.mark.contract("API-07")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PIPELINES)
def test_parts_may_be_embedded(services: tuple[str, str], name: str, seed: int) -> None:
    with InMicroBatches(None) as expected:
        PIPELINES[name](expected)
    with Mixed(services[0], EMBEDDED, seed, bundle_elements=7) as p:
        PIPELINES[name](p)
    assert results(p) == results(expected)
    assert not workers_here._workers


def _observed(p: Any) -> None:
    timed = p | beam.Create([("a", 3), ("b", 20), ("a", 5)], reshuffle=False) | beam.Map(lambda e: e)
    _ = timed | WithWatermark(itemgetter(1), 5) | beam.Map(lambda e: e[0]) | Collect()


@pytest.mark.contract("API-07", "WM-01")
def test_watermark_is_observed_in_this_process(services: tuple[str, str]) -> None:
    with InMicroBatches(None) as expected:
        _observed(expected)
    with InWorkers(services[0]) as p:
        _observed(p)
    assert results(p) == results(expected)
    assert [stage.remote is None for stage in p.plan.stages if stage.observed] == [True]
    assert any(stage.remote is not None for stage in p.plan.stages)


@pytest.mark.contract("API-07")
@pytest.mark.parametrize("name", [*PIPELINES, "own windows"])
def test_workers_of_two_environments_may_take_part(services: tuple[str, str], name: str) -> None:
    make = PIPELINES.get(name) or test_custom_windows._grouped(test_custom_windows.Runs())
    with InMicroBatches(None) as expected:
        make(expected)
    with Mixed(services[0], external(services[1]), 1, bundle_elements=7) as p:
        make(p)
    assert results(p) == results(expected)
    assert not workers_here._workers


def test_own_windows_beside_embedded_python_are_refused() -> None:
    p = Mixed("localhost:1", EMBEDDED, 1)
    test_custom_windows._grouped(test_custom_windows.Decades())(p)
    with pytest.raises(UnsupportedPipelineError, match="windows of a type of its own in a pipeline that is partly"):
        p.run()


class Ends(beam.DoFn, GracefulShutdown):  # type: ignore[misc]  # Beam is untyped
    def process(self, element: Any, total: int, table: dict[str, int]) -> Iterator[Any]:
        yield element, total, table


class Splits(Range, GracefulShutdown):
    """A splittable DoFn that is called at the end."""


def _called_at_end(p: Any) -> None:
    numbers = p | beam.Create([3, 4], reshuffle=False) | "Same" >> beam.Map(lambda n: n).with_output_types(int)
    table = beam.pvalue.AsDict(numbers | "Row" >> beam.Map(lambda n: (str(n), n)))
    total = beam.pvalue.AsSingleton(numbers | "Total" >> beam.CombineGlobally(sum).without_defaults())
    split = numbers | "Splits" >> beam.ParDo(Splits())
    _ = split | "Ends" >> beam.ParDo(Ends(), total, table) | "After" >> beam.Map(str) | Collect()


@pytest.mark.contract("API-07", "END-05")
def test_dofns_called_at_the_end_read_from_workers(services: tuple[str, str]) -> None:
    with InMicroBatches(None) as expected:
        _called_at_end(expected)
    with InWorkers(services[0]) as p:
        _called_at_end(p)
    assert results(p) == results(expected)
    here = {each.name.split("/")[0] for stage in p.plan.stages if stage.remote is None for each in stage.transforms}
    assert {"Splits", "Ends"} <= here
    assert not {"Same", "Row", "After"} & here
