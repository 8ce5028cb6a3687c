"""Spark's log configuration in sessions that arcbeam makes, unless the user configures it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from arcbeam.spark.session import sparklog
from arcbeam.spark.tasks import failure

OPTIONS = "spark.driver.defaultJavaOptions"


def _environ(tmp_path: Path) -> dict[str, str]:
    return {"SPARK_CONF_DIR": str(tmp_path)}


def _configuration(options: str) -> Path:
    (named,) = [part for part in options.split() if part.startswith("-Dlog4j2.configurationFile=")]
    return Path(unquote(urlsplit(named.partition("=")[2]).path))


def test_log_configuration_exists(tmp_path: Path) -> None:
    made = sparklog.settings({}, local=True, environ=_environ(tmp_path))
    assert _configuration(made[OPTIONS]).is_file()
    assert "-Darcbeam.log.address=DENY" in made[OPTIONS]


def test_address_warnings_stay_with_remote_executors(tmp_path: Path) -> None:
    assert "arcbeam.log" not in sparklog.settings({}, local=False, environ=_environ(tmp_path))[OPTIONS]


def test_java_options_of_the_user_come_last(tmp_path: Path) -> None:
    made = sparklog.settings({OPTIONS: "-Dmine=1"}, local=True, environ=_environ(tmp_path))
    assert made[OPTIONS].endswith(" -Dmine=1")


def test_configuration_names_the_dropped_error(tmp_path: Path) -> None:
    text = _configuration(sparklog.settings({}, local=True, environ=_environ(tmp_path))[OPTIONS]).read_text()
    error = failure.TaskFailedError
    patterns = [line for line in text.splitlines() if ".layout.pattern = " in line]
    assert patterns
    assert all(f"{error.__module__}.{error.__name__}".replace(".", "\\\\.") in line for line in patterns)


@pytest.mark.parametrize("name", ["log4j2.properties", "log4j2.xml"])
def test_log_configuration_of_the_user_wins(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert sparklog.settings({}, local=True, environ=_environ(tmp_path)) == {}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / name).touch()
    assert sparklog.settings({}, local=True, environ={"SPARK_HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize(
    ("line", "kept"),
    [(f"{OPTIONS} -XX:+UseG1GC", True), (f"  {OPTIONS}=-Dx", True), (f"# {OPTIONS} -Dx", False), ("spark.x y", False)],
)
def test_defaults_of_installation_are_kept(tmp_path: Path, line: str, kept: bool) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"spark.master local\n{line}\n")
    assert (sparklog.settings({}, local=True, environ=_environ(tmp_path)) == {}) is kept


def test_other_log_settings_of_the_user_win(tmp_path: Path) -> None:
    environ = {**_environ(tmp_path), "LOG4J_CONFIGURATION_FILE": "mine.properties"}
    assert sparklog.settings({}, local=True, environ=environ) == {}
    structured = {"spark.log.structuredLogging.enabled": "true"}
    assert sparklog.settings(structured, local=True, environ=_environ(tmp_path)) == {}
