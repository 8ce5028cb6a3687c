"""The tests on the page "Test your pipeline" pass, and fail when the pipeline is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of

pytestmark = pytest.mark.usefixtures("spark")

_TESTS = [block for block in blocks_of(ROOT / "docs" / "howto" / "testing.md") if "def test_" in block.code]


def _function(block: Block, code: str) -> Callable[[], None]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(block), "exec"), names)
    (name,) = (name for name in names if name.startswith("test_"))
    function: Callable[[], None] = names[name]
    return function


def test_page_has_its_tests() -> None:
    assert len(_TESTS) == 3


@pytest.mark.parametrize("block", _TESTS, ids=str)
def test_of_the_page_passes(block: Block) -> None:
    _function(block, block.code)()


@pytest.mark.parametrize(
    ("number", "right", "wrong"), [(0, '("to", 2)', '("to", 3)'), (1, "allowed_lateness=60", "allowed_lateness=0")]
)
def test_of_the_page_finds_a_fault(number: int, right: str, wrong: str) -> None:
    block = _TESTS[number]
    assert right in block.code
    with pytest.raises(Exception, match="Failed assert"):
        _function(block, block.code.replace(right, wrong))()
