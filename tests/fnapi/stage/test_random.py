"""Random pipelines whose bundles are cut anywhere, in SDK workers: the same groups as embedded and bounded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from apache_beam.transforms import trigger, window

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW
from tests.fnapi.stage.inworkers import InWorkers, worker_service
from tests.harness.drive import Driven
from tests.harness.streaming.test_groupings import Pipeline, _first, _own, run
from tests.harness.streaming.test_stateful import Cutting


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with worker_service() as address:
        yield address


def in_workers(service: str, pipeline: Pipeline, seed: int) -> InWorkers:
    """Run a pipeline in workers, cut with a seed."""
    honest = _first if pipeline.combined else _own
    with InWorkers(service, Cutting(seed, honest, jumps=seed % 2 == 0)) as p:
        pipeline.build(p)
    return p


def _millis(micros: int) -> int:
    return min(micros // 1000, END_OF_GLOBAL_WINDOW // 1000)


def groups(p: Driven) -> dict[Any, list[Any]]:
    """Return the values and times of each key and window."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for (key, values, pane), time, in_window in p.windowed():
        found[key, in_window].append((sorted(values), _millis(time.micros), pane))
    return found


@pytest.mark.contract("API-03", "ENG-08")
@pytest.mark.parametrize("seed", [*range(8), 19])
def test_groups_equal_those_of_embedded_python(service: str, seed: int) -> None:
    pipeline = Pipeline(seed)
    here = groups(in_workers(service, pipeline, seed))
    assert here == groups(run(pipeline, seed)), "pane by pane, with the same cuts"
    there = groups(run(pipeline))
    if isinstance(pipeline.trigger, trigger.DefaultTrigger):
        assert here == there
    elif not isinstance(pipeline.windowing, window.Sessions):
        discarding = pipeline.mode == trigger.AccumulationMode.DISCARDING

        def whole(panes: list[Any]) -> list[Any]:
            return sorted(value for values, _, _ in panes for value in values) if discarding else panes[-1][0]

        assert {place: whole(panes) for place, panes in here.items()} == {
            place: whole(panes) for place, panes in there.items()
        }


@pytest.mark.contract("API-03", "ENG-08")
@pytest.mark.parametrize("seed", range(3))
def test_combined_values_equal_those_of_embedded_python(service: str, seed: int) -> None:
    pipeline = Pipeline(seed, combined=True)
    here, there = in_workers(service, pipeline, seed), run(pipeline)
    outcomes = [
        sorted((value, _millis(time.micros), repr(at)) for value, time, at in p.windowed()) for p in (here, there)
    ]
    assert outcomes[0] == outcomes[1]
    assert here.left == []
