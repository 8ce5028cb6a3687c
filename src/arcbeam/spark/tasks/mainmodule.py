"""Classes of the user's script, in the workers: elements that are their instances pickle by name, as `__main__.Name`.

Owns both ends: on the driver, the classes of `__main__` are pickled by value; in a worker, whose `__main__` is Spark's,
they are put there under their names. They are the very classes that the pipeline's functions refer to: the SDK's
cloudpickle makes one class of all pickles of it. Knows nothing of how they travel (`shipping`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_LOG = logging.getLogger("arcbeam.mainmodule")

_MAIN = "__main__"
_LONGEST = 1 << 20
"""Bytes of a pickled class; a larger one holds data, which is no element's business."""


@dataclass(frozen=True, slots=True)
class MainClasses:
    """The classes of a driver's `__main__`, pickled.

    Attributes:
        classes: by the name that `__main__` has for them, as pairs.
        schemas: those whose schema is registered with the SDK, by the schema's id, as pairs; without them a row coder
            makes up a class of its own in the worker.
    """

    classes: tuple[tuple[str, bytes], ...] = ()
    schemas: tuple[tuple[str, bytes], ...] = ()

    @staticmethod
    def here() -> MainClasses:
        """Of this process. A class that does not pickle is left out: that it is missing is told where it is needed."""
        from apache_beam.typehints.schema_registry import SCHEMA_REGISTRY

        main = sys.modules.get(_MAIN)
        schemas = dict(SCHEMA_REGISTRY.get_registered_typings())
        return MainClasses(_pickled(vars(main).items() if main else ()), _pickled(schemas.items()))

    def install(self) -> None:
        """Puts the classes into this process's `__main__`, and takes away what another job had put there."""
        global _installed
        if self == _installed:
            return
        from apache_beam.internal import cloudpickle_pickler
        from apache_beam.typehints.schema_registry import SCHEMA_REGISTRY

        main = vars(sys.modules[_MAIN])
        for name, hidden in _hidden.items():
            if hidden is _NOTHING:
                main.pop(name, None)
            else:
                main[name] = hidden
        _hidden.clear()
        _installed = MainClasses()
        for name, data in self.classes:
            found = cloudpickle_pickler.loads(data)
            _hidden[name] = main.get(name, _NOTHING)
            main[name] = found
            _name_nested(found)
        SCHEMA_REGISTRY.load_registered_typings({key: cloudpickle_pickler.loads(data) for key, data in self.schemas})
        _installed = self


_NOTHING = object()
_hidden: dict[str, Any] = {}
"""What names in `__main__` stood for before `install`."""
_installed = MainClasses()


def _name_nested(outer: type) -> None:
    """Gives nested classes their qualified names back, which cloudpickle cuts to the last part."""
    for name, value in vars(outer).items():
        if isinstance(value, type) and value.__module__ == _MAIN and value.__qualname__ == name:
            value.__qualname__ = f"{outer.__qualname__}.{name}"
            _name_nested(value)


def _pickled(named: Iterable[tuple[str, Any]]) -> tuple[tuple[str, bytes], ...]:
    from apache_beam.internal import cloudpickle_pickler

    found = []
    for name, value in list(named):
        if not isinstance(value, type) or value.__module__ != _MAIN:
            continue
        try:
            data = cloudpickle_pickler.dumps(value)
        except Exception as e:
            _LOG.debug("class %s of the script does not pickle: %s", name, e)
            continue
        if len(data) > _LONGEST:
            _LOG.warning("class %s of the script holds %d bytes, and is not sent to the workers", name, len(data))
            continue
        found.append((name, data))
    return tuple(found)
