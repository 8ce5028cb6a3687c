"""The switch of sizes: what it makes small, and what dictionaries in tests refuse."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from arcbeam.sizes import declaring as sizes


def switched(monkeypatch: pytest.MonkeyPatch, switch: str) -> Any:
    """The module as a process has it that was started with the switch."""
    monkeypatch.setenv(sizes.SWITCH, switch)
    spec = importlib.util.spec_from_file_location("declaring_switched", sizes.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("switch", "small"),
    [
        ("", []),
        ("caches", ["by_identity", "cache_size", "memo", "remembered"]),
        ("thresholds@arcbeam.engine", ["threshold"]),
        ("caches@arcbeam.engine,thresholds@arcbeam.harness", ["by_identity", "cache_size", "memo", "remembered"]),
        ("thresholds@arcbeam.harness", []),
    ],
)
def test_switch_makes_named_kinds_small(monkeypatch: pytest.MonkeyPatch, switch: str, small: list[str]) -> None:
    scope = vars(switched(monkeypatch, switch)) | {"__name__": "arcbeam.engine.rows.frontier"}
    found = {
        "threshold": eval("threshold(256)", scope) == 1,
        "cache_size": eval("cache_size(256)", scope) == 1,
        "memo": type(eval("memo()", scope)) is not dict,
        "by_identity": type(eval("by_identity()", scope)) is not dict,
        "remembered": eval("remembered(256)", scope)(str).cache_info().maxsize == 1,
    }
    assert sorted(name for name, is_small in found.items() if is_small) == sorted(small)


def test_unknown_word_in_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="cache"):
        switched(monkeypatch, "cache")


def test_small_memo_keeps_newest_entry() -> None:
    memo: sizes._Newest[str, int] = sizes._Newest()
    memo["a"] = 1
    assert memo.setdefault("b", 2) == 2
    assert memo == {"b": 2}
    with pytest.raises(TypeError):
        memo.update({"a": 1, "c": 2})


def test_identity_needs_its_object() -> None:
    windows, known = ("w",), sizes._OfObjects[int]()
    known[id(windows)] = windows, 1
    assert known[id(windows)] == (windows, 1)
    with pytest.raises(ValueError, match="object"):
        known[id(windows)] = ("another",), 1
