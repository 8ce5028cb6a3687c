"""Command lines that texts print."""

from __future__ import annotations

import shlex

import pytest

from arcbeam.console.commandlines import command_line


@pytest.mark.parametrize(
    "place", ["/data/job", "/data/my job", "it's", 's3://b/a "quoted" $HOME?region=x', "-- -x", ""]
)
def test_a_shell_reads_the_same_words(place: str) -> None:
    words = shlex.split(command_line("savepoints", place, "copy", "-a b", "c"))
    assert words == [
        "arcbeam",
        "savepoints",
        *([f"./{place}" if place[:1] == "-" else place] if place else []),
        *words[-3:],
    ]
    assert words[-3:] == ["copy", "-a b", "c"]
