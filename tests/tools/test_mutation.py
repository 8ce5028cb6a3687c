"""The sample of mutants is the seed's, mutants are tried as described, and the argued ones fit the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutation import trial
from tools.mutation.equivalents import (
    PAGE,
    ROOT,
    Equivalent,
    Found,
    Measured,
    equivalents,
    measured,
    page,
    text_of,
)
from tools.mutation.sample import sample

ARGUED = equivalents()
FILE = "src/arcbeam/part/one.py"
TEXT = '''"""A module."""

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING and True:
    import x


@dataclass(frozen=True, slots=True)
class Value:
    width: int | None = None


def area(value: int | str, factor: "int" = 3) -> int | None:
    if value == 0:
        return None
    return cast(int | None, value) * factor
'''


def changes(text: str, seed: str = "1", size: int = 100) -> list[str]:
    return [each.change[-1] for each in sample({FILE: text}, seed, size)]


def test_sample_is_decided_by_seed() -> None:
    assert changes(TEXT) == changes(TEXT)
    assert changes(TEXT) != changes(TEXT, seed="2")
    assert changes(TEXT, size=2) == changes(TEXT)[:2]


def test_edit_elsewhere_leaves_sample_unchanged() -> None:
    edited = TEXT.replace('"""A module."""\n', '"""A module."""\n\n\nfirst = 1\n')
    assert [change for change in changes(edited) if "first" not in change] == changes(TEXT)


def test_code_for_type_checkers_is_not_mutated() -> None:
    found = changes(TEXT)
    assert {change.split()[0] for change in found} == {"-@dataclass(frozen=True,", "+def", "+if", "+return"}
    assert not [change for change in found if "TYPE_CHECKING" in change]
    assert all("cast(int | None, " in change for change in found if "cast" in change)
    assert all("(value: int | str, factor" in change for change in found if change.startswith("+def"))


def test_tests_beside_a_module_run_first() -> None:
    seconds = {
        "tests/part/test_other.py": 1.0,
        "tests/part/test_quick.py": 0.5,
        "tests/part/room/test_one.py": 9.0,
        "tests/part/room/test_one_more.py": 8.0,
        "tests/part/room/test_two.py": 2.0,
    }
    assert list(trial.stages("src/arcbeam/part/room/one.py", "part", seconds)) == [
        ("tests/part/room/test_one_more.py", "tests/part/room/test_one.py"),
        ("tests/part/room/test_two.py",),
        ("tests/part/test_quick.py", "tests/part/test_other.py"),
    ]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with one module and its test, which needs no library."""
    monkeypatch.setattr(trial, "_PRELOADED", ["pytest"])
    tree = tmp_path / "tree"
    for folder in ("src/arcbeam/part", "tests/part"):
        (tree / folder).mkdir(parents=True)
    (tree / FILE).write_text("def area(a, b):\n    return a * b\n")
    test = "from arcbeam.part.one import area\n\n\ndef test_area():\n    assert area(2, 2) == 4\n"
    (tree / "tests/part/test_one.py").write_text(test)
    (tree / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["long"]\n')
    return tree


def test_trial_tells_found_from_survived(tree: Path) -> None:
    slow = "import pytest\n\n\n@pytest.mark.parametrize('a', ['x - y'])\ndef test_slow(a):\n    assert not a\n"
    (tree / "tests/part/test_other.py").write_text(slow)
    clean = trial.clean(tree, [tree / "tests/part"])
    assert sorted(clean.seconds) == ["tests/part/test_one.py", "tests/part/test_other.py"]
    assert clean.failing == ("tests/part/test_other.py::test_slow[x - y]",)
    for text, found in (
        ("a ** b", trial.Verdict(False)),
        ("a - b", trial.Verdict(True, "tests/part/test_one.py::test_area")),
        ("__import__('os')._exit(3)", trial.Verdict(True, "pytest's exit code 3")),
    ):
        (tree / FILE).write_text(f"def area(a, b):\n    return {text}\n")
        assert trial.verdict(tree, FILE, "part", clean) == found


def test_trial_without_end_counts_as_found(tree: Path) -> None:
    (tree / FILE).write_text("def area(a, b):\n    while True:\n        pass\n")
    assert trial.run(tree, ["tests/part"], seconds=0.1) == trial.Verdict(True, "no end within 0 s")


def test_time_without_a_processor_is_that_of_the_slowest_thread(tmp_path: Path) -> None:
    for process, session, waited in ((7, 7, [2.0, 0.5]), (8, 7, [3.25]), (9, 9, [60.0])):
        for thread, seconds in enumerate(waited):
            folder = tmp_path / str(process) / "task" / str(thread)
            folder.mkdir(parents=True)
            (folder / "schedstat").write_text(f"1 {int(seconds * 1e9)} 1\n")
        (tmp_path / str(process) / "stat").write_text(f"{process} (a (b) c) S 1 7 {session} 0\n")
    (tmp_path / "10").mkdir()
    assert (trial.queued(7, tmp_path), trial.queued(1, tmp_path)) == (3.25, 0.0)


@pytest.mark.parametrize("each", ARGUED, ids=[f"{each.file}: {each.new.strip()}" for each in ARGUED])
def test_argued_mutant_fits_the_code(each: Equivalent) -> None:
    compile(text_of(each), each.file, "exec")


def test_page_lists_each_argued_mutant() -> None:
    entry = Equivalent(FILE, "a", "b | c", "It is never read.")
    text = page([entry], Measured("On a machine.", {"part": Found(40, 37, ("one", "two")), "rest": Found(8, 8)}))
    assert "## part\n" in text
    assert "| `part.one` | `b \\| c` | It is never read. |\n" in text
    assert "On a machine.\n" in text
    assert "| part | 40 | 37 | 1 | 2 | 95% | `one`, `two` |\n| rest | 8 | 8 | 0 | 0 | 100% |  |\n" in text
    assert PAGE.read_text(encoding="utf-8") == page(ARGUED, measured()), "run `make docs`"


def test_measured_shares_are_of_packages() -> None:
    for package, of in measured().packages.items():
        assert (ROOT / "src" / "arcbeam" / package).is_dir()
        assert 0 < of.found <= of.mutants - sum(each.package == package for each in ARGUED)
