"""The SDK's suites for runners that speak the Fn API, on arcbeam, in every variant."""

from __future__ import annotations

import pytest

from tests.conformance import suites

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.contract("BAT-02", "BAT-03")
class FnApiDefault(suites.FnApi):
    variant = suites.DEFAULT


@pytest.mark.contract("PLAN-05")
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


@pytest.mark.long
class FnApiNoBatches(suites.FnApi):
    variant = suites.NO_BATCHES


@pytest.mark.long
class FnApiNoBulkValues(suites.FnApi):
    variant = suites.NO_BULK_VALUES


class MetricsDefault(suites.FnApiMetrics):
    variant = suites.DEFAULT


class MetricsNoFusion(suites.FnApiMetrics):
    variant = suites.NO_FUSION


@pytest.mark.long
class MetricsNoValueChains(suites.FnApiMetrics):
    variant = suites.NO_VALUE_CHAINS


@pytest.mark.long
class MetricsNoBatches(suites.FnApiMetrics):
    variant = suites.NO_BATCHES


class SplitDefault(suites.FnApiSplit):
    variant = suites.DEFAULT


class SplitNoFusion(suites.FnApiSplit):
    variant = suites.NO_FUSION
