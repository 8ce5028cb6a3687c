"""Stateful DoFns on a bounded input, divided in several ways, with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.window import TimestampedValue

from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.batch.keyed import KeyedInput
from tests.harness.drive import Collect, Driven

CUTS = [(1, 500_000), (1, 1), (2, 3), (7, 1)]
"""Divisions: (shards, elements in a bundle)."""

cuts = pytest.mark.parametrize(("shards", "bundle_elements"), CUTS)

NOW = 1_700_000_000
"""Seconds since 1970 at which the virtual clock starts."""


class VirtualClock:
    """A clock that moves only when code waits for it."""

    def __init__(self) -> None:
        self.micros = NOW * 1_000_000
        self.waits: list[float] = []

    def now(self) -> int:
        return self.micros

    def wait_until(self, due: int) -> None:
        assert due > self.micros
        self.micros = due
        self.waits.append(due / 1e6 - NOW)

    def install(self, stage: BoundedStage) -> None:
        if stage.processor.root.how.mode == "keyed":
            stage.input = KeyedInput(stage.processor, self)


def timed(p: Any, elements: Iterable[tuple[Any, Any, float]]) -> Any:
    """Create (key, value) with the given times, in this order."""
    return (
        p
        | beam.Create(list(elements), reshuffle=False)
        | "At its time" >> beam.Map(lambda e: TimestampedValue((e[0], e[1]), e[2])).with_output_types(tuple[str, Any])
    )


def applied(
    do_fn: beam.DoFn,
    elements: Iterable[tuple[Any, Any, float]],
    shards: int = 1,
    bundle_elements: int = 500_000,
    windowing: Any = None,
    **settings: Any,
) -> Driven:
    """Return a finished pipeline of one stateful DoFn."""
    with Driven(shards=shards, bundle_elements=bundle_elements, **settings) as p:
        keyed = timed(p, elements)
        if windowing is not None:
            keyed = keyed | beam.WindowInto(windowing)
        keyed | beam.ParDo(do_fn) | Collect()
    return p


def call_on_expiration(proto: Any) -> None:
    """Make the timer family "expires" of each DoFn that has it the callback on window expiration."""
    for transform in proto.components.transforms.values():
        if transform.spec.urn == common_urns.primitives.PAR_DO.urn:
            payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
            if "ts-expires" in payload.timer_family_specs:
                payload.on_window_expiration_timer_family_spec = "ts-expires"
                transform.spec.payload = payload.SerializeToString()
    proto.requirements.append(common_urns.requirements.REQUIRES_ON_WINDOW_EXPIRATION.urn)


def require_time_sorted(proto: Any) -> None:
    """Set the requirement on every stateful DoFn of a pipeline."""
    for transform in proto.components.transforms.values():
        if transform.spec.urn == common_urns.primitives.PAR_DO.urn:
            payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
            if payload.state_specs:
                payload.requires_time_sorted_input = True
                transform.spec.payload = payload.SerializeToString()
    proto.requirements.append(common_urns.requirements.REQUIRES_TIME_SORTED_INPUT.urn)
