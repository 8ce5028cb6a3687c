"""The Java that Spark would start, replaced by scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from arcbeam.errors import SetupError
from arcbeam.spark.session import java as javas

OPENJDK = 'openjdk version "{}" 2025-04-15'


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    """Make a `java` in folder/bin that prints a text to stderr, as the real one does."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("11.0.2", 11), ("25-ea", 25), ("", 0)],
)
def test_major_version(version: str, major: int) -> None:
    assert javas.Java("java", version, "PATH").major == major


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", OPENJDK.format("11.0.2"))
    fake_java(tmp_path / "new", OPENJDK.format("21.0.1"))
    environ = {"JAVA_HOME": str(tmp_path / "new"), "PATH": str(old.parent)}
    java = javas.find_java(environ)
    assert java is not None
    assert (java.origin, java.version) == ("JAVA_HOME", "21.0.1")
    java = javas.find_java({"PATH": str(old.parent)})
    assert java is not None
    assert (java.origin, java.version) == ("PATH", "11.0.2")


def test_suitable_java_is_returned(tmp_path: Path) -> None:
    fake_java(tmp_path, OPENJDK.format("17.0.15"))
    assert javas.require_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).major == 17


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"JAVA_HOME is not set.* PATH") as caught:
        javas.require_java({"PATH": str(tmp_path)})
    assert " 17 " in caught.value.remedy


def test_old_java_is_refused(tmp_path: Path) -> None:
    fake_java(tmp_path, 'java version "1.8.0_392"')
    with pytest.raises(SetupError, match=r"Java 1\.8\.0_392 at .* \(from JAVA_HOME\) .*17 or newer"):
        javas.require_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_java_home_without_java_is_refused(tmp_path: Path) -> None:
    good = fake_java(tmp_path / "good", OPENJDK.format("17.0.15"))
    with pytest.raises(SetupError, match=r"\(from JAVA_HOME\).*: FileNotFoundError"):
        javas.require_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(good.parent)})


def test_java_stub_is_refused(tmp_path: Path) -> None:
    fake_java(tmp_path, "Unable to locate a Java Runtime.", code=1)
    with pytest.raises(SetupError, match=": Unable to locate a Java Runtime"):
        javas.require_java({"JAVA_HOME": str(tmp_path)})
