"""Which stateful DoFns run key by key, and how their operations are created.

Owns the condition: a ParDo with state or timers whose `process` has only parameters that `harness.stateful.arguments`
can fill. All others use the SDK's operation.
"""

from __future__ import annotations

from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.worker import bundle_processor
from apache_beam.transforms import core

from arcbeam.harness.stateful.arguments import is_filled
from arcbeam.harness.stateful.statefuloperation import StatefulOperation
from arcbeam.harness.transforms.vectorization import PAR_DO_URN, create_par_do, has_batches, hide_side_inputs

_URN = "arcbeam:transform:stateful:v1"


def claim(transform: Any) -> None:
    """Mark a stateful transform for our operation, unless its proto excludes this."""
    if transform.spec.urn != PAR_DO_URN:
        return
    payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
    if not (payload.state_specs or payload.timer_family_specs):
        return
    if payload.restriction_coder_id or payload.requests_finalization:
        return
    if len(transform.inputs) == 1 + len(payload.side_inputs):
        hide_side_inputs(transform, payload)
        transform.spec.urn = _URN


def _create(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    return create_par_do(factory, transform_id, transform, payload, consumers, _choose)


def _choose(fn: Any) -> Any:
    return StatefulOperation if _qualifies(fn) else None


def _qualifies(fn: Any) -> bool:
    if not fn._process_defined or has_batches(fn) or getattr(fn, "_runtime_output_constraints", None):
        return False
    _, defaults = core.get_function_arguments(fn, "process")
    return all(map(is_filled, defaults))


def register() -> None:
    """Register our operation in the SDK's factory. Idempotent."""
    bundle_processor.BeamTransformFactory.register_urn(_URN, runner_pb.ParDoPayload)(_create)
