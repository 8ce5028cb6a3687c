"""What a program has told the SDK about its types, in the workers, whose SDK has been told nothing.

Owns both ends: on the driver, what is in the SDK's registries of schemas, logical types and coders, and the classes
that the pipeline's functions hold and nobody can import; in a worker, the same registries, and those classes as types
of keys (`harness.encoding.keycoders`). Knows nothing of how it travels (`shipping`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_LOG = logging.getLogger("arcbeam.registered")

Pickled = tuple[tuple[str, bytes], ...]
"""Pickled objects under names."""

_LONGEST = 1 << 20
"""Bytes of a pickled class; a larger one holds data, which is no element's business."""
_SDK = "apache_beam."
_GENERATED = "BeamSchema_"
"""What the names of classes begin with that the SDK has made of schemas."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The registries of a driver's SDK, pickled.

    Attributes:
        classes: that cannot be imported and that the pipeline's functions may make keys of, by the SDK's id.
        schemas: classes that have a schema, by the schema's id. Without them a row coder makes up a class.
        logical_types: the program's own, by URN.
        coders: the program's own, by the name of their type: pairs of type and coder's class.
    """

    classes: Pickled = ()
    schemas: Pickled = ()
    logical_types: Pickled = ()
    coders: Pickled = ()

    @staticmethod
    def here() -> Registered:
        """Of this process. What does not pickle is left out: that it is missing is told where it is needed."""
        from apache_beam.coders import typecoders
        from apache_beam.typehints.schema_registry import SCHEMA_REGISTRY
        from apache_beam.typehints.schemas import LogicalType

        known = typecoders.registry
        # A type whose coder was taken away again is still in the list of custom types.
        kept = [t for t in known.custom_types if known._normalize_typehint_type(t) in known._coders]
        return Registered(
            classes=pickled(_classes(), loud=False),
            schemas=pickled(
                (id, t)
                for id, t in SCHEMA_REGISTRY.get_registered_typings().items()
                if isinstance(t, type) and not t.__name__.startswith(_GENERATED) and not _of_sdk(t)
            ),
            logical_types=pickled(
                (urn, t) for urn, t in LogicalType._known_logical_types.copy_custom().by_urn.items() if not _of_sdk(t)
            ),
            coders=pickled(
                (getattr(t, "__qualname__", str(t)), (t, c))
                for t, c in known.get_custom_type_coder_tuples(kept)
                if not _of_sdk(t)
            ),
        )

    def install(self) -> None:
        """Adds all this to what this process has. Idempotent; types of other jobs do no harm, and stay."""
        global _installed
        if self == _installed:
            return
        from apache_beam.coders import typecoders
        from apache_beam.typehints.schema_registry import SCHEMA_REGISTRY
        from apache_beam.typehints.schemas import LogicalType

        from arcbeam.harness.encoding import keycoders

        keycoders.know(found for _, found in _loaded(self.classes))
        for id, found in _loaded(self.schemas):
            if SCHEMA_REGISTRY.get_typing_by_id(id) is not found:
                SCHEMA_REGISTRY.by_id[id] = (found, None)
        for urn, found in _loaded(self.logical_types):
            LogicalType._known_logical_types.add(urn, found)
        typecoders.registry.load_custom_type_coder_tuples(pair for _, pair in _loaded(self.coders))
        _installed = self


_installed = Registered()


def pickled(named: Iterable[tuple[str, Any]], loud: bool = True) -> Pickled:
    """Pickles what can be pickled; says of a class that it is too large if `loud`."""
    from apache_beam.internal import cloudpickle_pickler

    found = []
    for name, value in list(named):
        try:
            data = cloudpickle_pickler.dumps(value)
        except Exception as e:
            _LOG.debug("%s of the program does not pickle: %s", name, e)
            continue
        if len(data) > _LONGEST:
            level = logging.WARNING if loud else logging.DEBUG
            _LOG.log(level, "class %s of the script holds %d bytes, and is not sent to the workers", name, len(data))
            continue
        found.append((name, data))
    return tuple(found)


def _loaded(named: Pickled) -> Iterable[tuple[str, Any]]:
    from apache_beam.internal import cloudpickle_pickler

    for name, data in named:
        try:
            yield name, cloudpickle_pickler.loads(data)
        except Exception as e:
            # Of a module that is not here; a pipeline that needs it says so.
            _LOG.debug("%s is not known in this worker: %s", name, e)


def _classes() -> Iterable[tuple[str, type]]:
    """Classes that were pickled by value in this process, but those whose instances are no elements."""
    from apache_beam.coders.coders import Coder
    from apache_beam.internal.cloudpickle import cloudpickle
    from apache_beam.transforms.display import HasDisplayData

    with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
        tracked = list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.items())
    return [
        (id, found) for found, id in tracked if isinstance(id, str) and not issubclass(found, (HasDisplayData, Coder))
    ]


def _of_sdk(kind: Any) -> bool:
    """Whether a type is the SDK's own, which every worker knows."""
    return str(getattr(kind, "__module__", "")).startswith(_SDK)
