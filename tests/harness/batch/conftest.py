"""Resets what splittable DoFns under test have recorded before each test."""

from __future__ import annotations

import pytest

from tests.harness.batch.splittables import calls, found, gates


@pytest.fixture(autouse=True)
def _nothing_left_of_other_tests() -> None:
    found.clear()
    calls.clear()
    gates.clear()
