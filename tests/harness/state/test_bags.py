"""What was read of a state stays as it was."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from apache_beam import coders

from arcbeam.harness.state.bags import Elements, kept_apart


def test_elements_are_those_of_the_moment_however_often_and_late_they_are_looked_at() -> None:
    added = [3]
    before = Elements([1, 2], added)
    added.append(4)
    after = Elements([1, 2], added)
    for _ in range(2):
        assert list(before) == [1, 2, 3]
        assert list(after) == [1, 2, 3, 4]
    assert pickle.loads(pickle.dumps(before)) == [1, 2, 3]


@pytest.mark.parametrize("accumulator", [[1, 2], {"a": [1]}, (1, [2]), {1, 2}, ((1, 2), 3)])
def test_accumulator_that_can_change_is_copied(accumulator: Any) -> None:
    kept = kept_apart(accumulator, coders.PickleCoder().get_impl())
    assert kept == accumulator
    assert kept is not accumulator
    for one, other in zip(kept, accumulator, strict=True):
        assert one is not other or not isinstance(one, list)


@pytest.mark.parametrize("accumulator", [7, 1.5, "text", b"", None, True, (1, 2.5), ()])
def test_accumulator_that_nothing_can_change_is_kept_as_it_is(accumulator: Any) -> None:
    assert kept_apart(accumulator, None) is accumulator


def test_accumulator_that_cannot_be_encoded_is_left_to_whoever_commits_it() -> None:
    accumulator = [object()]
    assert kept_apart(accumulator, coders.VarIntCoder().get_impl()) is accumulator
