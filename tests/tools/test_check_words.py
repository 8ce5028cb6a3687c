"""The check of words finds what the list names, and nothing in code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_words

_LIST = '[[words]]\npattern = "mumbles on|xyzzy"\nuse = "resumes"\nbut = "mumbles on top"\n'


def _found(folder: Path, name: str, text: str) -> list[tuple[int, str]]:
    (folder / "list.toml").write_text(_LIST, encoding="utf-8")
    (folder / name).write_text(text, encoding="utf-8")
    lines = check_words.findings(folder / name, check_words.entries(folder / "list.toml"))
    return [(int(line.split(":")[1]), line.split('"')[1]) for line in lines]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# The job\n# mumbles\n# on here.\n", [(2, "mumbles on")]),
        ('"""Xyzzy reads it."""\n', [(1, "Xyzzy")]),
        ("x = 1\ny = f'it mumbles on with {x}'\n", [(2, "mumbles on")]),
        ("def test_xyzzy_reads() -> None: ...\n", [(1, "xyzzy")]),
        ("class TestXyzzyReads: ...\n", [(1, "Xyzzy")]),
        ('xyzzy = "xyzzy"\n', []),
        ('"""It mumbles on top; `xyzzy` is a name."""\n', []),
    ],
)
def test_prose_of_python_is_checked(tmp_path: Path, text: str, found: list[tuple[int, str]]) -> None:
    assert _found(tmp_path, "module.py", text) == found


def test_code_in_markdown_is_accepted(tmp_path: Path) -> None:
    text = "A\n```python\nxyzzy\n```\nand `xyzzy`, but it mumbles\non.\n"
    assert _found(tmp_path, "page.md", text) == [(5, "mumbles on")]
