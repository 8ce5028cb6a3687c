"""Sizes that results must not depend on: of caches, and thresholds between two ways to do the same thing.

Owns how they are declared, and the switch that makes all of them small for tests. Imports nothing.

A module declares such a number where it uses it, as `threshold(1000)` or `cache_size(10_000)`; `tools/check_house.py`
finds numbers and caches that are declared differently. A process reads the switch once, when it imports this module, so
the declarations cost nothing afterwards. The switch is an environment variable, because a job's other processes
(drivers, Spark's Python workers) inherit it. No option of a pipeline sets it.

    ARCBEAM_TEST_SMALL=caches,thresholds                     everything
    ARCBEAM_TEST_SMALL=thresholds@arcbeam.engine             those of one package or module, to find what fails
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Hashable
from typing import Any, Final, ParamSpec, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
_P = ParamSpec("_P")
_T = TypeVar("_T")

SWITCH: Final = "ARCBEAM_TEST_SMALL"
KINDS: Final = ("caches", "thresholds")


def _switched(text: str) -> dict[str, str]:
    """Return, by kind, the prefix of the modules for which it is switched on.

    Raises:
        ValueError: the text names another kind.
    """
    found = {}
    for part in filter(None, text.split(",")):
        kind, _, prefix = part.partition("@")
        if kind not in KINDS:
            raise ValueError(f"{SWITCH}={text}: {kind!r} is not one of {', '.join(KINDS)}")
        found[kind] = prefix
    return found


_SWITCHED: Final = _switched(os.environ.get(SWITCH, ""))


def _is_small(kind: str) -> bool:
    """Return whether the switch is on for the module that called the caller."""
    prefix = _SWITCHED.get(kind)
    return prefix is not None and sys._getframe(2).f_globals["__name__"].startswith(prefix)


def threshold(usual: int, small: int = 1) -> int:
    """Return a number that decides between two ways of doing the same thing: `usual`, or `small` in tests.

    Args:
        usual: the value in production.
        small: the minimum with which both ways are still correct.
    """
    return small if _is_small("thresholds") else usual


def cache_size(usual: int, small: int = 1) -> int:
    """Return the capacity of a cache, in its own unit: `usual`, or `small` in tests."""
    return small if _is_small("caches") else usual


def memo() -> dict[_K, _V]:
    """Return a dictionary whose entries its owner can compute again at any time; in tests it keeps only the newest."""
    return _Newest() if _is_small("caches") else {}


def by_identity() -> dict[int, tuple[Any, _V]]:
    """Return a dictionary by `id(object)` of (object, value).

    The entry contains the object, which must live as long as the entry: another object may get the identity of a freed
    one. In tests the dictionary refuses an entry without its object, and keeps only the newest entry.
    """
    return _OfObjects() if _is_small("caches") else {}


def remembered(most: int | None = None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a function whose results are cached by its arguments, at most that many; one in tests."""
    size = 1 if _is_small("caches") else most

    def decorated(function: Callable[_P, _T]) -> Callable[_P, _T]:
        return functools.lru_cache(size)(function)  # type: ignore[return-value]  # it loses the parameters

    return decorated


class _Newest(dict[_K, _V]):
    """Keeps one entry."""

    def __setitem__(self, key: _K, value: _V) -> None:
        self.clear()
        super().__setitem__(key, value)

    def setdefault(self, key: _K, default: _V) -> _V:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError("a memo cannot be updated with several entries: it may have room for only one")


class _OfObjects(_Newest[int, tuple[Any, _V]]):
    """Keeps one entry, which must have its object."""

    def __setitem__(self, key: int, value: tuple[Any, _V]) -> None:
        if not isinstance(value, tuple) or id(value[0]) != key:
            raise ValueError(f"the entry of identity {key} does not begin with its object, which may thus be freed")
        super().__setitem__(key, value)
