"""The SDK's suites for runners that speak the Fn API, on arcbeam, in every variant."""

from __future__ import annotations

import pytest

from tests.conformance import suites

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.contract("BAT-02", "BAT-03")
class FnApiDefault(suites.FnApi):
    variant = suites.DEFAULT


@pytest.mark.contract("PLAN-05")
@pytest.mark.long
class FnApiNoFusion(suites.FnApi):
    variant = suites.NO_FUSION


@pytest.mark.contract("ENG-08")
@pytest.mark.long
class FnApiSingleElements(suites.FnApi):
    variant = suites.SINGLE_ELEMENTS


@pytest.mark.contract("ENG-08")
@pytest.mark.long
class FnApiOneShard(suites.FnApi):
    variant = suites.ONE_SHARD


@pytest.mark.contract("ENG-08")
@pytest.mark.long
class FnApiSevenShards(suites.FnApi):
    variant = suites.SEVEN_SHARDS


@pytest.mark.long
class FnApiNoValueChains(suites.FnApi):
    variant = suites.NO_VALUE_CHAINS


class MetricsDefault(suites.FnApiMetrics):
    variant = suites.DEFAULT


class MetricsNoFusion(suites.FnApiMetrics):
    variant = suites.NO_FUSION


@pytest.mark.long
class MetricsNoValueChains(suites.FnApiMetrics):
    variant = suites.NO_VALUE_CHAINS


class SplitDefault(suites.FnApiSplit):
    variant = suites.DEFAULT


@pytest.mark.long
class SplitNoFusion(suites.FnApiSplit):
    variant = suites.NO_FUSION


for _variant in (*suites.WITHOUT.values(), suites.NOTHING_ON):
    for _name, _suite in (("FnApi", suites.FnApi), ("Metrics", suites.FnApiMetrics)):
        globals()[f"{_name}{_variant.name}"] = pytest.mark.long(
            type(f"{_name}{_variant.name}", (_suite,), {"variant": _variant, "__module__": __name__})
        )
del _suite
