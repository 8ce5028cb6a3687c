"""Interactive Beam on arcbeam: `InteractiveRunner(ArcbeamRunner())`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.interactive import interactive_beam as ib
from apache_beam.runners.interactive import interactive_environment
from apache_beam.runners.interactive.interactive_runner import InteractiveRunner
from apache_beam.transforms.periodicsequence import PeriodicImpulse

from arcbeam import ArcbeamRunner
from arcbeam.errors import InvalidPipelineError, UserCodeError

pytestmark = [pytest.mark.contract("API-01"), pytest.mark.usefixtures("spark", "environment")]


@pytest.fixture
def environment() -> Iterator[None]:
    """A new environment of Interactive Beam, which is one for the whole process."""
    interactive_environment.new_env()
    yield
    interactive_environment.new_env()


def _pipeline(*options: str) -> Any:
    return beam.Pipeline(InteractiveRunner(ArcbeamRunner()), options=PipelineOptions(list(options)))


@pytest.mark.parametrize("mode", [(), ("--streaming",)])
def test_collect_returns_elements_of_several_cells(mode: tuple[str, ...]) -> None:
    p = _pipeline(*mode)
    squares = p | beam.Create(range(5)) | beam.Map(lambda x: x * x)
    ib.watch({"p": p, "squares": squares})
    assert sorted(ib.collect(squares)[0]) == [0, 1, 4, 9, 16]
    # As in the next cell of a notebook: what is computed already is read from the cache.
    sums = squares | beam.CombineGlobally(sum)
    pairs = squares | beam.WithKeys(lambda x: x % 2) | beam.GroupByKey() | beam.MapTuple(lambda k, vs: (k, sorted(vs)))
    ib.watch({"sums": sums, "pairs": pairs})
    assert list(ib.collect(sums)[0]) == [30]
    assert sorted(ib.collect(pairs).values.tolist()) == [[0, [0, 4, 16]], [1, [1, 9]]]


def test_show_computes_elements() -> None:
    p = _pipeline()
    words = p | beam.Create(["spark", "beam"])
    ib.watch({"p": p, "words": words})
    # It prints only in IPython, with Beam's extra `interactive`.
    ib.show(words)
    assert words in interactive_environment.current_env().computed_pcollections


def test_error_of_user_code_is_raised() -> None:
    p = _pipeline()
    wrong = p | beam.Create([1]) | "Divide" >> beam.Map(lambda x: x // 0)
    ib.watch({"p": p, "wrong": wrong})
    with pytest.raises(UserCodeError) as caught:
        ib.collect(wrong)
    assert isinstance(caught.value, ZeroDivisionError)
    assert "Divide" in caught.value.step


def test_run_returns_ended_pipeline() -> None:
    p = _pipeline()
    words = p | beam.Create(["spark"])
    ib.watch({"p": p, "words": words})
    result = p.run()
    assert result.state == "DONE"
    assert result.get(words) == ["spark"]


def test_unbounded_input_is_refused() -> None:
    p = _pipeline()
    ticks = p | PeriodicImpulse(fire_interval=1) | beam.WindowInto(beam.window.FixedWindows(2))
    ib.watch({"p": p, "ticks": ticks})
    with pytest.raises(InvalidPipelineError, match="recorded streams"):
        ib.collect(ticks, duration="1s")
