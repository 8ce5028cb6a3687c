"""The page of packages has each module, with what its docstring says."""

from __future__ import annotations

from pathlib import Path

from tools.generators.packages import main, packages_page


def test_module_is_shown_with_what_it_owns(tmp_path: Path) -> None:
    package = tmp_path / "whole" / "part"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""A part."""\n')
    (package / "one.py").write_text(
        '"""One: `a < b`,\nor a | b.\n\nMust not know two. Owns the number. And more.\n"""\n'
    )
    (package / "two.py").write_text("x = 1\n")
    page = packages_page(tmp_path / "whole")
    assert "## whole.part\n\nA part.\n" in page
    assert "| `one` | One: `a < b`, or a &#124; b. Owns the number. |\n| `two` |  |\n" in page


def test_page_is_up_to_date() -> None:
    assert main(["--check"]) == 0
