"""What a wheel may hold."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools import build


def wheel_of(folder: Path, *more: str, without: str = "") -> Path:
    """A wheel with the package's modules, but for one, and with other files."""
    path, package = folder / "arcbeam-1-py3-none-any.whl", build.ROOT / "src"
    with zipfile.ZipFile(path, "w") as archive:
        for module in (package / "arcbeam").rglob("*.py"):
            name = module.relative_to(package).as_posix()
            if name != without:
                archive.write(module, name)
        for name in ("arcbeam-1.dist-info/METADATA", *more):
            archive.writestr(name, "")
    return path


def test_reported_lines_exclude_the_simulator(tmp_path: Path) -> None:
    modules = list((build.ROOT / "src" / "arcbeam").rglob("*.py"))
    lines = sum(module.read_text().count("\n") for module in modules)
    reported = build.report(wheel_of(tmp_path))
    assert f"{len(modules)} modules, {lines:,} lines; left out: the simulator, " in reported


@pytest.mark.parametrize("stranger", ["simulator/__main__.py", "tests/conftest.py", "tools/build.py"])
def test_files_outside_of_the_package_are_refused(tmp_path: Path, stranger: str) -> None:
    with pytest.raises(SystemExit, match=stranger):
        build.report(wheel_of(tmp_path, stranger))


def test_missing_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"arcbeam/errors\.py"):
        build.report(wheel_of(tmp_path, without="arcbeam/errors.py"))
