"""The house rules see what they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_house import BESIDE, MAX_LINES, circles, crowded, folders, oversized, violations


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
        ("model/a.py", 'class A(B):\n    def f(self):\n        """See `B`: but only once."""\n'),
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
        ("store/side.py", "import apache_beam as beam\n", "must not know Beam"),
        ("options.py", "from apache_beam.runners import runner\n", "may know only apache_beam.options"),
        ("errors.py", "from arcbeam.model import plan\n", "must not import arcbeam"),
        ("runner.py", "from arcbeam.testing import faults\n", "never imports testing"),
        ("model/__init__.py", "class A: ...\n", "only re-exports"),
        ("model/long.py", "\n" * 600, "500 at most"),
        ("model/a.py", 'class A(B):\n    def f(self):\n        """See `B`."""\n', "@override"),
    ],
)
def test_refused(path: str, source: str, says: str) -> None:
    assert any(says in what for what in broken(path, source))


def test_missing_docstring_is_found() -> None:
    assert any("docstring" in what for _, what in violations(Path("a.py"), "x = 1\n"))


def test_import_circles_are_found() -> None:
    sources = {
        "a": "",
        "a.one": "from a import two\n",
        "a.two": "def f():\n    from a.three import x\n",
        "a.three": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a.one\n",
        "a.four": "from a.one import y\n",
    }
    assert list(circles(sources)) == [["a.one", "a.three", "a.two"]]


def test_other_imports_are_no_circle() -> None:
    sources = {"a": "from a.one import x\n", "a.one": "import b\n", "a.two": "from a.one import x\nfrom a import one\n"}
    assert list(circles(sources)) == []


def test_full_folder_is_found(tmp_path: Path) -> None:
    for number in range(17):
        assert not list(crowded([tmp_path]))
        (tmp_path / f"m{number}.py").touch()
    (tmp_path / "__init__.py").touch()
    assert [what for _, what in crowded([tmp_path])] == ["17 modules; 16 at most: group them into packages"]


def test_long_module_is_found() -> None:
    assert not list(oversized("\n" * MAX_LINES))
    assert list(oversized("\n" * 501)) == [(501, "501 lines; 500 at most: split it by knowledge")]


def test_folders_of_tests_and_benchmarks_are_checked() -> None:
    checked = {folder for root in BESIDE for folder in folders(root)}
    assert {Path(__file__).parent, Path(__file__).parents[2] / "benchmarks" / "bench"} <= checked
