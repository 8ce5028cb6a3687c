"""The identity of a script's objects in a worker. The pipeline's functions arrive by value, with copies of what they
use. But Python pickles a function by its name only if it is the very object with that name.

Owns the hooks in the SDK's unpickler. A copy of a function is replaced by the function of the script (`space`) if
no program can see the difference: both have the same code, and use only values that cannot change. Other copies stay,
as on any runner. A class is always one, and is the script's.

SUBTLE: a copy's code is known before the globals that it uses. If these differ from the script's, for instance in a
function that a loop or a notebook has defined twice, the pickle is read again, and that copy stays.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import logging
import pathlib
import pickle
import re
import types
import typing
import uuid
from typing import Any

from apache_beam.internal.cloudpickle import cloudpickle
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.harness.encoding.script.names import SCRIPT_MODULES
from arcbeam.harness.encoding.script.space import DifferentFunctionError, Space, current, read, readings

_CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), range, slice, re.Pattern, enum.Enum),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal, fractions.Fraction),
    *(uuid.UUID, pathlib.PurePath, Timestamp, Duration),
)
"""Types whose values never change."""
_UNIQUE = (type, types.ModuleType, types.BuiltinFunctionType, logging.Logger, typing.TypeVar)
"""Types of objects that a pickle refers to, so that their copies are themselves."""
_OPEN = frozenset({"globals", "vars", "locals", "eval", "exec"})
"""Functions that reach any global."""

_make_function = cloudpickle._make_function
_set_function_state = cloudpickle._function_setstate
_ID_ARGUMENTS = {"_make_skeleton_class": 4, "_make_skeleton_enum": 5, "_make_typevar": 5}
"""The SDK's functions that make classes and type variables, with the place of the id in their arguments."""
_makers = {name: getattr(cloudpickle, name) for name in _ID_ARGUMENTS}


def install() -> None:
    """Put the hooks into the SDK's unpickler. Idempotent; in workers only."""
    if cloudpickle.loads is _loads:
        return
    hooks = {"loads": _loads, "_make_function": _make_or_share, "_function_setstate": _set_or_compare}
    for name, hook in (hooks | {name: _unless_known(name) for name in _makers}).items():
        # The SDK's pickler refers to some of them by their names.
        hook.__module__, hook.__qualname__ = cloudpickle.__name__, name
        setattr(cloudpickle, name, hook)


def _loads(data: bytes, **options: Any) -> Any:
    return read(lambda: pickle.loads(data, **options))


def _make_or_share(code: types.CodeType, values: dict[str, Any], name: Any, defaults: Any, closure: Any) -> Any:
    space = current()
    if readings and space is not None and closure is None and values.get("__name__") in SCRIPT_MODULES:
        reading, named = readings[-1], code.co_qualname
        if values is not space.globals and named in space.names and named not in reading.copied:
            own = _function_of(space, code)
            if own is not None:
                reading.shared[id(own)] = named
                return own
    return _make_function(code, values, name, defaults, closure)


def _set_or_compare(function: Any, state: Any) -> Any:
    name = readings[-1].shared.get(id(function)) if readings else None
    if name is None:
        return _set_function_state(function, state)
    if not _is_state_of(function, *state):
        raise DifferentFunctionError(name)
    return None


def _unless_known(maker: str) -> Any:
    """Return a function that makes a class, unless this process has it.

    SUBTLE: the SDK would make another one and discard it, after it was seen by the base's `__init_subclass__`.
    """
    make, place = _makers[maker], _ID_ARGUMENTS[maker]

    def make_or_find(*arguments: Any) -> Any:
        space = current()
        found = space.class_of(arguments[place]) if space is not None else None
        return make(*arguments) if found is None else found

    return make_or_find


def _function_of(space: Space, code: types.CodeType) -> Any:
    """Return the script's function with this code, if no program can see the difference to a copy; else None."""
    try:
        own = space.look_up(code.co_qualname)
    except Exception:
        return None  # a name that cannot be made in this worker: the copy can
    is_same = isinstance(own, types.FunctionType) and own.__code__ == code
    return own if is_same and _is_constant_function(space, own) else None


def _is_constant_function(space: Space, function: types.FunctionType) -> bool:
    """Return whether a function, and each that it calls, uses only values that cannot change."""
    known = space.constant_functions
    if function not in known:
        seen: set[types.FunctionType] = set()
        waiting = [function]
        while waiting:
            seen.add(called := waiting.pop())
            used = _used_by(space, called)
            if used is None:
                known[function] = False
                return False
            waiting += [value for value in used if value not in seen]
        known.update(dict.fromkeys(seen, True))
    return known[function]


def _used_by(space: Space, function: types.FunctionType) -> list[types.FunctionType] | None:
    """Return the script's functions that a function uses; None if something that it uses may change."""
    kept = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if function.__closure__ or vars(function) or not all(map(_is_constant, kept)):
        return None
    found = []
    for name in cloudpickle._extract_code_globals(function.__code__):
        if name in space.assigned or name in space.unsent or name in _OPEN:
            return None
        value = space.globals.get(name)
        if isinstance(value, types.FunctionType) and value.__globals__ is space.globals:
            found.append(value)
        elif not _is_constant(value):
            return None
    return found


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return type(value) in (tuple, frozenset) and all(map(_is_constant, value))
    by_reference = isinstance(value, types.FunctionType) and cloudpickle._should_pickle_by_reference(value)
    return by_reference or isinstance(value, (*_CONSTANTS, *_UNIQUE))


def _is_state_of(function: types.FunctionType, attributes: Any, slots: Any) -> bool:
    own = function.__globals__
    return (
        not attributes
        and slots["__qualname__"] == function.__qualname__
        and _is_equal(slots["__defaults__"], function.__defaults__)
        and _is_equal(tuple((slots["__kwdefaults__"] or {}).items()), tuple((function.__kwdefaults__ or {}).items()))
        and all(name in own and _is_equal(value, own[name]) for name, value in slots["__globals__"].items())
    )


def _is_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return isinstance(one, (*_CONSTANTS, frozenset)) and bool(one == other)
