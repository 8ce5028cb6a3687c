"""The checks of documents find what is wrong, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_docs
from tools.check_docs import Known, page_of, shown_backslashes

KNOWN = Known({"run": {"--verbose"}, "status": {"--watch"}}, {"--shards", "--spark_conf"})

PAGE = """
# Beam's own `tests`

See [a](#beams-own-tests), [b](other.md#there), [c](https://x.y/z#w). <!-- not counted -->

```
arcbeam run script.py --shards=2 --input=x   # --unheard
from arcbeam import ArcbeamRunner
```
`arcbeam status JOB --watch` and `--spark-conf` and `pip install --upgrade arcbeam`
"""


def _checked(text: str, *, options: bool = True) -> list[str]:
    return [what for _, what in check_docs.unknown_names(page_of(text), KNOWN, options=options)]


def test_page_without_faults_has_none(tmp_path: Path) -> None:
    here, other = tmp_path / "here.md", tmp_path / "other.md"
    for path, text in ((here, PAGE), (other, "## There\n")):
        path.write_text(text)
    pages = {path: page_of(path.read_text()) for path in (here, other)}
    assert list(check_docs.broken_links(here, pages[here], pages)) == []
    assert _checked(PAGE) == []


@pytest.mark.parametrize("link", ["#nowhere", "missing.md", "other.md#nowhere"])
def test_broken_link_is_found(link: str, tmp_path: Path) -> None:
    here, other = tmp_path / "here.md", tmp_path / "other.md"
    other.write_text("# There\n")
    page = page_of(f"one\n[x]({link})\n")
    found = list(check_docs.broken_links(here, page, {here: page, other: page_of(other.read_text())}))
    assert [(number, link in what) for number, what in found] == [(2, True)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("`arcbeam walk x`", "walk"),
        ("```\narcbeam status JOB --shards=2\n```", "--shards"),
        ("`arcbeam run s.py --wach`", "--wach"),
        ("`--steps_second`", "--steps_second"),
    ],
)
def test_unknown_command_or_option_is_found(text: str, named: str) -> None:
    (what,) = _checked(text)
    assert named in what
    assert bool(_checked(text, options=False)) == (named == "walk")


def test_words_have_letters_or_digits() -> None:
    assert check_docs.words_of("| a | b2 |\n|---|---|\n<!-- x\ny --> – c") == 3


def test_equal_headings_have_different_anchors() -> None:
    assert page_of("# A b\n## A b\n### [L](x.md): `c`?\n").anchors == {"a-b", "a-b_1", "l-c"}


def test_navigation_has_every_page_and_no_other() -> None:
    nav = "nav:\n  - Home: index.md\n  - How-to:\n      - Late data: howto/late.md\n"
    assert list(check_docs.not_in_nav(nav, ["index.md", "howto/late.md", "developers/decisions/one.md"])) == []
    missing, extra = check_docs.not_in_nav(nav, ["index.md", "howto/early.md"])
    assert "howto/late.md" in missing
    assert "howto/early.md" in extra


def test_length_is_limited_for_developers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    readme = check_docs.ROOT / "README.md"
    paths = [readme, check_docs.DOCS / "index.md", check_docs.DOCS / "developers" / "glossary.md"]
    monkeypatch.setattr(check_docs, "MAX_WORDS", 3)
    monkeypatch.setattr(check_docs, "MAX_README", 3)
    found = [each for each in check_docs.violations(paths, check_docs.known()) if "limit" in each]
    assert [each.partition(":")[0] for each in found] == ["docs/developers", "README.md"]
    assert not [each for each in check_docs.violations(paths[:2], check_docs.known()) if each.startswith("docs")]


def test_continued_command_is_one_line() -> None:
    assert _checked("```\narcbeam run x.py \\\n    --unheard=1\n```\n") == [
        "there is no option --unheard of `arcbeam run`"
    ]


def test_escaped_bar_in_code_is_found() -> None:
    page = page_of("| code |\n|---|\n| `a \\| b` |\n| a \\| b |\n")
    assert [number for number, _ in shown_backslashes(page)] == [3]
