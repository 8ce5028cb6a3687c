"""The SDK's suites for runners that speak the Fn API, in steps."""

from __future__ import annotations

import pytest

from tests.conformance import suites

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.contract("API-01")
@pytest.mark.long
class FnApiStreaming(suites.FnApi):
    variant = suites.STREAMING
