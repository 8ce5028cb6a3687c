"""Names of transforms that are renamed: whole names, not names that begin alike."""

from __future__ import annotations

import pytest

from arcbeam.model.fingerprint import _renamed


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("Count", "Total"),
        ("Count/Group", "Total/Group"),
        ("Count/Group/Read", "Total/Group/Read"),
        ("Count (late)", "Total (late)"),
        ("Counter", "Counter"),
        ("Counter/Group", "Counter/Group"),
        ("Count2", "Count2"),
        ("All/Count", "All/Count"),
        ("Coun", "Coun"),
    ],
)
def test_transform_and_those_inside_are_renamed(name: str, renamed: str) -> None:
    assert _renamed(name, {"Count": "Total"}) == renamed
