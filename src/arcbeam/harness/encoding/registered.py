"""The program's type registrations, in the workers, whose SDK does not have them.

Owns both sides. On the driver: the SDK's registries of schemas, logical types and coders, and the classes that the
pipeline's functions hold and that cannot be imported. In a worker: the same registries, and those classes as types of
keys (`harness.encoding.keycoders`). Must not know how they are sent (`shipping`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_LOG = logging.getLogger("arcbeam.registered")

Pickled = tuple[tuple[str, bytes], ...]
"""Pickled objects with names."""

_CLASS_BYTES_MAX = 1 << 20
"""Bytes of a pickled class; a larger class holds data that elements do not need."""
_SDK = "apache_beam."
_GENERATED = "BeamSchema_"
"""Prefix of the names of classes that the SDK has made from schemas."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The registries of a driver's SDK, pickled.

    Attributes:
        classes: classes that cannot be imported and that the pipeline's functions may use as keys, by the SDK's id.
        schemas: classes with a schema, by the schema's id. Without them a row coder generates a class.
        logical_types: the program's logical types, by URN.
        coders: the program's coders, by the name of their type: pairs of the type and the coder's class.
    """

    classes: Pickled = ()
    schemas: Pickled = ()
    logical_types: Pickled = ()
    coders: Pickled = ()

    @staticmethod
    def here(apart: frozenset[str] = frozenset()) -> Registered:
        """Collect the registries of this process. Omits what cannot be pickled: its use fails with an error.

        Args:
            apart: ids of classes that are sent apart from these.
        """
        from apache_beam.coders import typecoders
        from apache_beam.typehints.schema_registry import SCHEMA_REGISTRY
        from apache_beam.typehints.schemas import LogicalType

        known = typecoders.registry
        # A type whose coder was removed is still in the list of custom types.
        kept = [t for t in known.custom_types if known._normalize_typehint_type(t) in known._coders]
        return Registered(
            classes=_pickled((id, found) for id, found in _classes() if id not in apart),
            schemas=_pickled(
                (id, t)
                for id, t in SCHEMA_REGISTRY.get_registered_typings().items()
                if isinstance(t, type) and not t.__name__.startswith(_GENERATED) and not _of_sdk(t)
            ),
            logical_types=_pickled(
                (urn, t) for urn, t in LogicalType._known_logical_types.copy_custom().by_urn.items() if not _of_sdk(t)
            ),
            coders=_pickled(
                (getattr(t, "__qualname__", str(t)), (t, c))
                for t, c in known.get_custom_type_coder_tuples(kept)
                if not _of_sdk(t)
            ),
        )

    def loaded(self) -> LoadedTypes:
        """Unpickle what this process can import."""
        return LoadedTypes(
            _loaded(self.classes), _loaded(self.schemas), _loaded(self.logical_types), _loaded(self.coders)
        )


@dataclass(frozen=True, slots=True)
class LoadedTypes:
    """The types of `Registered` in a worker, in pairs with their names.

    Attributes:
        classes: see `Registered`; so the others.
        schemas: classes.
        logical_types: classes.
        coders: pairs.
    """

    classes: list[tuple[str, Any]] = field(default_factory=list)
    schemas: list[tuple[str, Any]] = field(default_factory=list)
    logical_types: list[tuple[str, Any]] = field(default_factory=list)
    coders: list[tuple[str, Any]] = field(default_factory=list)

    def install(self) -> None:
        """Add all this to this process's registries. Idempotent; types of other jobs stay and do no harm."""
        from apache_beam.coders import typecoders
        from apache_beam.typehints.schema_registry import SCHEMA_REGISTRY
        from apache_beam.typehints.schemas import LogicalType

        from arcbeam.harness.encoding import keycoders

        keycoders.know(found for _, found in self.classes)
        for id, found in self.schemas:
            if SCHEMA_REGISTRY.get_typing_by_id(id) is not found:
                SCHEMA_REGISTRY.by_id[id] = (found, None)
        for urn, found in self.logical_types:
            LogicalType._known_logical_types.add(urn, found)
        typecoders.registry.load_custom_type_coder_tuples(pair for _, pair in self.coders)


def _pickled(named: Iterable[tuple[str, Any]]) -> Pickled:
    """Pickle what can be pickled."""
    from apache_beam.internal import cloudpickle_pickler

    found = []
    for name, value in list(named):
        try:
            data = cloudpickle_pickler.dumps(value)
        except Exception as e:
            _LOG.debug("%s of the program does not pickle: %s", name, e)
            continue
        if len(data) > _CLASS_BYTES_MAX:
            _LOG.debug("%s of the program is not sent to the workers: it has %d bytes", name, len(data))
            continue
        found.append((name, data))
    return tuple(found)


def _loaded(named: Pickled) -> list[tuple[str, Any]]:
    from apache_beam.internal import cloudpickle_pickler

    found = []
    for name, data in named:
        try:
            found.append((name, cloudpickle_pickler.loads(data)))
        except Exception as e:
            # Of a module that is missing here; a pipeline that needs it fails with an error.
            _LOG.debug("%s is not known in this worker: %s", name, e)
    return found


def _classes() -> Iterable[tuple[str, type]]:
    """Return classes that were pickled by value in this process, except those whose instances are not elements.

    The SDK's pickler keeps type variables beside the classes.
    """
    from apache_beam.coders.coders import Coder
    from apache_beam.internal.cloudpickle import cloudpickle
    from apache_beam.transforms.display import HasDisplayData

    with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
        tracked = list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.items())
    return [
        (id, found)
        for found, id in tracked
        if isinstance(id, str) and isinstance(found, type) and not issubclass(found, (HasDisplayData, Coder))
    ]


def _of_sdk(kind: Any) -> bool:
    """Return whether a type is the SDK's own, which every worker has."""
    return str(getattr(kind, "__module__", "")).startswith(_SDK)
