"""A job's script in a worker: a module in the place of `__main__`, which makes a value when it is first looked up.

Owns the values that were made, and how a pickle of the pipeline is read beside them. Must not know how the values are
sent, nor which functions in other pickles are the script's (`objects`).
"""

from __future__ import annotations

import io
import logging
import pickle
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from arcbeam.harness.encoding.script.names import GLOBALS, MAIN, SCRIPT_MODULES, MainNames
from arcbeam.harness.encoding.script.spawned import spec_with

_LOG = logging.getLogger("arcbeam.mainmodule")


class DifferentFunctionError(Exception):
    """A function in a pickle is not the script's function of its name."""


class Reading:
    """A pickle that is being read.

    Attributes:
        copied: names of functions whose copies stay.
        shared: names of the functions of the script that replace copies, by id.
    """

    def __init__(self, copied: frozenset[str]) -> None:
        self.copied = copied
        self.shared: dict[int, str] = {}


readings: list[Reading] = []
"""Pickles that are being read, each inside of the one before. The SDK reads them under a lock."""


def read(load: Callable[[], Any]) -> Any:
    """Read a pickle, perhaps several times.

    Args:
        load: reads it from its beginning.
    """
    copied: frozenset[str] = frozenset()
    while True:
        readings.append(Reading(copied))
        try:
            return load()
        except DifferentFunctionError as e:
            copied |= {str(e)}
        finally:
            readings.pop()


class Space:
    """A job's script in this worker.

    Attributes:
        token: of the `MainModule`.
        module: takes the place of `__main__`.
        names: what was sent, by name.
        unsent: what was not sent, or cannot be made in this worker, with the reason.
        assigned: see `MainNames`.
        classes: the SDK's table of the job's classes, by id.
        constant_functions: whether a function, and all that it calls, uses only values that cannot change.
    """

    def __init__(self, token: str, script: MainNames) -> None:
        self.token = token
        self.module = types.ModuleType(MAIN)
        self.module.__spec__ = spec_with(script)
        self.module.__getattr__ = self.look_up  # type: ignore[method-assign]
        self.names = {of.name: of for of in script.sent}
        self.unsent = dict(script.unsent)
        self.assigned = frozenset(script.assigned)
        self.classes: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self.constant_functions: dict[types.FunctionType, bool] = {}
        self._by_id = {of.class_id: of.name for of in script.sent if of.class_id}
        self._loading: set[str] = set()

    @property
    def globals(self) -> dict[str, Any]:
        """The globals of the script's functions."""
        return vars(self.module)

    def enter(self) -> None:
        """Put the module in the place of `__main__`, also for the SDK's picklers."""
        global _current
        _current = self
        from apache_beam.internal.cloudpickle import cloudpickle

        for name in SCRIPT_MODULES:
            sys.modules[name] = self.module
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID = self.classes
        if "dill._dill" in sys.modules:
            dill: Any = sys.modules["dill._dill"]
            dill._main_module = self.module

    def look_up(self, name: str) -> Any:
        """Return a value of the script that is not in the module yet: Python calls this.

        Raises:
            AttributeError: the name was not sent.
        """
        from apache_beam.internal import cloudpickle_pickler

        if name not in self.names:
            raise AttributeError(f"module '{MAIN}' has no attribute '{name}'")
        with cloudpickle_pickler._pickle_lock:
            return self.load(name)

    def load(self, name: str) -> Any:
        """Return a value of the script, with what its functions use."""
        found = self._made(name)
        tried: set[str] = set()
        waiting = list(self.names[name].uses)
        while waiting:
            used = waiting.pop()
            if used in self.names and used not in tried and used not in self.globals and used not in self._loading:
                tried.add(used)
                self._try(used, self._made)
                waiting += self.names[used].uses
        return found

    def try_load(self, name: str) -> None:
        """Make a value, with what its functions use; if that fails, remember why."""
        self._try(name, self.load)

    def _try(self, name: str, make: Callable[[str], Any]) -> None:
        try:
            make(name)
        except Exception as e:
            _LOG.debug("'%s' of the script cannot be made in this worker: %s", name, e)
            self.unsent[name] = f"{type(e).__name__}: {e}"

    def has_class(self, class_id: str) -> bool:
        """Return whether an id is that of a class or type variable of the script."""
        return class_id in self._by_id

    def class_of(self, class_id: str) -> Any:
        """Return the class or type variable of an id; make it if it is the script's. None if it is unknown."""
        name = self._by_id.get(class_id)
        if name is not None and name not in self._loading and name not in self.globals:
            self.try_load(name)
        return self.classes.get(class_id)

    def _made(self, name: str) -> Any:
        if name in self.globals:
            return self.globals[name]
        sent = self.names[name]
        if name in self._loading:
            # A class is known to the SDK before its attributes are read.
            if (found := self.classes.get(sent.class_id)) is None:
                raise pickle.UnpicklingError(f"'{name}' refers to itself through other names")
            return found
        self._loading.add(name)
        try:
            found = read(lambda: _Unpickler(sent.data, self).load())
        finally:
            self._loading.discard(name)
        if isinstance(found, type):
            _name_nested(found)
        return self.globals.setdefault(name, found)


class _Unpickler(pickle.Unpickler):
    """Reads what `mainnames` pickles."""

    def __init__(self, data: bytes, space: Space) -> None:
        super().__init__(io.BytesIO(data))
        self._space = space

    def persistent_load(self, reference: Any) -> Any:
        return self._space.globals if reference == GLOBALS else self._space.load(reference)


_current: Space | None = None
"""Of the job whose task runs."""


def current() -> Space | None:
    """Return the script of the job whose task runs."""
    return _current


def look_up(name: str) -> Any:
    """Return a value of the current script; see `Space.look_up`."""
    if _current is None:
        raise AttributeError(f"module '{MAIN}' has no attribute '{name}'")
    return _current.look_up(name)


def _name_nested(outer: type) -> None:
    """Restore the qualified names of nested classes, which cloudpickle cuts to the last part."""
    for name, value in list(vars(outer).items()):
        if isinstance(value, type) and value.__module__ in SCRIPT_MODULES and value.__qualname__ == name:
            value.__qualname__ = f"{outer.__qualname__}.{name}"
            _name_nested(value)
