"""The check of words finds what the list names, and nothing in code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_words

_LIST = """
[[words]]
pattern = "mumbles on|xyzzy"
use = "resumes"
but = "mumbles on top"

[[identifiers]]
pattern = "plugh"
use = "a word"

[[identifiers]]
pattern = "constant most$|class frobbed$"
use = "a noun"

[[identifiers]]
pattern = "name plover"
use = "a place"
where = "elsewhere/"
"""


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class PlughQueue: ...\n", [(1, "plugh")]),
        ("class Frobbed: ...\n", [(1, "class frobbed")]),
        ("class FrobbedQueue: ...\n", []),
        ("\nasync def put_plugh(x): ...\n", [(2, "plugh")]),
        ("def put(x, *, plugh=1): ...\n", [(1, "plugh")]),
        ("self._plugh = 1\n", [(1, "plugh")]),
        ("plugh: int\n", [(1, "plugh")]),
        ("for x, (plugh, y) in z: ...\n", [(1, "plugh")]),
        ("if plugh := x: ...\n", [(1, "plugh")]),
        ("_MOST = 3\n", [(1, "constant most")]),
        ("MOST_ROWS = 3\nmost = 4\n", []),
        ("import x as plugh\n", [(1, "plugh")]),
        ("try: ...\nexcept E as plugh: ...\n", [(2, "plugh")]),
        ("match x:\n    case [plugh, *_]: ...\n", [(2, "plugh")]),
        ("class K:\n    PLUGH = 1\n", [(2, "plugh")]),
        ("x.plugh(plugh)\nunplughed = plughs = 'plugh'\n", []),
        ("plover = 1\n", []),
    ],
)
def test_identifiers_of_python_are_checked(tmp_path: Path, text: str, found: list[tuple[int, str]]) -> None:
    assert _found(tmp_path, "module.py", text) == found


def test_toml_is_checked_except_its_code(tmp_path: Path) -> None:
    text = """# It mumbles
# on.
name = "plugh-is-lost"
why = "Xyzzy."
old = "xyzzy"
new = '''
xyzzy mumbles on
'''
tests = ["xyzzy"]
"""
    assert _found(tmp_path, "table.toml", text) == [(1, "mumbles on"), (4, "Xyzzy"), (3, "plugh")]


def test_yaml_is_checked(tmp_path: Path) -> None:
    assert _found(tmp_path, "table.yaml", "a: 1  # xyzzy\nb: it mumbles on\n") == [(1, "xyzzy"), (2, "mumbles on")]


def test_entry_applies_in_its_folder() -> None:
    (entry,) = (each for each in check_words.entries().identifiers if each.where and "constant" in each.pattern.pattern)
    assert entry.where == "src/"
    assert list(entry.found("constant most rows"))
