"""A bounded plan as Spark jobs: what is persisted for several readers, and that no unnecessary operator is used."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, AsSingleton
from apache_beam.testing.util import assert_that, equal_to

from arcbeam import ArcbeamRunner
from tests.spark.batch.distributed import DISTRIBUTED


@pytest.fixture
def requested(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each operator of a data frame is used."""
    counts: Counter[str] = Counter()

    def counted(name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return ask(*args, **kwargs)

        return count

    frame = type(spark.range(1))
    for name in ("mapInArrow", "filter", "persist", "collect"):
        monkeypatch.setattr(frame, name, counted(name, getattr(frame, name)))
    return counts


def _given(x: int, *sides: Any) -> tuple[Any, ...]:
    return x, *(sorted(side) if isinstance(side, list) else side for side in sides)


def test_output_for_side_inputs_is_not_persisted(requested: Counter[str]) -> None:
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([DISTRIBUTED])) as p:
        made = p | "Made" >> beam.Create([1, 2, 3], reshuffle=False)
        odd, even = made | beam.Partition(lambda x, n: 1 - x % n, 2)
        _ = (
            p
            | "One" >> beam.Create([0], reshuffle=False)
            | beam.Map(_given, AsList(odd), AsSingleton(even))
            | beam.Map(lambda found: _require(found == (0, [1, 3], 2)))
        )
    assert requested == {"mapInArrow": 2, "collect": 2}


def _require(right: bool) -> None:
    assert right


def test_output_with_several_readers_is_persisted(requested: Counter[str]) -> None:
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([DISTRIBUTED])) as p:
        # If it were computed twice, the results would differ.
        made = p | "Made" >> beam.Create([1], reshuffle=False) | beam.Map(lambda _: uuid.uuid4().hex)
        seen = made | beam.Map(_given, AsSingleton(made)) | beam.MapTuple(lambda a, b: a == b)
        assert_that(seen, equal_to([True]))
    assert requested["persist"]
