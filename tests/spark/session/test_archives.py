"""Which of two copies of PySpark a worker imports."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from arcbeam.spark.session import archives


def installed(root: Path, py4j: str = "0.10.9.9") -> list[str]:
    """Make a folder of packages with PySpark and Py4J; return the entries that Spark puts on its workers' path."""
    lib, jars = root / "pyspark" / "python" / "lib", root / "pyspark" / "jars"
    for folder in (lib, jars, root / "py4j", root / f"py4j-{py4j}.dist-info"):
        folder.mkdir(parents=True)
    for package in ("pyspark", "py4j"):
        (root / package / "__init__.py").touch()
    found = [lib / "pyspark.zip", lib / "py4j-0.10.9.9-src.zip", jars / "spark-core_2.13-4.3.0.jar"]
    for path in found:
        with zipfile.ZipFile(path, "w") as content:
            content.writestr("pyspark/__init__.py", "")
    return [str(path) for path in found]


def order(monkeypatch: pytest.MonkeyPatch, *path: str) -> list[str]:
    monkeypatch.setattr(sys, "path", list(path))
    archives.put_installed_first()
    return sys.path


def test_installed_packages_precede_spark_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = installed(tmp_path)
    users = str(tmp_path / "users.zip")
    assert order(monkeypatch, *put, users, str(tmp_path)) == [users, str(tmp_path), *put]


def test_other_py4j_version_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = installed(tmp_path, py4j="0.10.9.7")
    assert order(monkeypatch, *put, str(tmp_path)) == [*put, str(tmp_path)]


def test_spark_that_is_not_installed_keeps_its_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, _ = installed(tmp_path / "one"), installed(tmp_path / "other")
    assert order(monkeypatch, *put, str(tmp_path / "other")) == [*put, str(tmp_path / "other")]
    # If it were found first, it would hide the one that belongs to this Spark.
    path = [*put, str(tmp_path / "other"), str(tmp_path / "one")]
    assert order(monkeypatch, *path) == path


def test_path_without_archives_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path)
    assert order(monkeypatch, "", str(tmp_path)) == ["", str(tmp_path)]


def test_workers_do_not_read_archives_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("found_in_an_archive/__init__.py", "")
        content.writestr("found_in_an_archive/part.py", "whole = True")
    monkeypatch.syspath_prepend(str(archive))
    importlib.import_module("found_in_an_archive")
    archives.forget()
    assert not any(path.startswith(str(archive)) for path in sys.path_importer_cache)
    assert importlib.import_module("found_in_an_archive.part").whole
