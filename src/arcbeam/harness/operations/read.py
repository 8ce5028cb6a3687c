"""The read operation: the root of a stage. It replaces the SDK's data plane.

Owns passing elements to the stage's first receiver. The inputs decide which elements, and when bundles are cut
(`harness.batch.inputs`). It is an SDK `DataInputOperation`, so that the SDK's own split logic finds it.
"""

from __future__ import annotations

from typing import Any

from apache_beam import coders
from apache_beam.runners.common import NameContext
from apache_beam.runners.worker import bundle_processor

from arcbeam.harness.operations.blockoperation import OperationOutput
from arcbeam.model.urns import READ_URN, ReadSpec


class ReadOperation(bundle_processor.DataInputOperation):  # type: ignore[misc]  # Beam is untyped
    """The stage's root.

    Attributes:
        how: how elements arrive.
        pcoll_coder: windowed coder of the elements it outputs.
        written_coder: windowed coder with which the elements were written.
        windowing: the PCollection's windowing strategy (SDK object).
        output_blocks: the output for blocks.
    """

    def __init__(self, name: Any, factory: Any, transform_id: str, transform: Any, spec: ReadSpec, consumers: Any):
        pcoll_id = next(iter(transform.outputs.values()))
        self.pcoll_coder = factory.get_windowed_coder(pcoll_id)
        super().__init__(
            name,
            transform.unique_name,
            consumers,
            factory.counter_factory,
            factory.state_sampler,
            self.pcoll_coder,
            transform_id,
            None,  # no data plane. By position: Beam 2.76 calls it data_channel, 2.77 data_channel_factory
        )
        self.how = spec
        self.written_coder = (
            coders.WindowedValueCoder(factory.get_coder(spec.coder), self.pcoll_coder.window_coder)
            if spec.coder
            else self.pcoll_coder
        )
        self._consumer_operations = [operation for consumer in consumers.values() for operation in consumer]
        self.windowing = factory.context.windowing_strategies.get_by_id(
            factory.descriptor.pcollections[pcoll_id].windowing_strategy_id
        )

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        super().setup(data_sampler)
        self.output_blocks = OperationOutput(self.receivers[0], self._consumer_operations)

    def pcollection_count_monitoring_infos(self, tag_to_pcollection_id: Any) -> dict[Any, Any]:
        """Return the element counts of its output, unless the stage that produced the elements counts them."""
        if not self.how.counts:
            return {}
        infos: dict[Any, Any] = super().pcollection_count_monitoring_infos(tag_to_pcollection_id)
        return infos


def register() -> None:
    """Register our read operation in the SDK's factory. Idempotent."""

    @bundle_processor.BeamTransformFactory.register_urn(READ_URN, None)  # type: ignore[untyped-decorator]
    def create(factory: Any, transform_id: str, transform: Any, payload: bytes, consumers: Any) -> Any:
        spec = ReadSpec.from_bytes(payload)
        # A PCollection without a consumer in the stage still needs a receiver.
        return ReadOperation(
            NameContext(transform.unique_name, transform_id), factory, transform_id, transform, spec, consumers
        )
