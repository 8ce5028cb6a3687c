"""Which numbers and caches have to be declared."""

from __future__ import annotations

import pytest

from tools.check_sizes import undeclared


@pytest.mark.parametrize(
    "source",
    [
        "_MOST_KNOWN = 10_000",
        "_BLOCK_BYTES: Final = 1 << 16",
        "class A:\n    _MOST_KNOWN = 10_000",
        "@functools.lru_cache(maxsize=8)\ndef f(): ...",
        "@functools.cache\ndef f(): ...",
        "known = weakref.WeakValueDictionary()",
        "known = {}\nknown[id(windows)] = windows, 1",
    ],
)
def test_undeclared_size_is_found(source: str) -> None:
    assert [line for line, _ in undeclared("engine/x.py", source)]


@pytest.mark.parametrize(
    "source",
    [
        "_MOST_KNOWN = cache_size(10_000)",
        "_BLOCK_BYTES: Final = threshold(1 << 16, 64)",
        "_FLAG_BYTES = 2",
        "_SECONDS = 10",
        "known = by_identity()\nknown[id(windows)] = windows, 1",
    ],
)
def test_declared_size_is_accepted(source: str) -> None:
    assert list(undeclared("engine/x.py", source)) == []
