"""What `WithWatermark` costs per element compared with a Map: a stage in one process, without Spark.

Elements arrive in blocks, pass a Map, the measured transform, and two Maps after it, and end there. Each figure is the
processor time of an element minus that of the same chain with an identity Map in that place. So it includes what later
transforms pay for elements with different times, unless the elements had such times before, as those of a stream's
source do.
"""

from __future__ import annotations

import functools
import logging
import math
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.bundle.observedtimes import ObservingOperation
from arcbeam.io import WithWatermark
from bench.figures import Figure, core_seconds

sys.path.append(str(Path(__file__).resolve().parents[3]))
from tests.harness.drive import Driven

TARGET = 0.1
"""Microseconds."""
_LIST = 50_000
"""Elements that are made once and reused."""
_DELAY = 60


class Click(NamedTuple):
    """An element with a schema."""

    at: float
    number: int


class Stamped(NamedTuple):
    """The same with the SDK's time."""

    at: Timestamp
    number: int


_MADE: dict[str, Callable[[int], Any]] = {
    "dicts": lambda n: {"at": n / 20_000, "number": n},
    "rows": lambda n: beam.Row(at=n / 20_000, number=n),
    "named tuples": lambda n: Click(n / 20_000, n),
    "named tuples with the SDK's Timestamps": lambda n: Stamped(Timestamp(micros=n * 50), n),
    "numbers": lambda n: n,
}


@functools.cache
def _elements(kind: str) -> list[Any]:
    return [_MADE[kind](n) for n in range(_LIST)]


# SUBTLE: functions of a module are pickled by name; a lambda would be pickled with all that it refers to.


def _given(_: int, kind: str) -> list[Any]:
    return _elements(kind)


def _same(element: Any) -> Any:
    return element


def _second_of(number: int) -> float:
    return number / 20_000


def _timed(number: int) -> TimestampedValue:
    return TimestampedValue(number, number / 20_000)


def _timed_dict(element: dict[str, Any]) -> TimestampedValue:
    return TimestampedValue(element, element["at"])


_AT = operator.itemgetter("at")


class Form(NamedTuple):
    """What is measured.

    Attributes:
        name: its name in the table.
        kind: the kind of the elements.
        place: the transform in the chain.
        target: microseconds.
        timed: whether elements have times of their own before.
    """

    name: str
    kind: str
    place: Callable[[], beam.PTransform]
    target: float | None = TARGET
    timed: bool = False


FORMS = (
    Form("WithWatermark, a field of dicts", "dicts", lambda: WithWatermark("at", _DELAY)),
    Form("… that have times before", "dicts", lambda: WithWatermark("at", _DELAY), timed=True),
    Form("… a function of dicts", "dicts", lambda: WithWatermark(_AT, _DELAY)),
    Form("… a field of rows", "rows", lambda: WithWatermark("at", _DELAY)),
    Form("… a field of named tuples", "named tuples", lambda: WithWatermark("at", _DELAY)),
    Form("… a function of numbers", "numbers", lambda: WithWatermark(_second_of, _DELAY)),
    Form("… that have times before", "numbers", lambda: WithWatermark(_second_of, _DELAY), timed=True),
    Form("… the times that they have", "numbers", lambda: WithWatermark(None, _DELAY), timed=True),
    Form(
        "… a field that has the SDK's Timestamp",
        "named tuples with the SDK's Timestamps",
        lambda: WithWatermark("at", _DELAY),
        None,
    ),
    Form("… a field of dicts, at most so far ahead", "dicts", lambda: WithWatermark("at", _DELAY, max_skew=60), None),
    Form("… a field of dicts, a quantile", "dicts", lambda: WithWatermark("at", _DELAY, quantile=0.99), None),
    Form("Map(TimestampedValue), of dicts", "dicts", lambda: beam.Map(_timed_dict), None),
    Form("… of numbers", "numbers", lambda: beam.Map(_timed), None),
)


def watermarks(elements: int, runs: int) -> list[Figure]:
    """Return microseconds per element compared with an identity Map, from the best of alternating runs of both."""
    logging.disable(logging.WARNING)
    chains = sorted({(form.kind, form.timed) for form in FORMS})
    plain, took = dict.fromkeys(chains, math.inf), [math.inf] * len(FORMS)
    for _ in range(runs):
        for chain in chains:
            plain[chain] = min(plain[chain], _micros(*chain, beam.Map(_same), elements))
        for n, form in enumerate(FORMS):
            took[n] = min(took[n], _micros(form.kind, form.timed, form.place(), elements))
    return [
        Figure(f"{form.name}: compared with a Map", micros - plain[form.kind, form.timed], "µs", form.target)
        for form, micros in zip(FORMS, took, strict=True)
    ]


def _micros(kind: str, timed: bool, place: beam.PTransform, elements: int) -> float:
    rounds = max(1, elements // _LIST)
    pipeline = Driven(shards=1, prepare=_watch)
    made = pipeline | beam.Create([0] * rounds, reshuffle=False) | "Make" >> beam.FlatMap(_given, kind)
    if timed:
        made |= "Times" >> WithWatermark(_second_of if kind == "numbers" else "at", _DELAY)
    before = made | "Before" >> beam.Map(_same)
    _ = before | "Place" >> place | "Behind" >> beam.Map(_same) | "Last" >> beam.Map(_same)
    _elements(kind)
    return core_seconds(pipeline.run) / rounds / _LIST * 1e6


def _watch(stage: BoundedStage) -> None:
    """Observe times, as in a streaming job."""
    for op in stage.processor.sdk.ops.values():
        if isinstance(op, ObservingOperation):
            op.watched = True
