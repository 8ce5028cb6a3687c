"""The script in processes that user code spawns in a worker, such as those of a pool.

`multiprocessing` sends them the name of the parent's main module, and they import it as theirs. Here, the name brings
the script's names along. Owns both sides. Must not know how a value is made (`space`).
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from typing import Any

from arcbeam.harness.encoding.script.names import MAIN, MainNames

_CHILD = "arcbeam.harness.encoding.script.child"

received = MainNames()
"""What the parent of this process sent."""


class _ChildName(str):
    """The name of a child's main module; unpickled, it is a plain one."""

    script: MainNames

    def __reduce__(self) -> Any:
        return _receive, (self.script,)

    def __repr__(self) -> str:
        # In errors of pickle, which show the module.
        return repr(MAIN)


def spec_with(script: MainNames) -> ModuleSpec:
    """Return the specification of a main module with which spawned children find a script's names."""
    spec = ModuleSpec(_CHILD, None)
    spec.name = name = _ChildName(_CHILD)
    name.script = script
    return spec


def _receive(script: MainNames) -> str:
    # The child can import modules later: it gets its path of imports with the name.
    global received
    received = script
    return _CHILD
