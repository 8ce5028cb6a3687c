"""Which transforms run block by block, and how their operations are created.

Owns the conditions. A transform is marked by its proto. It gets our operation if the signature of its user code shows
that it reads only the value (`harness.transforms.values`). All others get the SDK's operation. A contract test covers
the SDK internals that this module relies on.

A DoFn qualifies if `process` takes only the element, constants and side inputs, and if it has one output. It must not
use windows, timestamps, panes, state, timers, restrictions, batches, or type checks at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from graphlib import TopologicalSorter
from typing import Any

from apache_beam.coders.coders import WindowedValueCoder
from apache_beam.internal import pickler
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.pvalue import SideInputData
from apache_beam.runners import common
from apache_beam.runners.worker import bundle_processor, operation_specs
from apache_beam.transforms import core
from apache_beam.transforms.sideinputs import get_sideinput_index

from arcbeam.harness.transforms.groupby import shortened
from arcbeam.harness.transforms.sinks import operation_for
from arcbeam.harness.transforms.values import ExtraArguments, FlattenOperation, ValueOperation
from arcbeam.harness.transforms.windowing import create_window_into

PAR_DO_URN = common_urns.primitives.PAR_DO.urn
OURS = {
    PAR_DO_URN: "arcbeam:transform:values:v1",
    common_urns.primitives.FLATTEN.urn: "arcbeam:transform:flatten:v1",
    common_urns.primitives.ASSIGN_WINDOWS.urn: "arcbeam:transform:window_into:v1",
}
_SIDE_INPUT = "arcbeam:side_input:"
_CHAINED_TRANSFORMS_MAX = 80
"""Transforms through which a block may be passed: each takes more frames of Python's stack than the SDK's."""


def claim(transforms: Mapping[str, Any]) -> None:
    """Mark the transforms of a bundle descriptor for our operations, unless their protos exclude this."""
    if _most_in_a_row(transforms) <= _CHAINED_TRANSFORMS_MAX:
        for transform in transforms.values():
            _claim(transform)


def _most_in_a_row(transforms: Mapping[str, Any]) -> int:
    made_by = {pcoll: name for name, transform in transforms.items() for pcoll in transform.outputs.values()}
    before = {
        name: {made_by[pcoll] for pcoll in transform.inputs.values() if pcoll in made_by}
        for name, transform in transforms.items()
    }
    place: dict[str, int] = {}
    for name in TopologicalSorter(before).static_order():
        place[name] = 1 + max((place[other] for other in before[name]), default=0)
    return max(place.values(), default=0)


def only_processes(transform: Any, payload: Any) -> bool:
    """Return whether a ParDo has one output, and by its proto requires nothing but processing elements."""
    return len(transform.outputs) == 1 and not (
        payload.state_specs
        or payload.timer_family_specs
        or payload.restriction_coder_id
        or payload.requests_finalization
        or payload.requires_stable_input
        or payload.requires_time_sorted_input
    )


def _claim(transform: Any) -> None:
    urn = transform.spec.urn
    if urn == PAR_DO_URN:
        payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
        if not only_processes(transform, payload) or len(transform.inputs) != 1 + len(payload.side_inputs):
            return
        hide_side_inputs(transform, payload)
    if urn in OURS:
        transform.spec.urn = OURS[urn]


def hide_side_inputs(transform: Any, payload: Any) -> None:
    """Remove all side inputs of a ParDo from its inputs, and store them in annotations.

    SUBTLE: the SDK recognizes side inputs by the URN, and would pass those of an unknown URN to `process`.
    """
    for tag in payload.side_inputs:
        transform.annotations[_SIDE_INPUT + tag] = transform.inputs.pop(tag).encode()


def show_side_inputs(transform: Any, payload: Any) -> None:
    """Undo `hide_side_inputs`, for the SDK."""
    for tag in payload.side_inputs:
        transform.inputs[tag] = transform.annotations[_SIDE_INPUT + tag].decode()


def create_par_do(
    factory: Any,
    transform_id: str,
    transform: Any,
    payload: Any,
    consumers: Any,
    choose: Callable[[Any], Any],
    urn: str = PAR_DO_URN,
) -> Any:
    """Create the operation of a marked ParDo.

    Args:
        factory: the SDK's factory.
        transform_id: the ParDo's id.
        transform: its proto, without side inputs (`hide_side_inputs`).
        payload: its parsed payload.
        consumers: consumers of its outputs, by tag.
        choose: returns, for a DoFn, a constructor of its operation from (name, spec, factory, coder of inputs, DoFn,
            `ExtraArguments`), or None for the SDK's operation.
        urn: its URN before it was marked.
    """
    serialized = core.DoFnInfo.from_runner_api(payload.do_fn, factory.context).serialized_dofn_data()
    fn, args, kwargs, _, windowing = pickler.loads(serialized)
    make = choose(fn)
    if make is None:
        show_side_inputs(transform, payload)
        create_sdk, _ = bundle_processor.BeamTransformFactory._known_urns[urn]
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
    given = ExtraArguments(list(args), dict(kwargs), _side_inputs(factory, transform_id, transform, payload), windowing)
    name = common.NameContext(transform.unique_name, transform_id)
    op = make(name, spec, factory, _windowed(factory, pcoll), fn, given)
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers, tags)


def _create_par_do(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    return create_par_do(factory, transform_id, transform, payload, consumers, _choose)


def _choose(fn: Any) -> Any:
    return operation_for(fn) or (_value_operation if is_value_only(fn) else None)


def _value_operation(*args: Any) -> ValueOperation:
    op = ValueOperation(*args)
    short = shortened(op.user)
    if short is not None:
        op.user = op.call = short
    return op


def _side_inputs(factory: Any, transform_id: str, transform: Any, payload: Any) -> list[Any]:
    """Return the SDK's maps of a transform's hidden side inputs, in the order of their placeholders."""
    return [
        bundle_processor.StateBackedSideInputMap(
            factory.state_handler,
            transform_id,
            tag,
            SideInputData.from_runner_api(payload.side_inputs[tag], factory.context),
            _windowed(factory, transform.annotations[_SIDE_INPUT + tag].decode()),
        )
        for tag in sorted(payload.side_inputs, key=get_sideinput_index)
    ]


def has_batches(fn: Any) -> bool:
    """Return whether a DoFn takes or makes batches."""
    return bool(fn._process_batch_defined or getattr(fn.process, "_beam_yields_batches", False))


def is_value_only(fn: Any) -> bool:
    """Return whether a DoFn's signature shows that it reads only values, constants and side inputs."""
    # Its proto (state, timers, restrictions) was checked before (`only_processes`). The SDK's `DoFnSignature` would
    # provide all of this, but creating one takes a millisecond.
    if not fn._process_defined or has_batches(fn):
        return False
    _, defaults = core.get_function_arguments(fn, "process")
    return not (any(map(_requests_more, defaults)) or getattr(fn, "_runtime_output_constraints", None))


def _requests_more(default: Any) -> bool:
    """Return whether a parameter's default requests something besides the value."""
    kind = default if isinstance(default, type) else type(default)
    return issubclass(kind, core._DoFnParam)


def _windowed(factory: Any, pcoll: str) -> WindowedValueCoder:
    return factory.get_windowed_coder(pcoll)


def _create_flatten(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    (output,) = transform.outputs.values()
    spec = operation_specs.WorkerFlatten(None, [factory.get_only_output_coder(transform)])
    name = common.NameContext(transform.unique_name, transform_id)
    op = FlattenOperation(name, spec, factory, _windowed(factory, output))
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers)


def register() -> None:
    """Register our operations in the SDK's factory. Idempotent."""
    for urn, parameter, creator in (
        (PAR_DO_URN, runner_pb.ParDoPayload, _create_par_do),
        (common_urns.primitives.FLATTEN.urn, None, _create_flatten),
        (common_urns.primitives.ASSIGN_WINDOWS.urn, runner_pb.WindowingStrategy, create_window_into),
    ):
        bundle_processor.BeamTransformFactory.register_urn(OURS[urn], parameter)(creator)
