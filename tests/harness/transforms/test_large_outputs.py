"""How many objects of user code are alive concurrently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest

from tests.harness.drive import Collect, Driven


class Counted:
    """Counts its live instances."""

    alive = most = 0

    def __init__(self, n: int, what: bytes = b"") -> None:
        self.n, self.what = n, what
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        Counted.alive -= 1

    def __reduce__(self) -> Any:
        return Counted, (self.n, self.what)


@pytest.mark.parametrize(("size", "most"), [(5 << 20, 1), (1 << 20, 4)])
def test_blocks_of_large_outputs_are_short(size: int, most: int) -> None:
    def things(n: int) -> Iterator[Counted]:
        return (Counted(i, bytes(size)) for i in range(n))

    Counted.most = 0
    with Driven() as p:
        _ = p | beam.Create([40], reshuffle=False) | beam.FlatMap(things) | beam.Map(lambda thing: thing.n) | Collect()
    assert p.values() == list(range(40))
    # The objects that a transform still holds, and the next block.
    assert Counted.most <= 2 * most + 1
