"""Times in texts: which of them a browser shows in its own time zone."""

from __future__ import annotations

import re

import pytest

from arcbeam.page.markup import cell, timed
from arcbeam.page.views import Cell

pytestmark = pytest.mark.contract("PAGE-01")


def times(text: str) -> list[tuple[int, str]]:
    """Return the marked times of a text, which is otherwise unchanged."""
    marked = str(timed(text))
    found = re.findall(r'<time data-clock="(-?\d+)" title="([^"]*)">', marked)
    assert re.sub("<[^>]*>", "", marked) == text.replace("'", "&#39;")
    return [(int(at), hint) for at, hint in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("is at 1970-01-01T00:00:01.000002Z: since 1970-01-01 00:00:03Z.", [1_000_002, 3_000_000]),
        ("since 1969-12-31 23:59:59.5Z,", [-500_000]),
        ("(1970-01-02T00:00:00Z)", [86_400_000_000]),
        ("no time: 1970-01-01, 1970-02-30T00:00:00Z, 1970-01-01T24:00:00Z, x1970-01-01T00:00:00Z", []),
        # The user's own texts stay as they are.
        ("element '1970-01-01T00:00:01Z' in shard 3", []),
        ("0000-01-01T00:00:00Z is the beginning, END OF Z", []),
    ],
)
def test_times_of_our_texts_are_marked(text: str, expected: list[int]) -> None:
    found = times(text)
    assert [at for at, _ in found] == expected
    assert all(hint in text for _, hint in found)


def test_marked_text_is_escaped() -> None:
    assert str(timed("<b> 1970-01-01T00:00:00Z")).startswith("&lt;b&gt; <time ")
    assert str(cell(Cell("<b>", "1970-01-01T00:00:00Z"))) == '<span title="1970-01-01T00:00:00Z">&lt;b&gt;</span>'
