"""A session of arcbeam on this machine keeps elements in folders that only its user can read."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from arcbeam.errors import SetupError
from arcbeam.spark.session.localdirs import SETTING, VARIABLE, in_private_folders

pytestmark = pytest.mark.contract("OPS-06")


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in ("tmp", "one", "two"):
        (tmp_path / name).mkdir()
    return {"SPARK_CONF_DIR": str(tmp_path)}


def own(*roots: Path) -> str:
    folders = [root / f"arcbeam-{os.getuid()}" / "spark" for root in roots]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for each in folders for path in (each, each.parent))
    return ",".join(map(str, folders))


@pytest.mark.parametrize("master", ["local", "local[2,4]", "local-cluster[2,1,1024]"])
def test_folder_is_private_by_default(master: str, environ: dict[str, str], tmp_path: Path) -> None:
    found = in_private_folders(master, {}, environ)
    assert (found.settings, found.environ) == ({SETTING: own(tmp_path / "tmp")}, {})


def test_chosen_folders_are_used_privately(environ: dict[str, str], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    both = f"{one}, {two}"
    assert in_private_folders("local", {SETTING: both}, environ).settings == {SETTING: own(one, two)}
    submitted = {**environ, "PYSPARK_SUBMIT_ARGS": f"--conf {SETTING}={one} pyspark-shell"}
    assert in_private_folders("local", {}, submitted).settings == {SETTING: own(one)}
    (tmp_path / "spark-defaults.conf").write_text(f"# {SETTING} /x\n {SETTING}  {two}\n")
    assert in_private_folders("local", {}, environ).settings == {SETTING: own(two)}
    # For Spark the variable has priority over each setting.
    found = in_private_folders("local", {SETTING: str(two)}, {**environ, VARIABLE: str(one)})
    assert (found.settings, found.environ) == ({}, {VARIABLE: own(one)})


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn"])
def test_folders_of_a_cluster_are_its_own(master: str, environ: dict[str, str]) -> None:
    found = in_private_folders(master, {}, {**environ, VARIABLE: "/data"})
    assert found.settings == found.environ == {}


def test_folder_of_another_user_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "one" / f"arcbeam-{os.getuid()}").symlink_to(tmp_path / "two")
    with pytest.raises(SetupError, match="symbolic link"):
        in_private_folders("local", {SETTING: str(tmp_path / "one")}, environ)


def test_unusable_folder_is_left_to_spark(environ: dict[str, str]) -> None:
    roots = "/proc/nothing"
    assert in_private_folders("local", {SETTING: roots}, environ).settings == {SETTING: roots}
