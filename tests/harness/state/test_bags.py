"""Values that were read from a state do not change."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from apache_beam import coders

from arcbeam.harness.state.bags import BagElements, kept_apart


def test_returned_elements_never_change() -> None:
    added = [3]
    before = BagElements([1, 2], added)
    added.append(4)
    after = BagElements([1, 2], added)
    for _ in range(2):
        assert list(before) == [1, 2, 3]
        assert list(after) == [1, 2, 3, 4]
    assert pickle.loads(pickle.dumps(before)) == [1, 2, 3]


@pytest.mark.parametrize("accumulator", [[1, 2], {"a": [1]}, (1, [2]), {1, 2}, ((1, 2), 3)])
def test_mutable_accumulator_is_copied(accumulator: Any) -> None:
    kept = kept_apart(accumulator, coders.PickleCoder().get_impl())
    assert kept == accumulator
    assert kept is not accumulator
    for one, other in zip(kept, accumulator, strict=True):
        assert one is not other or not isinstance(one, list)


@pytest.mark.parametrize("accumulator", [7, 1.5, "text", b"", None, True, (1, 2.5), ()])
def test_immutable_accumulator_is_not_copied(accumulator: Any) -> None:
    assert kept_apart(accumulator, None) is accumulator


def test_unencodable_accumulator_fails_at_commit() -> None:
    accumulator = [object()]
    assert kept_apart(accumulator, coders.VarIntCoder().get_impl()) is accumulator
