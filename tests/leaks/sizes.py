"""The sizes of everything that a job keeps: in objects of its driver, in modules, in its folder.

Owns the walk over objects. Must not know which sizes are right.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

_PLAIN = (str, bytes, bytearray, int, float, bool, type(None), type, ModuleType)
_SEVERAL = (list, tuple, set, frozenset, deque)


def in_objects(*roots: Any, apart: tuple[type, ...] = (), inside: tuple[str, ...] = ("arcbeam.",)) -> Counter[str]:
    """How many entries all containers have that hang on objects of ours, by the path to them.

    Args:
        roots: where the walk begins.
        inside: the beginnings of the modules whose objects are looked into.
        apart: types of objects that are not looked into.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    kept: list[Any] = []
    stack = [(type(root).__name__, root) for root in roots]
    while stack:
        path, value = stack.pop()
        if isinstance(value, (*_PLAIN, *apart)) or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)  # or another object gets its identity
        if isinstance(value, dict):
            found[path] += len(value)
            for key, each in list(value.items()):
                stack += ((f"{path}[]", each), (f"{path}{{}}", key))
        elif isinstance(value, _SEVERAL):
            found[path] += len(value)
            stack += ((f"{path}[]", each) for each in list(value))
        elif type(value).__module__.startswith(inside):
            stack += ((f"{path}.{name}", each) for name, each in _fields(value))
    return found


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{kind.__name__.lstrip('_')}{name}"
            try:
                yield name, getattr(value, name)
            except AttributeError:
                continue


def in_modules(*packages: str) -> Counter[str]:
    """The same of what modules keep: their own containers, and the results that functions remember."""
    found: Counter[str] = Counter()
    for name, module in list(sys.modules.items()):
        if not name.startswith(packages):
            continue
        for what, value in list(vars(module).items()):
            if getattr(value, "__module__", name) != name:
                continue
            if isinstance(value, dict | list | set | deque):
                found[f"{name}.{what}"] = len(value)
            elif hasattr(value, "cache_info"):
                found[f"{name}.{what}()"] = value.cache_info().currsize
            elif isinstance(value, type):
                for field, each in list(vars(value).items()):
                    if isinstance(each, dict | list | set | deque):
                        found[f"{name}.{what}.{field}"] = len(each)
    return found


def in_folder(blobs: Mapping[str, bytes]) -> Counter[str]:
    """How many blobs there are of each kind, and how long the longest is."""
    found: Counter[str] = Counter()
    for name, data in blobs.items():
        kind = "/".join(part for part in name.split("/")[:-1] if not any(c.isdigit() for c in part))
        found[f"blobs in {kind}"] += 1
        found[f"bytes in {kind}"] += len(data)
        found[f"longest in {kind}"] = max(found[f"longest in {kind}"], len(data))
    return found
