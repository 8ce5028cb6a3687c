"""The machine's checks, each in its good and its bad cases; Java is played by scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from arcbeam.errors import SetupError
from arcbeam.spark.session import doctor
from tests.golden import check_message

OPENJDK = 'openjdk version "{}" 2025-04-15'


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    """A `java` in folder/bin that says something on stderr, as the real one does."""
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
    assert doctor.Java("java", version, "PATH").major == major


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", OPENJDK.format("11.0.2"))
    fake_java(tmp_path / "new", OPENJDK.format("21.0.1"))
    environ = {"JAVA_HOME": str(tmp_path / "new"), "PATH": str(old.parent)}
    java = doctor.find_java(environ)
    assert java is not None
    assert (java.origin, java.version) == ("JAVA_HOME", "21.0.1")
    java = doctor.find_java({"PATH": str(old.parent)})
    assert java is not None
    assert (java.origin, java.version) == ("PATH", "11.0.2")


def test_a_good_java_is_given_back(tmp_path: Path) -> None:
    fake_java(tmp_path, OPENJDK.format("17.0.15"))
    assert doctor.require_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).major == 17


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no Java: JAVA_HOME is not set and there is no java on PATH") as caught:
        doctor.require_java({"PATH": str(tmp_path)})
    assert "install a Java runtime 17 or newer" in caught.value.remedy


def test_java_too_old(tmp_path: Path) -> None:
    fake_java(tmp_path, 'java version "1.8.0_392"')
    with pytest.raises(SetupError, match=r"Java 1\.8\.0_392 at .* \(from JAVA_HOME\) is too old.*17 or newer"):
        doctor.require_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_java_home_without_java_does_not_fall_back_to_path(tmp_path: Path) -> None:
    good = fake_java(tmp_path / "good", OPENJDK.format("17.0.15"))
    with pytest.raises(SetupError, match="does not run: FileNotFoundError"):
        doctor.require_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(good.parent)})


def test_a_java_that_is_only_a_stub(tmp_path: Path) -> None:
    fake_java(tmp_path, "Unable to locate a Java Runtime.", code=1)
    with pytest.raises(SetupError, match="does not run: Unable to locate a Java Runtime"):
        doctor.require_java({"JAVA_HOME": str(tmp_path)})


def test_python() -> None:
    assert doctor.check_python((3, 11, 0)).ok
    assert doctor.check_python((3, 14, 1)).ok
    old = doctor.check_python((3, 10, 12))
    assert not old.ok
    assert "3.10.12" in old.found
    assert "3.11" in old.remedy


@pytest.mark.parametrize(
    ("version", "ok", "says"),
    [
        ("2.77.0", True, "2.77.0"),
        ("2.77.1", True, "2.77.1"),
        ("2.78.0", False, "made for 2.77"),
        ("2.7.0", False, "made for 2.77"),
        (None, False, "not installed"),
    ],
)
def test_beam(version: str | None, ok: bool, says: str) -> None:
    check = doctor.check_beam(version)
    assert check.ok is ok
    assert says in check.found
    assert ok is (check.remedy == "")


@pytest.mark.parametrize(
    ("version", "ok"), [("4.3.0", True), ("4.1.0.dev1", True), ("4.0.1", False), ("10.0", True), (None, False)]
)
def test_minimum(version: str | None, ok: bool) -> None:
    check = doctor.check_minimum("PySpark", "pyspark", version, (4, 1))
    assert check.ok is ok
    assert ok or "pip install 'pyspark>=4.1'" in check.remedy


def test_memory() -> None:
    assert doctor.check_memory(8000).ok
    assert doctor.check_memory(None).ok
    assert not doctor.check_memory(100).ok


def test_temporary_folder(tmp_path: Path) -> None:
    assert doctor.check_temp(str(tmp_path), minimum_mb=0).ok
    gone = doctor.check_temp(str(tmp_path / "gone"))
    assert not gone.ok
    assert "cannot be written to" in gone.found
    full = doctor.check_temp(str(tmp_path), minimum_mb=2**60)
    assert not full.ok
    assert "MiB free" in full.found


@pytest.mark.contract("OPS-05")
def test_doctor_says_where_spark_listens() -> None:
    check_message("doctor-ports", doctor.check_ports({}).found)
    check_message("doctor-ports-named", doctor.check_ports({"SPARK_LOCAL_IP": "192.0.2.1"}).found)


def test_checks_never_raise_and_every_bad_one_has_a_remedy(tmp_path: Path) -> None:
    found = doctor.checks({"PATH": str(tmp_path)})
    names = [check.name for check in found]
    assert names[:6] == ["Python", "Java", "PySpark", "PyArrow", "pandas", "Apache Beam"]
    assert not found[1].ok
    assert all(check.ok is (check.remedy == "") for check in found)
