"""The tables of planted mistakes are well-formed and fit the code of today; their runner finds what tests find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import plant
from tools.plant import ROOT, Mistake, mistakes, planted

KNOWN = mistakes()
TABLE = """
[[mistake]]
name = "one"
class = "jobs"
file = "a.py"
old = "x < y"
new = "x <= y"
"""


@pytest.mark.parametrize("mistake", KNOWN, ids=[each.name for each in KNOWN])
def test_mistake_fits_the_code(mistake: Mistake) -> None:
    text = (ROOT / mistake.file).read_text(encoding="utf-8")
    compile(planted(text, mistake), mistake.file, "exec")


def test_each_test_named_by_a_mistake_exists() -> None:
    named = sorted({test for each in KNOWN for test in each.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("", "either tests or found_by_nothing"),
        ('tests = ["t.py"]\nfound_by_nothing = "no"', "either tests or found_by_nothing"),
        ('tests = ["t.py"]\nfile_ = "b"', "unexpected keyword"),
    ],
)
def test_malformed_table_is_refused(tmp_path: Path, lines: str, wrong: str) -> None:
    (tmp_path / "a.toml").write_text(TABLE + lines, encoding="utf-8")
    with pytest.raises(ValueError, match=wrong):
        mistakes(tmp_path)


def test_name_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(2 * (TABLE + 'tests = ["t.py"]\n'), encoding="utf-8")
    with pytest.raises(ValueError, match="is taken"):
        mistakes(tmp_path)


def test_text_that_is_not_there_once_is_refused() -> None:
    mistake = Mistake("one", "jobs", "a.py", "x", "y", ("t.py",))
    with pytest.raises(ValueError, match="2 times"):
        planted("x, x", mistake)


@pytest.mark.long
def test_runner_tells_found_from_missed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    old = 'raise ValueError(f"message id {id!r}: use lower-case words joined by hyphens")'
    test = "tests/tools/test_golden.py"
    slips = [
        Mistake("found", "jobs", "tests/golden/texts.py", old, "pass", (test,)),
        Mistake("missed", "jobs", "tests/golden/texts.py", "use lower-case words", "use lower-case  words", (test,)),
        Mistake("collects-nothing", "jobs", "tests/golden/texts.py", old, "pass", (f"{test}::test_none",)),
    ]
    monkeypatch.setattr(plant, "mistakes", lambda: slips[:2])
    assert plant.main([]) == 1
    assert "2 mistakes, 1 not found\n  missed" in capsys.readouterr().out
    monkeypatch.setattr(plant, "mistakes", lambda: slips[2:])
    assert plant.main([]) == 1
