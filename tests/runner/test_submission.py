"""A script's names reach the workers through a job server, also with the SDK's own submitter's error if they do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arcbeam.errors import InvalidPipelineError
from arcbeam.jobs.environments import EMBEDDED_TYPE
from arcbeam.jobs.execution import Artifacts, StagedFile, StagedFileKind, Submission
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from arcbeam.runner.submission import script_of

SCRIPT = Path(__file__).parents[1] / "harness" / "encoding" / "script" / "main_names.py"
USUAL = "--experiments=disable_logging_submission_environment"


@pytest.fixture(scope="module")
def endpoint(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server.endpoint
    server.stop()


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *arguments, USUAL]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.contract("API-02", "API-05")
def test_names_of_script_reach_server(endpoint: str) -> None:
    done = run(SCRIPT, "main", "--runner=arcbeam.ArcbeamRunner", f"--job_endpoint={endpoint}")
    assert not done.returncode, done.stderr[-5000:]
    held, used, copied, decorated, found = done.stdout.splitlines()
    assert found == "all found"
    assert "InvalidPipelineError: 'BROKEN' of the script cannot be sent to the workers: " in held
    assert "'JOURNAL' of the script was not sent to the workers: TypeError: cannot pickle 'generator' object" in used
    assert "'number_of' uses values that may change" in copied
    assert "'tripled' was made by another function, such as a decorator" in decorated


PLAIN = """
import sys, apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

def twice(x): return 2 * x

class Rule:
    def __init__(self): self.fn = twice

def run(make):
    try:
        with beam.Pipeline(options=PipelineOptions(sys.argv[1:])) as p:
            p | beam.Create(make) | beam.Map(lambda f: Rule()) | beam.Reshuffle() | beam.Map(str)
    except Exception as e:
        print(" ".join(str(e).split()))

run([1])
run([twice])
"""


@pytest.mark.contract("API-02")
def test_error_names_submitter_that_sends_script(endpoint: str, tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    submitter = ("--runner=PortableRunner", f"--environment_type={EMBEDDED_TYPE}", f"--job_endpoint={endpoint}")
    done = run(script, *submitter)
    made, given = done.stdout.splitlines()
    for error, name in ((made, "Rule"), (given, "twice")):
        assert (
            f"the job server does not have '{name}' of the script; submit with --runner=arcbeam.ArcbeamRunner" in error
        )
    assert run(script, "--runner=arcbeam.ArcbeamRunner", *submitter[1:]).stdout == ""


@pytest.mark.parametrize("content", [b"", b"[]", b'{"names": [1]}', b'{"names": [["a", 1, [], ""]]}'])
def test_malformed_script_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / StagedFileKind.SCRIPT.value
    path.write_bytes(content)
    files = (StagedFile(path.name, path, StagedFileKind.SCRIPT, "", "", ()),)
    submission = Submission("1", "job", b"", {}, Artifacts(tmp_path, files))
    with pytest.raises(InvalidPipelineError, match=r"'arcbeam_script.json' is malformed"):
        script_of(submission)
