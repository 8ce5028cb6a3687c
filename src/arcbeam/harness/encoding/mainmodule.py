"""Classes of the user's script, in the workers: elements that are their instances pickle by name, as `__main__.Name`.

Owns both ends: on the driver, the classes of `__main__` are pickled by value; in a worker, whose `__main__` is Spark's,
they are put there under their names. They are the very classes that the pipeline's functions refer to: the SDK's
cloudpickle makes one class of all pickles of it. Knows nothing of how they travel (`shipping`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from arcbeam.harness.encoding.registered import Pickled, Registered, pickled

_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class MainClasses:
    """The classes of a driver's `__main__`, pickled, and what its SDK knows of types.

    Attributes:
        classes: by the name that `__main__` has for them, as pairs.
        registered: what the SDK has been told about types, of this and of other modules.
    """

    classes: Pickled = ()
    registered: Registered = field(default_factory=Registered)

    @staticmethod
    def here() -> MainClasses:
        """Of this process. A class that does not pickle is left out: that it is missing is told where it is needed."""
        main = sys.modules.get(_MAIN)
        named = list(vars(main).items()) if main else []
        classes = ((name, value) for name, value in named if isinstance(value, type) and value.__module__ == _MAIN)
        # In this order: what is pickled here is known to the SDK's pickler there.
        return MainClasses(pickled(classes), Registered.here())

    def install(self) -> None:
        """Puts the classes into this process's `__main__`, and takes away what another job had put there."""
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
"""What names in `__main__` stood for before `install`."""
_installed = MainClasses()


def _name_nested(outer: type) -> None:
    """Gives nested classes their qualified names back, which cloudpickle cuts to the last part."""
    for name, value in vars(outer).items():
        if isinstance(value, type) and value.__module__ == _MAIN and value.__qualname__ == name:
            value.__qualname__ = f"{outer.__qualname__}.{name}"
            _name_nested(value)
