"""The times of late that observers have seen, as sketches: what a quantile of them is taken of.

Owns what "of late" means, and that sketches of shards and micro-batches go together. The sketch itself is a library's
(a t-digest: most exact at its ends). Must not know who observes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from arcbeam.model.timestamps import Timestamp

_SIZE: Final = 100
"""Of a sketch: two kilobytes, however much is in it."""
GENERATION: Final = 10_000
"""A sketch with so many times is no longer added to; the one before it goes."""


class Recent(NamedTuple):
    """The times that came last: those of `newer`, and of as many before them as one generation has.

    Attributes:
        older: a sketch; b"" if there is none.
        newer: the one that is added to.
    """

    older: bytes
    newer: bytes

    def encoded(self) -> list[str]:
        """As JSON has it."""
        return [base64.b64encode(each).decode() for each in self]

    @staticmethod
    def decoded(record: Iterable[str]) -> Recent:
        """Of what `encoded` gave."""
        return Recent(*map(base64.b64decode, record))


def sketched(times: Sequence[int], before: bytes = b"") -> bytes:
    """A sketch of some times, and of those of another one."""
    import numpy as np

    sketch = _opened(before)
    sketch.update(np.asarray(times, dtype=np.float64))
    return _closed(sketch)


def with_more(recent: Recent | None, more: Iterable[bytes]) -> Recent:
    """What came last, with what a micro-batch has brought: in whatever order its shards are."""
    older, newer = recent or Recent(b"", b"")
    sketch = _opened(newer)
    if sketch.get_total_weight() >= GENERATION:
        older, sketch = newer, _opened(b"")
    for each in sorted(more):
        sketch.merge(_opened(each))
    return Recent(older, _closed(sketch))


def count_of(recent: Recent) -> int:
    """How many times are in there."""
    return int(_opened(recent.older).get_total_weight() + _opened(recent.newer).get_total_weight())


def quantile_of(recent: Recent, quantile: float) -> Timestamp | None:
    """The time that this part of the latest ones has not passed; None if there are too few of them to tell."""
    sketch = _opened(recent.older)
    sketch.merge(_opened(recent.newer))
    if sketch.get_total_weight() * (1 - quantile) < 1:
        return None
    return Timestamp(int(sketch.get_quantile(quantile)))


def _opened(data: bytes) -> Any:
    from datasketches import tdigest_double

    return tdigest_double.deserialize(data) if data else tdigest_double(_SIZE)


def _closed(sketch: Any) -> bytes:
    data: bytes = sketch.serialize()
    return data
