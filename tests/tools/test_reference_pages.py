"""Pages of reference that are written by hand name everything that there is."""

from __future__ import annotations

import inspect
import re
import tomllib

import pytest

import arcbeam.io
from arcbeam import errors
from arcbeam.cli import doctor
from tools.check_docs import DOCS, ROOT
from tools.test_versions import BEAMS, COMBINATIONS, Combination

_PAGE = (DOCS / "reference" / "io.md").read_text(encoding="utf-8")
_PAGE = re.sub(r"^```.*?^```$", "", _PAGE, flags=re.MULTILINE | re.DOTALL)
_WORDS = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", _PAGE))))


@pytest.mark.parametrize("name", arcbeam.io.__all__)
def test_page_names_class_and_arguments(name: str) -> None:
    assert name in _WORDS
    value = getattr(arcbeam.io, name)
    functions = [value]
    if name == "OutputMode":
        functions = [value.append, value.update, value.complete]
    if name in ("Format", "Publisher", "RecordError"):
        functions = []
    for function in functions:
        arguments = set(inspect.signature(function).parameters) - {"label", "args", "kwargs"}
        assert arguments <= _WORDS, f"{function.__qualname__}: {arguments - _WORDS}"


def test_page_of_errors_names_every_error() -> None:
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ArcbeamError)]
    assert kinds
    assert [
        kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in page and f".{kind.__name__}`" not in page
    ] == []


def test_versions_page_has_ranges_of_package() -> None:
    page = (DOCS / "reference" / "versions.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    accepted = doctor.ranges(project["dependencies"])
    beam, spark = accepted["apache-beam"], accepted["pyspark"]
    assert beam.below is not None
    minors = [f"{beam.minimum[0]}.{minor}" for minor in range(beam.minimum[1], beam.below[1])]
    assert minors == BEAMS, "tools/test_versions.py runs each of them"
    minor = ".".join(project["version"].split(".")[:2])
    assert f"| {minor} | {', '.join(minors)} | {'.'.join(map(str, spark.minimum))} to " in page
    assert project["requires-python"].removeprefix(">=") in page
    rows = re.findall(r"^\| (3\.\d+) \| (.*) \|$", page, re.MULTILINE)
    passed = {Combination(*each.split("/"), python) for python, both in rows for each in both.split(", ")}
    assert passed <= set(COMBINATIONS)
    assert {each.beam for each in passed} == {each.beam for each in COMBINATIONS}
