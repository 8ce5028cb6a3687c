"""The SDK's tests for every runner (marked `it_validatesrunner`), on arcbeam, in every variant.

`make test` runs them with default options, and a few without fusion.
"""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner_test import StateBackedTestElementType
from apache_beam.testing.util import assert_that, equal_to

from arcbeam import ArcbeamRunner
from tests.conformance import runners, suites

_FEW = ("CombineFnLifecycleNoFusion", "DoFnLifecycleNoFusion", "TranslationsNoFusion")

for _variant in suites.VARIANTS:
    for _name, _case in suites.bound(_variant).items():
        _long = _variant is not suites.DEFAULT and _name not in _FEW
        _marks = [pytest.mark.usefixtures("spark"), *([pytest.mark.long] if _long else [])]
        _case.__module__, _case.pytestmark = __name__, _marks  # type: ignore[attr-defined]
        globals()[_name] = _case
for _variant in (suites.LOOPBACK, suites.LOOPBACK_STREAMING):
    for _name, _case in suites.bound(_variant, runners.submitting).items():
        _marks = [pytest.mark.usefixtures("spark"), *([] if _name == "DoFnLifecycleLoopback" else [pytest.mark.long])]
        _case.__module__, _case.pytestmark = __name__, _marks  # type: ignore[attr-defined]
        globals()[_name] = _case
del _case


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.contract("BAT-01")
@pytest.mark.parametrize("options", [[], ["--streaming"]], ids=["batch", "streaming"])
def test_at_most_five_page_sized_values_are_alive(options: list[str]) -> None:
    """`FnApiBasedStateBackedCoderTest` checks this with values of 300 bytes, which are far smaller than a page here."""
    size, count = 1 << 20, 20
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(options)) as p:
        values = (
            p
            | beam.Create([None])
            | beam.FlatMap(lambda _: ((1, StateBackedTestElementType(size, i)) for i in range(count)))
        )
        sizes = values | beam.GroupByKey() | beam.MapTuple(lambda _, of_key: sum(e.num_elements for e in of_key))
        assert_that(sizes, equal_to([count * size]))
