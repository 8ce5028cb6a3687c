"""The write operations by routing, and their registration with the SDK.

Owns which class writes for which routing.
"""

from __future__ import annotations

from typing import Any

from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.runners.common import NameContext
from apache_beam.runners.worker import bundle_processor

from arcbeam.harness.encoding.codererrors import key_producer_of, producer_of
from arcbeam.harness.operations.elementwrite import ElementWrite, SideWrite
from arcbeam.harness.operations.groupwrite import GroupWrite, WindowedGroupWrite
from arcbeam.harness.operations.keyedwrite import KeyedWrite
from arcbeam.harness.operations.write import Write
from arcbeam.model.plan import Routing
from arcbeam.model.urns import WRITE_URN, WriteSpec

_WRITES: dict[Routing, type[Write]] = {
    Routing.FORWARD: ElementWrite,
    Routing.SPREAD: ElementWrite,
    Routing.GROUPED: GroupWrite,
    Routing.SIDE_KEYED: GroupWrite,
    Routing.KEYED: KeyedWrite,
    Routing.SIDE: SideWrite,
}


def register() -> None:
    """Register our write operations in the SDK's factory. Idempotent."""

    @bundle_processor.BeamTransformFactory.register_urn(WRITE_URN, None)  # type: ignore[untyped-decorator]
    def create(factory: Any, transform_id: str, transform: Any, payload: bytes, consumers: Any) -> Any:
        spec = WriteSpec.from_bytes(payload)
        pcoll = next(iter(transform.inputs.values()))
        coder = factory.get_windowed_coder(pcoll)
        kind = _WRITES[Routing(spec.routing)]
        if kind is GroupWrite and not isinstance(coder.window_coder, GlobalWindowCoder):
            kind = WindowedGroupWrite
        op = kind(NameContext(transform.unique_name, transform_id), factory, spec, coder)
        op.producer = producer_of(factory.descriptor, pcoll)
        op.key_producer = key_producer_of(factory.descriptor, pcoll)
        return op
