"""The scripts in the tutorials, and README's, are pipelines that arcbeam runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from arcbeam.cli.main import main

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = {"words.py": "docs/tutorial/batch.md", "ticks.py": "docs/tutorial/streaming.md", "readme.py": "README.md"}


def _page(name: str) -> str:
    return (_ROOT / _PAGES[name]).read_text(encoding="utf-8")


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first Python block of a page, as a file of that name in the current folder."""
    found = re.search(r"```python\n(.*?)```", _page(request.param), re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    Path("licence.txt").write_text((_ROOT / "LICENSE").read_text(encoding="utf-8"), encoding="utf-8")
    path = tmp_path / request.param
    path.write_text(found[1], encoding="utf-8")
    return path


@pytest.mark.parametrize("script", _PAGES, indirect=True)
def test_script_of_a_page_has_a_plan(script: Path) -> None:
    result = CliRunner().invoke(main, ["explain", script.name])
    assert result.exit_code == 0, result.output
    plan = result.stdout.splitlines()[0]
    if f"$ arcbeam explain {script.name}" in _page(script.name):
        assert plan in _page(script.name)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("script", ["words.py"], indirect=True)
def test_script_of_the_batch_tutorial_runs(script: Path) -> None:
    # The test does not see what workers print.
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace("beam.Map(print)", "beam.io.WriteToText('top', shard_name_template='')"))
    result = CliRunner().invoke(main, ["run", script.name])
    assert result.exit_code == 0, result.output
    found = Path("top").read_text(encoding="utf-8").splitlines()
    assert f"$ arcbeam run {script.name}\n" in _page(script.name)
    assert len(found) == 5
    assert "\n".join(found) in _page(script.name)
