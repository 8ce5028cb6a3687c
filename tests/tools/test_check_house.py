"""The house rules see what they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_house import violations


def broken(path: str, source: str) -> list[str]:
    return [what for _, what in violations(Path(path), '"""Owns x."""\n' + source)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("spark/session.py", "from pyspark.sql import SparkSession\n"),
        ("harness/work.py", "from apache_beam.portability.api import beam_fn_api_pb2 as fn\n"),
        ("options.py", "from apache_beam.options.pipeline_options import PipelineOptions\n"),
        ("model/plan.py", "import enum\n"),
        ("model/__init__.py", "from arcbeam.model.plan import Plan\n"),
    ],
)
def test_allowed(path: str, source: str) -> None:
    assert broken(path, source) == []


@pytest.mark.parametrize(
    ("path", "source", "says"),
    [
        ("jobs/service.py", "def f():\n    import pyspark.sql\n", "only spark imports pyspark"),
        ("spark/session.py", "import py4j\n", "JVM"),
        ("spark/task.py", "from apache_beam.portability.api import beam_fn_api_pb2\n", "Fn API"),
        ("translate/x.py", "import apache_beam.portability.api.beam_job_api_pb2 as j\n", "Job API"),
        ("store/side.py", "import apache_beam as beam\n", "knows nothing of Beam"),
        ("options.py", "from apache_beam.runners import runner\n", "knows only apache_beam.options"),
        ("errors.py", "from arcbeam.model import plan\n", "at the bottom"),
        ("runner.py", "from arcbeam.testing import faults\n", "never imports testing"),
        ("model/__init__.py", "class A: ...\n", "only re-exports"),
        ("model/long.py", "\n" * 600, "500 at most"),
    ],
)
def test_refused(path: str, source: str, says: str) -> None:
    assert any(says in what for what in broken(path, source))


def test_a_docstring_is_missed() -> None:
    assert any("docstring" in what for _, what in violations(Path("a.py"), "x = 1\n"))
