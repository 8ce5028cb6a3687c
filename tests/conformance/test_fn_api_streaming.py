"""The SDK's suites for runners that speak the Fn API, in a streaming job."""

from __future__ import annotations

import pytest

from tests.conformance import suites

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.long]


@pytest.mark.contract("API-01")
class FnApiStreaming(suites.FnApi):
    variant = suites.STREAMING


@pytest.mark.contract("PLAN-05")
class FnApiStreamingNoFusion(suites.FnApi):
    variant = suites.STREAMING_NO_FUSION


class MetricsStreaming(suites.FnApiMetrics):
    variant = suites.STREAMING


class SplitStreaming(suites.FnApiSplit):
    variant = suites.STREAMING
