"""The code in the pages for users works: scripts run and print what the page shows, files have no mistakes."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from arcbeam.cli.main import main
from tests.docs.blocks import ROOT, Block, blocks

_PYTHON = blocks("python")
_PIPELINES = [block for block in _PYTHON if block.is_pipeline]
_PRINTING = [block for block in _PIPELINES if block.output]
_PRINT = "beam.Map(print)"


def test_pages_have_scripts_with_output() -> None:
    assert len(_PRINTING) >= 5


@pytest.mark.parametrize("block", _PYTHON, ids=str)
def test_python_parses_and_its_imports_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(block.code, str(block))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("arcbeam", "apache_beam")):
            module = importlib.import_module(str(node.module))
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("block", _PIPELINES, ids=str)
def test_script_has_a_plan(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("licence.txt").write_text((ROOT / "LICENSE").read_text(encoding="utf-8"), encoding="utf-8")
    Path("script.py").write_text(block.code, encoding="utf-8")
    result = CliRunner().invoke(main, ["explain", "script.py"])
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("block", _PRINTING, ids=str)
def test_script_prints_what_the_page_shows(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The test does not see what workers print.
    assert block.code.count(_PRINT) == 1
    appended = f"'Print' >> beam.Map(lambda line: open({str(tmp_path / 'printed')!r}, 'a').write(f'{{line}}\\n'))"
    code = block.code.replace(_PRINT, appended)
    Path("script.py").write_text(code, encoding="utf-8")
    result = CliRunner().invoke(main, ["run", "script.py"])
    assert result.exit_code == 0, result.output
    assert sorted(Path("printed").read_text(encoding="utf-8").splitlines()) == sorted(block.output.splitlines())


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_shell_has_no_syntax_error(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_parses(block: Block) -> None:
    assert all(isinstance(document, dict) for document in yaml.safe_load_all(block.code))


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_parses(block: Block) -> None:
    assert isinstance(json.loads(block.code), dict | list)


def _commands(block: Block, program: str) -> list[str]:
    """Return the commands of a program in a shell block, each on one line."""
    lines = re.sub(r"\\\n\s*", " ", block.code).splitlines()
    return [line.strip() for line in lines if line.strip().startswith(program)]


@pytest.mark.parametrize(
    "command", [each for block in blocks("sh") for each in _commands(block, "spark-submit")], ids=str
)
def test_options_of_spark_submit_exist(command: str, spark_submit_help: str) -> None:
    before_script = re.split(r"\s\S+\.py\b", command)[0]
    options = re.findall(r"\s(--[a-z-]+)", before_script)
    assert options
    assert [option for option in options if option not in spark_submit_help.split()] == []


@pytest.fixture(scope="session")
def spark_submit_help() -> str:
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run([str(program), "--help"], capture_output=True, text=True, timeout=300)
    return (done.stdout + done.stderr).replace(",", " ")
