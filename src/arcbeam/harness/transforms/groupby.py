"""The fields and expressions of `beam.GroupBy` without a call for each: one function of one element.

Owns how to recognize the SDK's own functions, by their code, and the function that replaces them. User functions are
called as before. A contract test covers what this module knows of the SDK's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any

from apache_beam.transforms import core


def _inside(function: Any, *free: str) -> CodeType | None:
    """Return the code of the function that is nested in another and has these free variables; None if not unique."""
    found = [code for code in _nested(function.__code__) if code.co_freevars == tuple(sorted(free))]
    return found[0] if len(found) == 1 else None


def _nested(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _nested(const)


_FIELD = _inside(core._expr_to_callable, "expr")
_KEY_TYPE = _inside(core.GroupBy.__init__, "field_names")
_KEY = _inside(core.GroupBy._key_func, "key_exprs", "key_type")
_VALUES = _inside(core._GroupAndAggregate.expand, "value_exprs")
_AGGREGATED = _inside(core._GroupAndAggregate.expand, "key_func", "value_func")
_GROUPED = _inside(core.GroupBy.expand, "self")


def shortened(user: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """Return one function equivalent to the SDK's for an element of a `GroupBy`; None for all other functions."""
    names = _variables(user, _AGGREGATED)
    if names is not None:
        values = _variables(names["value_func"], _VALUES)
        key = _key_parts(names["key_func"])
        return None if key is None or values is None else _compiled(*key, values["value_exprs"])
    names = _variables(user, _GROUPED)
    if names is not None and type(names["self"]) is core.GroupBy:
        key = _key_parts(names["self"]._key_func())
        return None if key is None else _compiled(*key, None)
    return None


def _variables(function: Any, code: CodeType | None) -> dict[str, Any] | None:
    """Return the free variables of a function, by name, if it has this code."""
    if code is None or getattr(function, "__code__", None) != code:
        return None
    return {name: cell.cell_contents for name, cell in zip(code.co_freevars, function.__closure__, strict=True)}


def _key_parts(key_func: Any) -> tuple[Any, list[Any]] | None:
    """Return the type of keys that the SDK's function creates, and the expressions of their fields."""
    key = _variables(key_func, _KEY)
    kind = None if key is None else _variables(key["key_type"], _KEY_TYPE)
    if key is None or kind is None:
        return None
    return core._dynamic_named_tuple("Key", kind["field_names"]), key["key_exprs"]


def _compiled(kind: Any, keys: list[Any], values: list[Any] | None) -> Callable[[Any], Any]:
    # As the named tuple does it, without checking the number of fields, which is known.
    scope: dict[str, Any] = {"__name__": __name__, "new": partial(tuple.__new__, kind)}

    def called(expr: Any) -> str:
        field = _variables(expr, _FIELD)
        if field is not None and type(field["expr"]) is str:
            return f"getattr(x, {field['expr']!r})" if not field["expr"].isidentifier() else f"x.{field['expr']}"
        scope[name := f"f{len(scope)}"] = expr
        return f"{name}(x)"

    key = "".join(f"{called(expr)}, " for expr in keys)
    rest = "x" if values is None else f"[{', '.join(map(called, values))}]"
    # With the name of this module: frames of compiled code belong to the harness, and are hidden from users.
    exec(compile(f"def both(x): return new(({key})), {rest}", "arcbeam/harness/groupby", "exec"), scope)
    both: Callable[[Any], Any] = scope["both"]
    return both
