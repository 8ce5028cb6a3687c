"""The machine's checks, each in its good and its bad cases."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from pathlib import Path

import pytest

from arcbeam.cli import doctor
from tests.golden import check_message
from tools.check_docs import ROOT

RANGES = doctor.ranges(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"])


def test_python() -> None:
    wanted = doctor.Range.parse(">=3.11")
    assert doctor.check_python((3, 11, 0), wanted).ok
    assert doctor.check_python((3, 14, 1), wanted).ok
    old = doctor.check_python((3, 10, 12), wanted)
    assert old.found == "3.10.12; arcbeam needs >=3.11"
    assert old.remedy


@pytest.mark.contract("OPS-08")
@pytest.mark.parametrize(
    ("version", "ok", "says"),
    [
        ("2.75.0", False, "2.75.0; arcbeam needs >=2.76,<2.78"),
        ("2.76.0", True, "2.76.0"),
        ("2.77.0", True, "2.77.0"),
        ("2.77.1", True, "2.77.1"),
        ("2.78.0", False, "2.78.0; arcbeam needs >=2.76,<2.78"),
        ("2.78.0rc1", False, "2.78.0rc1; arcbeam needs >=2.76,<2.78"),
        ("2.7.0", False, "2.7.0; arcbeam needs >=2.76,<2.78"),
        (None, False, "not installed"),
    ],
)
def test_beam(version: str | None, ok: bool, says: str) -> None:
    check = doctor.check_version("Apache Beam", "apache-beam", version, RANGES["apache-beam"])
    assert (check.ok, check.found) == (ok, says)
    assert check.remedy == ("" if ok else "pip install 'apache-beam>=2.76,<2.78'")


@pytest.mark.parametrize(
    ("version", "ok"),
    [("4.3.0", True), ("4.1.0.dev1", True), ("4.10", True), ("4.0.1", False), ("5.0.0", False), (None, False)],
)
def test_pyspark(version: str | None, ok: bool) -> None:
    check = doctor.check_version("PySpark", "pyspark", version, RANGES["pyspark"])
    assert check.ok is ok
    assert ok or "pip install 'pyspark>=4.1,<5'" in check.remedy


def test_range_is_read_in_any_order_and_without_extras() -> None:
    of = doctor.ranges(["a<2.78,>=2.76", "b>=18", "c (>=1,<2) ; python_version < '3.14'", "a<9; extra == 'dev'"])
    assert {name: str(range_) for name, range_ in of.items()} == {"a": ">=2.76,<2.78", "b": ">=18", "c": ">=1,<2"}


def test_ranges_are_those_of_installed_arcbeam() -> None:
    assert {"apache-beam", "pyspark", "pyarrow", "pandas", "python"} <= set(doctor.accepted())


def test_arcbeam_without_metadata_is_named() -> None:
    check = doctor.check_itself(None)
    assert not check.ok
    assert "pip install -e ." in check.remedy


def test_memory() -> None:
    assert doctor.check_memory(8000).ok
    assert doctor.check_memory(None).ok
    assert not doctor.check_memory(100).ok


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="compares with Linux's own figure")
def test_memory_without_linux_figures_is_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
    assert found is not None
    total = int(found[1]) // 1024
    assert 0 < (doctor.available_memory_mb() or 0) < total

    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert doctor.available_memory_mb() == total, "other systems only say how much there is in all"


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


@pytest.mark.contract("OPS-06")
def test_doctor_says_who_reads_the_data_of_spark() -> None:
    own, named = f"arcbeam-{os.getuid()}", {"SPARK_LOCAL_DIRS": "/a,/b"}
    check_message("doctor-files", doctor.check_local_dirs({}).found, OWN=own, TEMPORARY=tempfile.gettempdir())
    check_message("doctor-files-named", doctor.check_local_dirs(named).found, OWN=own)


def test_checks_never_raise_and_every_bad_one_has_a_remedy(tmp_path: Path) -> None:
    found = doctor.checks({"PATH": str(tmp_path)})
    names = [check.name for check in found]
    assert names[:7] == ["arcbeam", "Python", "Java", "PySpark", "PyArrow", "pandas", "Apache Beam"]
    assert not found[2].ok
    assert all(check.ok is (check.remedy == "") for check in found)
