"""The page of arcbeam.io names everything that users import, and every argument."""

from __future__ import annotations

import inspect
import re

import pytest

import arcbeam.io
from tools.check_docs import DOCS

_PAGE = (DOCS / "reference" / "io.md").read_text(encoding="utf-8")
_WORDS = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", _PAGE))))


@pytest.mark.parametrize("name", arcbeam.io.__all__)
def test_page_names_class_and_arguments(name: str) -> None:
    assert name in _WORDS
    value = getattr(arcbeam.io, name)
    functions = [value]
    if name == "OutputMode":
        functions = [value.append, value.update, value.complete]
    if name in ("Format", "Publisher", "RecordError"):
        functions = []
    for function in functions:
        arguments = set(inspect.signature(function).parameters) - {"label", "args", "kwargs"}
        assert arguments <= _WORDS, f"{function.__qualname__}: {arguments - _WORDS}"
