"""Sketches of the recent times that observers have seen, for a quantile of them.

Owns the meaning of "recent", and how sketches of shards and micro-batches are merged. A library implements the sketch
(a t-digest, which is most exact at its ends). Must not know the observer.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from arcbeam.errors import SetupError
from arcbeam.model.timestamps import Timestamp

_SKETCH_SIZE: Final = 100
"""The size parameter of a sketch: 2 kB, however many times it contains."""
TIMES_MAX: Final = 10_000
"""The maximum number of times in a sketch. Then a new sketch begins, and the older of the two is dropped."""


class Recent(NamedTuple):
    """The recent times: those of `newer`, and one generation before them.

    Attributes:
        older: a sketch; b"" if there is none.
        newer: the sketch that grows.
    """

    older: bytes
    newer: bytes

    def encoded(self) -> list[str]:
        """Return the value for JSON."""
        return [base64.b64encode(each).decode() for each in self]

    @staticmethod
    def decoded(record: Iterable[str]) -> Recent:
        """Return the value that `encoded` has written."""
        return Recent(*map(base64.b64decode, record))


def sketched(times: Sequence[int], before: bytes = b"") -> bytes:
    """Return a sketch of some times, merged with another sketch."""
    import numpy as np

    sketch = _opened(before)
    sketch.update(np.asarray(times, dtype=np.float64))
    return _closed(sketch)


def with_more(recent: Recent | None, more: Iterable[bytes]) -> Recent:
    """Return the recent times with those of a micro-batch; the order of its shards has no effect."""
    older, newer = recent or Recent(b"", b"")
    sketch = _opened(newer)
    if sketch.get_total_weight() >= TIMES_MAX:
        older, sketch = newer, _opened(b"")
    for each in sorted(more):
        sketch.merge(_opened(each))
    return Recent(older, _closed(sketch))


def count_of(recent: Recent) -> int:
    """Return the number of times in the sketches."""
    return int(_opened(recent.older).get_total_weight() + _opened(recent.newer).get_total_weight())


def quantile_of(recent: Recent, quantile: float) -> Timestamp | None:
    """Return the quantile of the recent times; None if there are too few."""
    sketch = _opened(recent.older)
    sketch.merge(_opened(recent.newer))
    if sketch.get_total_weight() * (1 - quantile) < 1:
        return None
    return Timestamp(int(sketch.get_quantile(quantile)))


def _opened(data: bytes) -> Any:
    try:
        from datasketches import tdigest_double
    except ModuleNotFoundError as error:
        raise SetupError(
            f"an observed quantile needs the package datasketches, which {sys.executable} does not have",
            "install it for the driver and for all workers",
        ) from error
    return tdigest_double.deserialize(data) if data else tdigest_double(_SKETCH_SIZE)


def _closed(sketch: Any) -> bytes:
    data: bytes = sketch.serialize()
    return data
