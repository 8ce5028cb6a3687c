"""The commands' arguments, exit codes, text output and JSON output."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from arcbeam.cli import doctor, main
from arcbeam.console.output import JsonOutput, TextOutput
from arcbeam.errors import SetupError
from tests.waiting import until

GOOD = doctor.Check("Python", True, "3.11.7")
BAD = doctor.Check("Java", False, "no Java", "install one")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main.main, list(arguments))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[doctor.Check]:
    """The result of `doctor.checks`; the test fills it."""
    checks: list[doctor.Check] = []
    monkeypatch.setattr(doctor, "checks", lambda: checks)
    return checks


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline that prints its arguments and imports a module in its folder."""
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


def test_run_passes_arguments_unchanged(script: Path) -> None:
    result = invoke("run", str(script), "--input", "a.txt", "--json", "-h")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == [["--input", "a.txt", "--json", "-h"], 7]


@pytest.mark.contract("API-01")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("made", ["", "options=PipelineOptions()", "options=PipelineOptions(['--bundle_elements=7'])"])
def test_run_uses_arcbeam_for_any_options(script: Path, made: str, tmp_path: Path) -> None:
    """The options of the command line reach the pipeline: the job's temporary folder shows it."""
    script.write_text(
        "import sys\n"
        "import apache_beam as beam\n"
        "from apache_beam.options.pipeline_options import PipelineOptions\n"
        f"p = beam.Pipeline({made})\n"
        f"p | beam.Create([3]) | beam.io.WriteToText({str(tmp_path / 'out')!r}, shard_name_template='')\n"
        "result = p.run()\n"
        "result.wait_until_finish()\n"
        "print(type(result).__module__)\n"
    )
    result = invoke("run", str(script), f"--arcbeam_temp={tmp_path / 'jobs'}", "--keep_job_temp")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "arcbeam.runner.result"
    assert (tmp_path / "out").read_text() == "3\n"
    assert list((tmp_path / "jobs").iterdir())


def test_run_refuses_unknown_option(script: Path) -> None:
    script.write_text("import apache_beam as beam\nbeam.Pipeline()\n")
    result = invoke("run", str(script), "--shardz=3")
    assert (result.exit_code, "--shardz=3" in result.stderr) == (1, True), result.output
    assert "Traceback" not in result.output


def test_run_warns_of_script_with_own_runner(script: Path, caplog: pytest.LogCaptureFixture) -> None:
    script.write_text(
        "import apache_beam as beam\nwith beam.Pipeline(runner='DirectRunner') as p:\n    p | beam.Create([1])\n"
    )
    assert invoke("run", str(script)).exit_code == 0
    (warning,) = (record for record in caplog.records if record.name == "arcbeam.cli")
    assert warning.args == (script, "SwitchingDirectRunner")
    caplog.clear()
    assert invoke("run", str(script), "--runner=DirectRunner").exit_code == 0
    assert not [record for record in caplog.records if record.name == "arcbeam.cli"]


def test_verbose_run_logs_progress(script: Path) -> None:
    script.write_text(
        "import logging\n"
        "logging.getLogger('arcbeam.streaming').info('a micro-batch')\n"
        "logging.getLogger('else').info('of the script')\n"
    )
    assert "a micro-batch" not in invoke("run", str(script)).stderr
    text = invoke("run", "-v", str(script)).stderr
    assert (text.count("a micro-batch"), "of the script" in text) == (1, False)
    assert "a micro-batch" not in invoke("run", str(script)).stderr


def test_verbose_run_of_script_with_own_log_repeats_nothing(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    script.write_text(
        "import logging\n"
        "logging.basicConfig()\n"
        "logging.getLogger('arcbeam.streaming').info('a micro-batch')\n"
        "logging.getLogger('else').warning('of the script')\n"
    )
    text = invoke("run", "-v", str(script)).stderr
    assert (text.count("a micro-batch"), text.count("of the script")) == (1, 1)


def test_run_warns_of_script_without_pipeline(script: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert invoke("run", str(script)).exit_code == 0
    (warning,) = (record for record in caplog.records if record.name == "arcbeam.cli")
    assert warning.args == (script,)


def test_run_of_missing_script_is_wrong_usage() -> None:
    result = invoke("run", "no/such/pipeline.py")
    assert result.exit_code == 2
    assert "no/such/pipeline.py" in result.stderr


def test_run_prints_arcbeams_errors_without_traceback(script: Path) -> None:
    script.write_text("from arcbeam.errors import SetupError\nraise SetupError('no Java', 'install one')\n")
    result = invoke("run", str(script))
    assert result.exit_code == 1
    assert result.stderr == "error: no Java\n  what to do: install one\n"
    assert "Traceback" not in result.output


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_run_with_130(script: Path, as_json: bool) -> None:
    script.write_text("raise KeyboardInterrupt\n")
    result = invoke(*(["--json"] if as_json else []), "run", str(script))
    assert result.exit_code == 130
    assert result.stdout == ""
    if as_json:
        assert json.loads(result.stderr)["error"]["type"] == "JobCancelledError"
    else:
        assert result.stderr == "error: interrupted\n"


NAPS = """
import sys, time
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

def nap(x):
    print("napping", flush=True)
    time.sleep(120)

with beam.Pipeline(options=PipelineOptions(sys.argv[1:])) as p:
    p | beam.Create([1, 2]) | beam.Reshuffle() | beam.Map(nap)
"""


def _started(group: int, output: Path) -> bool:
    """Return whether Java has started; its command line contains arcbeam's settings."""
    processes = subprocess.run(["ps", "-o", "args=", "-s", str(group)], capture_output=True, text=True).stdout
    return "arcbeam.spark.daemon" in processes


def _naps(group: int, output: Path) -> bool:
    return "napping" in output.read_text()


@pytest.mark.long
@pytest.mark.contract("API-06")
@pytest.mark.parametrize("moment", [_started, _naps])
def test_ctrl_c_ends_start_of_spark_and_job(tmp_path: Path, moment: Callable[[int, Path], bool]) -> None:
    script, output = tmp_path / "naps.py", tmp_path / "output"
    script.write_text(NAPS)
    command = [
        sys.executable,
        "-c",
        "from arcbeam.cli.main import main; main()",
        "run",
        str(script),
        "--spark_master=local[2]",
    ]
    with output.open("w") as file:
        # In a separate session: the signal goes to all its processes, as from a terminal.
        running = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    until(lambda: moment(running.pid, output), output.read_text, process=running)
    before = len(output.read_text())
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(timeout=100) == 130
    # Lines of progress begin with the program's name; one line says how the job ended.
    known = "arcbeam: ", "napping", "WARNING:arcbeam:naps: cancelled; "
    lines = [line for line in output.read_text()[before:].splitlines() if not line.startswith(known)]
    assert lines == ["error: interrupted"]


@pytest.mark.parametrize("command", ["run", "explain"])
@pytest.mark.parametrize("text", ["import sys\nraise ValueError('my mistake')\n", "def (:\n"])
def test_script_error_shows_only_script_frames(script: Path, command: str, text: str) -> None:
    script.write_text(text)
    result = invoke(command, str(script))
    assert result.exit_code == 1
    assert script.name in result.stderr
    assert "Error" in result.stderr.splitlines()[-1]
    assert "arcbeam" not in result.stderr
    assert "click" not in result.stderr


def test_run_returns_exit_code_of_script(script: Path) -> None:
    script.write_text("import sys\nsys.exit(5)\n")
    assert invoke("run", str(script)).exit_code == 5


def test_unknown_command() -> None:
    assert invoke("dance").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "."],
        ["explain", "."],
        ["jobs", "--token-file=."],
        ["drain", "an-id", "--tls-ca=."],
        ["serve", "--tls-cert=."],
        ["page", "--tls-key=."],
    ],
)
def test_folder_for_a_file_is_wrong_usage(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, "File '.' is a directory" in result.stderr) == (2, True), result.output


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
