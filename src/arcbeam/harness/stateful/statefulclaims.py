"""Which stateful DoFns are run key by key, and how their operations are made.

Owns what qualifies: a ParDo with state or timers whose `process` asks for nothing that only the SDK's own operation can
give (`harness.stateful.arguments`). What does not qualify stays the SDK's.
"""

from __future__ import annotations

from typing import Any

from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners import common
from apache_beam.runners.worker import bundle_processor, operation_specs
from apache_beam.transforms import core

from arcbeam.harness.stateful.arguments import is_filled
from arcbeam.harness.stateful.statefuloperation import StatefulOperation
from arcbeam.harness.transforms.claims import PAR_DO_URN, has_batches, hide_side_inputs, show_side_inputs, side_inputs
from arcbeam.harness.transforms.values import Given

_URN = "arcbeam:transform:stateful:v1"


def claim(transform: Any) -> None:
    """Gives a transform of a bundle descriptor to this module if its proto does not say that it cannot be ours."""
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
    serialized = core.DoFnInfo.from_runner_api(payload.do_fn, factory.context).serialized_dofn_data()
    fn, args, kwargs, _, windowing = pickler.loads(serialized)
    if not _qualifies(fn):
        show_side_inputs(transform, payload)
        create_sdk, _ = bundle_processor.BeamTransformFactory._known_urns[PAR_DO_URN]
        return create_sdk(factory, transform_id, transform, payload, consumers)
    (pcoll,) = transform.inputs.values()
    if not windowing:
        windowing = factory.context.windowing_strategies.get_by_id(
            factory.descriptor.pcollections[pcoll].windowing_strategy_id
        )
    tags = list(transform.outputs)
    coders = factory.get_output_coders(transform)
    spec = operation_specs.WorkerDoFn(
        serialized_fn=serialized,
        output_tags=tags,
        input=None,
        side_inputs=None,
        output_coders=[coders[tag] for tag in tags],
    )
    given = Given(list(args), dict(kwargs), side_inputs(factory, transform_id, transform, payload), windowing)
    name = common.NameContext(transform.unique_name, transform_id)
    op = StatefulOperation(name, spec, factory, factory.get_windowed_coder(pcoll), fn, given)
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers, tags)


def _qualifies(fn: Any) -> bool:
    if not fn._process_defined or has_batches(fn) or getattr(fn, "_runtime_output_constraints", None):
        return False
    _, defaults = core.get_function_arguments(fn, "process")
    return all(map(is_filled, defaults))


def register() -> None:
    """Teaches the SDK's factory our operation. Idempotent."""
    bundle_processor.BeamTransformFactory.register_urn(_URN, runner_pb.ParDoPayload)(_create)
