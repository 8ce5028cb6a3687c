"""Registers the marks of the SDK's own tests, so that their modules can be imported under strict markers."""

from __future__ import annotations

import pytest

_BEAM_MARKS = (
    "it_postcommit",
    "it_validatesrunner",
    "no_sickbay_batch",
    "no_sickbay_streaming",
    "no_xdist",
    "sickbay_direct",
    "timeout",
    "uses_dill",
)


def pytest_configure(config: pytest.Config) -> None:
    for mark in _BEAM_MARKS:
        config.addinivalue_line("markers", f"{mark}: set by the SDK on its own tests")
