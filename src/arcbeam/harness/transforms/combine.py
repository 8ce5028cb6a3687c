"""The parts of a combine after the exchange: merge accumulators, extract outputs, convert to accumulators.

Owns their operation, which processes blocks. `harness.transforms.precombine` is the part before the exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from apache_beam import CombineFn
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.common import NameContext
from apache_beam.runners.worker import bundle_processor, operation_specs

from arcbeam.errors import ArcbeamError
from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.operations.blockoperation import BlockOperation, user_error

_PARTS = common_urns.combine_components
_URNS = {
    _PARTS.COMBINE_PER_KEY_MERGE_ACCUMULATORS.urn: "arcbeam:transform:merge_accumulators:v1",
    _PARTS.COMBINE_PER_KEY_EXTRACT_OUTPUTS.urn: "arcbeam:transform:extract_outputs:v1",
    _PARTS.COMBINE_PER_KEY_CONVERT_TO_ACCUMULATORS.urn: "arcbeam:transform:convert_to_accumulators:v1",
}


def claim(transform: Any) -> None:
    """Mark a transform for our operation, if it is one of these parts of a combine."""
    transform.spec.urn = _URNS.get(transform.spec.urn, transform.spec.urn)


class CombineOperation(BlockOperation):
    """Applies one function of a CombineFn to the value of each key."""

    def __init__(
        self, name: Any, spec: Any, factory: Any, coder: Any, combine_fn: Any, apply: Callable[[Any], Any]
    ) -> None:
        super().__init__(name, spec, factory, coder)
        self.combine_fn = combine_fn
        self._apply = apply

    def setup(self, data_sampler: Any = None) -> None:
        """Set up the CombineFn."""
        with self.scoped_start_state:
            super().setup(data_sampler)
            self.combine_fn.setup()

    def _take(self, block: Block) -> None:
        apply = self._apply
        with self.scoped_process_state:
            try:
                values = [(key, apply(value)) for key, value in block.values]
            except ArcbeamError:
                raise
            except Exception as e:
                raise user_error(self, e) from e
            self._outputs[0].emit(block.with_values(values))

    def teardown(self) -> None:
        """Tear down the CombineFn."""
        with self.scoped_finish_state:
            super().teardown()
            self.combine_fn.teardown()


def _convert(fn: Any) -> Callable[[Any], Any]:
    return lambda value: fn.add_input(fn.create_accumulator(), value)


_EXTRACT = attrgetter("extract_output")


def _compacted(fn: Any, apply: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compact the accumulators that leave the stage: CombineFns may rely on compact accumulators being encoded.

    SUBTLE: this is not only for size. `Top` with a key contains objects that cannot be encoded. Its `extract_output`
    takes a decoded accumulator for a complete one, unless it was compacted.
    """
    return apply if type(fn).compact is CombineFn.compact else lambda value: fn.compact(apply(value))


def register() -> None:
    """Register our operations in the SDK's factory. Idempotent."""
    parts: list[Callable[[Any], Any]] = [attrgetter("merge_accumulators"), _EXTRACT, _convert]
    for urn, of in zip(_URNS.values(), parts, strict=True):
        bundle_processor.BeamTransformFactory.register_urn(urn, runner_pb.CombinePayload)(_creator(of))


def _creator(of: Callable[[Any], Callable[[Any], Any]]) -> Any:
    def create(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
        (pcoll,) = transform.inputs.values()
        fn = CombineFn.from_runner_api(payload.combine_fn, factory.context)
        spec = operation_specs.WorkerFlatten(None, [factory.get_only_output_coder(transform)])
        name = NameContext(transform.unique_name, transform_id)
        apply = of(fn)
        following = [op for operations in consumers.values() for op in operations]
        if of is not _EXTRACT and not (following and all(isinstance(op, CombineOperation) for op in following)):
            apply = _compacted(fn, apply)
        op = CombineOperation(name, spec, factory, factory.get_windowed_coder(pcoll), fn, apply)
        return factory.augment_oldstyle_op(op, transform.unique_name, consumers)

    return create
