"""Registers our block operations in the SDK's factory.

Owns how the factory's arguments become those of an operation. Must not know operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apache_beam.runners.common import NameContext
from apache_beam.runners.worker import bundle_processor, operation_specs


def register(urn: str, kind: Callable[[Any, Any, Any, Any, list[str]], Any]) -> None:
    """Register an operation with one input. Idempotent.

    Args:
        urn: of the transforms that it runs.
        kind: takes the name, the SDK's spec, the factory, the windowed coder of the input, and the sorted tags of the
            outputs.
    """

    @bundle_processor.BeamTransformFactory.register_urn(urn, None)  # type: ignore[untyped-decorator]
    def make(factory: Any, transform_id: str, transform: Any, payload: bytes, consumers: Any) -> Any:
        (pcoll,) = transform.inputs.values()
        coders = factory.get_output_coders(transform)
        tags = sorted(coders)
        spec = operation_specs.WorkerFlatten(None, [coders[tag] for tag in tags])
        name = NameContext(transform.unique_name, transform_id)
        op = kind(name, spec, factory, factory.get_windowed_coder(pcoll), tags)
        return factory.augment_oldstyle_op(op, transform.unique_name, consumers, tags)
