"""Classes of the user's script, in the workers. Elements that are their instances pickle by name, as `__main__.Name`.

Owns both sides. On the driver, the classes of `__main__` are pickled by value. In a worker, whose `__main__` is
Spark's, they are put there under their names. The pipeline's functions refer to the same class objects, because the
SDK's cloudpickle makes only one class of all its pickles. Must not know how they are sent (`shipping`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from arcbeam.harness.encoding.registered import Pickled, Registered, pickled

_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class MainClasses:
    """The pickled classes of a driver's `__main__`, and the driver's type registries.

    Attributes:
        classes: pairs of the name in `__main__` and the pickled class.
        registered: the SDK's type registries, for this and other modules.
    """

    classes: Pickled = ()
    registered: Registered = field(default_factory=Registered)

    @staticmethod
    def here() -> MainClasses:
        """Collect the classes of this process. Omits a class that cannot be pickled: its use fails with an error."""
        main = sys.modules.get(_MAIN)
        named = list(vars(main).items()) if main else []
        classes = ((name, value) for name, value in named if isinstance(value, type) and value.__module__ == _MAIN)
        # In this order: the SDK's pickler in the worker must know what was pickled first.
        return MainClasses(pickled(classes), Registered.here())

    def install(self) -> None:
        """Put the classes into this process's `__main__`, and remove those of another job."""
        global _installed
        if self == _installed:
            return
        from apache_beam.internal import cloudpickle_pickler

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
        self.registered.install()
        _installed = self


_NOTHING = object()
_hidden: dict[str, Any] = {}
"""The values that names in `__main__` had before `install`."""
_installed = MainClasses()


def _name_nested(outer: type) -> None:
    """Restore the qualified names of nested classes, which cloudpickle cuts to the last part."""
    for name, value in vars(outer).items():
        if isinstance(value, type) and value.__module__ == _MAIN and value.__qualname__ == name:
            value.__qualname__ = f"{outer.__qualname__}.{name}"
            _name_nested(value)
