"""A fold for a tuple of known CombineFns: several aggregates of an element, added in one loop.

Owns the source of the loop, and the contents of its table: for each key a list with a *state* for each CombineFn.
`harness.transforms.folds` owns the folds of single CombineFns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from apache_beam import CombineFn
from apache_beam.transforms import combiners, core, cy_combiners

_BUFFERING = (core.CallableWrapperCombineFn, core.NoSideInputsCallableWrapperCombineFn)


class TupleFold(NamedTuple):
    """Adds many tuples of values.

    Attributes:
        add: adds pairs of key and values to a table.
        accumulator: makes an accumulator from the table's entry of a key.
        compacted: whether these accumulators are compact.
    """

    add: Callable[[dict[Any, Any], list[tuple[Any, Any]]], None]
    accumulator: Callable[[Any], Any]
    compacted: bool


class _Part(NamedTuple):
    """How a CombineFn adds, as source: {s} is a state, {v} a value, and {to} the place of a state.

    Attributes:
        first: the state of a single value.
        more: adds another value.
        accumulator: the accumulator of a state.
        compacted: whether that is compact.
    """

    first: str
    more: str
    accumulator: str = "{s}"
    compacted: bool = True


# One result of `sum`, `max` or `min` is equivalent to a buffer of values; see `folds`.
_BUILT_IN: dict[Any, _Part] = {
    sum: _Part("0 + {v}", "{to} = {s} + {v}", "[{s}]"),
    max: _Part("{v}", "if {v} > {s}: {to} = {v}", "[{s}]"),
    min: _Part("{v}", "if {v} < {s}: {to} = {v}", "[{s}]"),
}
_SIMPLE: dict[type, _Part] = {
    combiners.CountCombineFn: _Part("1", "{to} = {s} + 1"),
    combiners.MeanCombineFn: _Part("(0 + {v}, 1)", "t, n = {s}; {to} = t + {v}, n + 1"),
    combiners.ToListCombineFn: _Part("[{v}]", "{s}.append({v})"),
    combiners.ToSetCombineFn: _Part("{{{v}}}", "{s}.add({v})"),
}


def tuple_fold_of(combine_fn: Any) -> TupleFold | None:
    """Return the fold of a `TupleCombineFn`, as in `folds.fold_of`; None if a part of it is unknown."""
    if type(combine_fn) is not combiners.TupleCombineFn or not combine_fn._combiners:
        return None
    scope: dict[str, Any] = {"__name__": __name__}
    parts: list[_Part] = []
    for place, part in enumerate(combine_fn._combiners):
        found = _part(part, place, scope)
        if found is None:
            return None
        parts.append(found)
    # With the name of this module: frames of compiled code belong to the harness, and are hidden from users.
    exec(compile(_text(parts), "arcbeam/harness/tuplefold", "exec"), scope)
    return TupleFold(scope["add"], scope["accumulator"], all(part.compacted for part in parts))


def _text(parts: list[_Part]) -> str:
    places = range(len(parts))
    values, states = ("".join(f"{name}{place}, " for place in places) for name in "vs")
    texts = [[t.format(s=f"s{n}", v=f"v{n}", to=f"found[{n}]") for t in part[:3]] for n, part in enumerate(parts)]
    firsts, mores, made = zip(*texts, strict=True)
    # Tuples of another length are rare. The result has as many states as there were values, because the CombineFn uses
    # `zip`. Later additions have as many, too.
    return "\n".join(
        [
            "def add(table, pairs):",
            " get = table.get",
            " for key, values in pairs:",
            "  found = get(key)",
            # An iterator would be exhausted after the first use.
            "  kind = type(values)",
            "  if kind is not tuple and kind is not list: table[key] = odd(found, values); continue",
            "  try:",
            f"   {values}= values",
            f"   if found is not None: {states}= found",
            "  except (TypeError, ValueError): table[key] = odd(found, values); continue",
            f"  if found is None: table[key] = [{', '.join(firsts)}]; continue",
            *(f"  {more}" for more in mores),
            "def odd(found, values):",
            " states = [[]] * len(one) if found is None else [[state] for state in found]",
            " return [f(state, v) for f, state, v in zip(one, states, values)]",
            *(_one(n, first, more) for n, (first, more, _) in enumerate(texts)),
            f"one = [{', '.join(f'one{place}' for place in places)}]",
            f"made = [{', '.join(f'lambda s{place}: {text}' for place, text in enumerate(made))}]",
            "def accumulator(found):",
            f" if len(found) != {len(parts)}: return [part(state) for part, state in zip(made, found)]",
            f" {states}= found",
            f" return [{', '.join(made)}]",
        ]
    )


def _one(place: int, first: str, more: str) -> str:
    """Return the source of a function for one part: it takes the state in a list (empty: no state), and a value."""
    return (
        f"def one{place}(found, v{place}):\n"
        f" if not found: return {first}\n"
        f" s{place} = found[0]\n"
        f" {more.replace(f'found[{place}]', 'found[0]')}\n"
        " return found[0]"
    )


def _part(part: Any, place: int, scope: dict[str, Any]) -> _Part | None:
    """Return how a CombineFn adds; put what its source needs into the scope."""
    kind = type(part)
    if kind in _BUFFERING:
        found = next((found for fn, found in _BUILT_IN.items() if part._fn is fn), None)
        if found is not None:
            return found
        scope[f"fn{place}"], size = part._fn, part._buffer_size
        scope[f"full{place}"] = lambda made: [part._fn(made)] if len(made) > size else made
        more = f"{{s}}.append({{v}}); {{to}} = [fn{place}({{s}})] if len({{s}}) > {size} else {{s}}"
        return _Part(f"full{place}([{{v}}])", more, compacted=False)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    base = cy_combiners.AccumulatorCombineFn
    if isinstance(part, base) and kind.__module__ == base.__module__ and kind.add_input is base.add_input:
        scope[f"made{place}"] = _made(part)
        compacted = kind.compact is CombineFn.compact
        return _Part(f"made{place}({{v}})", "{s}.add_input({v})", compacted=compacted)
    return None


def _made(part: Any) -> Callable[[Any], Any]:
    def made(value: Any) -> Any:
        accumulator = part.create_accumulator()
        accumulator.add_input(value)
        return accumulator

    return made
