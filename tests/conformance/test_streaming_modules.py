"""The tests of the SDK's own modules about streams, in a streaming job: pipelines with a TestStream, and all others."""

from __future__ import annotations

import unittest
from typing import Any

import pytest

from tests.conformance import modules, reviewed, suites

_CONTRACTS = {
    "testing.test_stream_test": ("ENG-09",),
    "transforms.trigger_test": ("ENG-11",),
    "transforms.userstate_test": ("ENG-12",),
    "transforms.sideinputs_test": ("ENG-05",),
}


def _mark(case: Any) -> None:
    """Mark all tests as long except a sample of those with fusion; all of them together are long, too."""
    for name in unittest.defaultTestLoader.getTestCaseNames(case):
        sample = case.variant is suites.STREAMING and f"{case.suite.__name__}.{name}" in reviewed.SAMPLE
        if not sample:
            setattr(case, name, pytest.mark.long(getattr(case, name)))


for _variant in (suites.STREAMING, suites.STREAMING_NO_FUSION):
    for _module in modules.MODULES:
        for _name, _case in modules.bound(_variant, _module).items():
            _mark(_case)
            _carried = [pytest.mark.contract(*_CONTRACTS[_module])] if _module in _CONTRACTS else []
            _case.__module__ = __name__
            _case.pytestmark = [pytest.mark.usefixtures("spark"), *_carried]  # type: ignore[attr-defined]
            globals()[_name] = _case
del _case
