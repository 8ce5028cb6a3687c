"""Quick pickling of frozen dataclasses."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field

from arcbeam.pickling import QuickPickle


@dataclass(frozen=True, slots=True)
class _One(QuickPickle):
    only: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Several(QuickPickle):
    name: str
    one: _One
    more: dict[str, int] = field(default_factory=dict)


def test_values_survive_pickling_and_copying() -> None:
    value = _Several("a", _One((1, 2)), {"x": 3})
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert copy.deepcopy(value) == copy.copy(value) == value
