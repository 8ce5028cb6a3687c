"""Random stateful pipelines whose input is cut anywhere, in SDK workers: the same results as embedded and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW
from tests.fnapi.stage.inworkers import InWorkers, worker_service
from tests.harness.batch.statefulplans import call_on_expiration, require_time_sorted
from tests.harness.drive import Driven
from tests.harness.streaming import test_stateful
from tests.harness.streaming.test_expiration import Expiring, build_with_lateness, check_lateness, cut_with_lateness
from tests.harness.streaming.test_stateful import Cutting, Pipeline, _begin, bounded, outputs_of


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with worker_service() as address:
        yield address


@pytest.fixture(autouse=True)
def in_millis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are whole milliseconds, as workers have them."""
    monkeypatch.setattr(test_stateful, "unit", 1000)
    monkeypatch.setattr(test_stateful, "APART", 31)
    monkeypatch.setattr(test_stateful, "in_worker", True)


def _seeds(count: int) -> list[Any]:
    return [n if n < 5 else pytest.param(n, marks=pytest.mark.long) for n in range(count)]


def found(p: Driven) -> dict[Any, list[Any]]:
    """Return the outputs of each key in each window, in order, with times in milliseconds."""
    last = END_OF_GLOBAL_WINDOW // 1000
    return {
        place: [(value, min(micros // 1000, last)) for value, micros in outputs]
        for place, outputs in outputs_of(p).items()
    }


@pytest.mark.contract("API-03", "ENG-08", "ENG-12")
@pytest.mark.parametrize("seed", _seeds(40))
def test_stateful_pipeline_equals_bounded_run(service: str, seed: int) -> None:
    pipeline = Pipeline(seed)
    with InWorkers(service, Cutting(seed, _begin, not pipeline.clocks), **pipeline.settings) as here:
        pipeline.build(here)
    assert found(here) == found(bounded(pipeline))
    assert here.left == []
    assert here.drops == []


@pytest.mark.contract("API-03", "ENG-12")
@pytest.mark.parametrize("seed", _seeds(10))
def test_callback_on_window_expiration_equals_bounded_run(service: str, seed: int) -> None:
    pipeline = Pipeline(seed, fn=Expiring)
    cut = Cutting(seed, _begin, not pipeline.clocks)
    with InWorkers(service, cut, call_on_expiration, **pipeline.settings) as here:
        pipeline.build(here)
    assert found(here) == found(bounded(pipeline, call_on_expiration))
    assert here.left == []


@pytest.mark.contract("API-03", "ENG-12")
def test_expiration_waits_for_late_elements(service: str) -> None:
    with InWorkers(service, cut_with_lateness, call_on_expiration) as p:
        build_with_lateness(p)
    check_lateness(p)


@pytest.mark.contract("API-03", "ENG-13")
@pytest.mark.parametrize("seed", _seeds(12))
def test_time_sorted_input_is_sorted(service: str, seed: int) -> None:
    pipeline = Pipeline(seed, in_order=True)
    cut = Cutting(seed, lambda one: one[1], not pipeline.clocks)
    with InWorkers(service, cut, require_time_sorted, **pipeline.settings) as here:
        pipeline.build(here)
    assert found(here) == found(bounded(pipeline, require_time_sorted))
    assert here.left == []
