"""`arcbeam parts`: staged part files that are not published, for people and for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from arcbeam.cli import main
from arcbeam.io.parts.local import LocalStaging
from arcbeam.model.attempts import Attempt
from tests.golden import check_message

pytestmark = pytest.mark.contract("END-06")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main.main, ["parts", *arguments])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    staging = LocalStaging(str(tmp_path))
    for job, micro_batch in (("dead", 3), ("alive", 7)):
        writing = staging.begin(Attempt(job, micro_batch, (0,), "t"))
        writing.write(b"12345")
        staged = writing.finish()
        if job == "dead":
            os.utime(tmp_path / staged.staged, (1, 1))
    (tmp_path / "part-00000").write_text("published")
    return tmp_path


def test_leftovers_are_listed(path: Path) -> None:
    found = invoke(str(path))
    assert found.exit_code == 0
    assert "job    micro_batch  what  age" in found.stdout
    rows = json.loads(invoke(str(path), "--json").stdout)
    assert [(row["job"], row["micro_batch"], row["size"], row["what"]) for row in rows] == [
        ("alive", 7, 5, "file"),
        ("dead", 3, 5, "file"),
    ]
    assert all((path / row["staged"]).exists() for row in rows)


def test_remove_deletes_only_old_leftovers(path: Path) -> None:
    rows = json.loads(invoke(str(path), "--remove", "--json").stdout)
    assert [row["job"] for row in rows] == ["dead"]
    assert [row["job"] for row in json.loads(invoke(str(path), "--json").stdout)] == ["alive"]
    assert invoke(str(path), "--remove", "--older-than", "0s").exit_code == 0
    assert sorted(each.name for each in path.iterdir()) == ["part-00000"]
    assert json.loads(invoke(str(path), "--json").stdout) == []


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_missing_folder_is_an_error(tmp_path: Path, scheme: str) -> None:
    for more in ((), ("--remove",)):
        found = invoke(f"{scheme}{tmp_path}/nope", *more)
        assert found.exit_code == 1
        check_message("parts-no-folder", found.stderr, FOLDER=f"{scheme}{tmp_path}")


def test_malformed_age_is_wrong_usage(path: Path) -> None:
    found = invoke(str(path), "--remove", "--older-than", "1 day")
    assert found.exit_code == 2
    assert "'1 day'" in found.stderr
    assert "--older-than" in found.stderr


def test_path_with_credentials_is_refused_without_showing_them() -> None:
    found = invoke("s3://KEY:SECRET77@bucket/out?region=eu")
    assert found.exit_code == 1
    assert "SECRET77" not in found.output
    check_message("parts-path-with-credentials", found.stderr)


def test_file_system_without_credentials_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/missing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = invoke("s3://bucket/out", "--s3_endpoint_url=http://127.0.0.1:1")
    assert found.exit_code == 1
    check_message("parts-without-credentials", found.stderr)
