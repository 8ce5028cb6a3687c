"""The commands' arguments, exit codes and both ways of speaking."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from arcbeam import cli, doctor
from arcbeam.errors import SetupError
from arcbeam.output import JsonOutput, TextOutput

GOOD = doctor.Check("Python", True, "3.11.7")
BAD = doctor.Check("Java", False, "no Java", "install one")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, list(arguments))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[doctor.Check]:
    """What `doctor.checks` will find; to be filled by the test."""
    checks: list[doctor.Check] = []
    monkeypatch.setattr(doctor, "checks", lambda: checks)
    return checks


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline that prints its arguments and imports a neighbour."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_script.py").write_text("VALUE = 7\n")
    path = tmp_path / "pipeline.py"
    path.write_text(
        "import json, sys, neighbour_of_script\n"
        "if __name__ == '__main__':\n"
        "    print(json.dumps([sys.argv[1:], neighbour_of_script.VALUE]))\n"
    )
    return path


def test_doctor_text(found: list[doctor.Check]) -> None:
    found += [GOOD, BAD]
    result = invoke("doctor")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].split() == ["ok", "Python", "3.11.7"]
    assert "NO" in result.stdout
    assert "Java: install one" in result.stdout


@pytest.mark.parametrize("arguments", [("--json", "doctor"), ("doctor", "--json")])
def test_doctor_json(found: list[doctor.Check], arguments: tuple[str, ...]) -> None:
    found += [GOOD]
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [{"name": "Python", "ok": True, "found": "3.11.7", "remedy": ""}]


def test_run_adds_the_runner(script: Path) -> None:
    result = invoke("run", str(script), "--input", "a.txt", "--json", "-h")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == [["--input", "a.txt", "--json", "-h", "--runner=arcbeam.ArcbeamRunner"], 7]


@pytest.mark.parametrize("given", [("--runner=DirectRunner",), ("--runner", "DirectRunner")])
def test_run_keeps_a_given_runner(script: Path, given: tuple[str, ...]) -> None:
    result = invoke("run", str(script), *given)
    assert json.loads(result.stdout)[0] == list(given)


def test_run_without_such_a_script() -> None:
    result = invoke("run", "no/such/pipeline.py")
    assert result.exit_code == 2
    assert "no/such/pipeline.py" in result.stderr


def test_run_reports_errors_of_ours_without_our_stack(script: Path) -> None:
    script.write_text("from arcbeam.errors import SetupError\nraise SetupError('no Java', 'install one')\n")
    result = invoke("run", str(script))
    assert result.exit_code == 1
    assert result.stderr == "error: no Java\n  what to do: install one\n"
    assert "Traceback" not in result.output


def test_run_gives_the_scripts_exit_code(script: Path) -> None:
    script.write_text("import sys\nsys.exit(5)\n")
    assert invoke("run", str(script)).exit_code == 5


def test_unknown_command() -> None:
    assert invoke("dance").exit_code == 2


def test_text_output() -> None:
    out, err = io.StringIO(), io.StringIO()
    output = TextOutput(out, err)
    output.table(["id", "state"], [{"id": "j-1", "state": "DONE"}, {"id": "j-22", "other": 1}])
    output.record({"id": "j-1", "state": "DONE"})
    output.text("cancelled", id="j-1")
    output.progress("stage 1 of 2", stage=1)
    output.error(SetupError("no Java", "install one"))
    assert out.getvalue() == "id    state\nj-1   DONE\nj-22\nid:    j-1\nstate: DONE\ncancelled\n"
    assert err.getvalue() == "stage 1 of 2\nerror: no Java\n  what to do: install one\n"


def test_progress_overwrites_itself_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    err = Terminal()
    output = TextOutput(io.StringIO(), err)
    output.progress("stage 10 of 12")
    output.progress("done")
    output.text("")
    assert err.getvalue() == "\rstage 10 of 12\rdone          \n"


def test_json_output() -> None:
    out, err = io.StringIO(), io.StringIO()
    output = JsonOutput(out, err)
    output.table(["id"], [{"id": "j-1", "state": "DONE"}])
    output.record({"id": "j-1"})
    output.text("cancelled", id="j-1")
    output.text("cancelled")
    output.progress("stage 1 of 2", stage=1)
    output.error(SetupError("no Java", "install one"))
    output.error(ValueError("x"))
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        [{"id": "j-1", "state": "DONE"}],
        {"id": "j-1"},
        {"id": "j-1"},
        {"message": "cancelled"},
    ]
    assert [json.loads(line) for line in err.getvalue().splitlines()] == [
        {"progress": {"stage": 1}},
        {"error": {"type": "SetupError", "message": "no Java", "remedy": "install one"}},
        {"error": {"type": "ValueError", "message": "x", "remedy": ""}},
    ]
