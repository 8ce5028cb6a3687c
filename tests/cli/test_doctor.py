"""The machine's checks, each in its good and its bad cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from arcbeam.cli import doctor
from tests.golden import check_message


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
        ("2.78.0", False, "needs 2.77"),
        ("2.7.0", False, "needs 2.77"),
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
    assert "is not writable" in gone.found
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
