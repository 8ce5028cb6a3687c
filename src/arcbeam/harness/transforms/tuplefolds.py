"""A fold for a tuple of CombineFns, each of which has one: several aggregates of an element, added in one loop.

Owns the loop's text. What the single ones do is `harness.transforms.folds`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apache_beam.transforms import combiners, core, cy_combiners

_BUFFERING = (core.CallableWrapperCombineFn, core.NoSideInputsCallableWrapperCombineFn)


def tuple_fold_of(combine_fn: Any) -> Callable[[dict[Any, Any], list[tuple[Any, Any]]], None] | None:
    """The fold of a `TupleCombineFn`, as in `folds.fold_of`; None if one of its parts is not known."""
    if type(combine_fn) is not combiners.TupleCombineFn or not combine_fn._combiners:
        return None
    count = len(combine_fn._combiners)
    scope: dict[str, Any] = {"create": combine_fn.create_accumulator, "add": combine_fn.add_input}
    text = [
        "def fold(table, pairs):",
        " get = table.get",
        " for key, values in pairs:",
        "  found = get(key)",
        "  if found is None: found = table[key] = create()",
        # Values of another number are the CombineFn's business.
        f"  if len(values) != {count}: table[key] = add(found, values); continue",
        f"  {''.join(f'v{place}, ' for place in range(count))} = values",
    ]
    for place, part in enumerate(combine_fn._combiners):
        lines = _lines(f"found[{place}]", f"v{place}", part)
        if lines is None:
            return None
        scope[f"fn{place}"] = getattr(part, "_fn", None)
        text += [f"  {line.replace('fn(', f'fn{place}(')}" for line in lines]
    # The name is one of the harness's files: its frames are left out of what users see.
    exec(compile("\n".join(text), "arcbeam/harness/tuplefold", "exec"), scope)
    fold: Callable[[dict[Any, Any], list[tuple[Any, Any]]], None] = scope["fold"]
    return fold


def _lines(found: str, value: str, part: Any) -> list[str] | None:
    """What adds a value to an accumulator."""
    kind = type(part)
    if kind in _BUFFERING:
        return [f"a = {found}", f"a.append({value})", f"if len(a) > {part._buffer_size}: {found} = [fn(a)]"]
    if kind is combiners.CountCombineFn:
        return [f"{found} += 1"]
    if kind is combiners.MeanCombineFn:
        return [f"t, n = {found}", f"{found} = t + {value}, n + 1"]
    if kind is combiners.ToListCombineFn:
        return [f"{found}.append({value})"]
    if kind is combiners.ToSetCombineFn:
        return [f"{found}.add({value})"]
    base = cy_combiners.AccumulatorCombineFn
    if isinstance(part, base) and kind.__module__ == base.__module__ and kind.add_input is base.add_input:
        return [f"{found}.add_input({value})"]
    return None
