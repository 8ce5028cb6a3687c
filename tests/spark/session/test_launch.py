"""How PySpark's JVM is started, tested with other programs in place of Java."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark import java_gateway

from arcbeam.spark.session.launch import launching, without_secrets

INCUBATOR = "WARNING: Using incubator modules: jdk.incubator.vector\n"


def refuse() -> None:
    raise AssertionError("this process was forked")


def launched(code: str) -> Any:
    """Start a Python program as PySpark starts Java."""
    gateway: Any = java_gateway
    with launching():
        return gateway.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=refuse,
        )


def reported(*lines: str) -> str:
    """Return what is left of lines on standard error."""
    _, err = launched(f"import sys; sys.stderr.write({''.join(lines)!r})").communicate(timeout=60)
    return str(err.decode())


def test_java_is_not_forked_and_ignores_ctrl_c() -> None:
    code = "import os, signal; print(os.getpid(), int(signal.getsignal(signal.SIGINT)))"
    process = launched(code)
    out, _ = process.communicate(timeout=60)
    assert out.decode().split() == [str(process.pid), str(int(signal.SIG_IGN))]


def test_launcher_java_gets_fast_options(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; print(os.environ['SPARK_LAUNCHER_OPTS'])"
    monkeypatch.delenv("SPARK_LAUNCHER_OPTS", raising=False)
    assert b"-XX:+UseSerialGC" in launched(code).communicate(timeout=60)[0]
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", "-Dusers=1")
    assert launched(code).communicate(timeout=60)[0].strip() == b"-Dusers=1"


def test_java_ends_with_its_input() -> None:
    process = launched("import sys; sys.exit(len(sys.stdin.read()))")
    process.stdin.write(b"abc")
    process.stdin.close()
    assert process.wait(60) == 3


def test_javas_module_warning_is_dropped() -> None:
    assert reported(INCUBATOR) == ""
    assert reported("Picked up JAVA_TOOL_OPTIONS: -Xint\n", INCUBATOR, "no\\nnl\n", "\n", "part") == (
        "Picked up JAVA_TOOL_OPTIONS: -Xint\nno\\nnl\n\npart"
    )


def test_other_lines_are_passed_on() -> None:
    assert reported("") == ""
    assert reported("part  ") == "part  "
    many = [f"  line {n}\n" for n in range(100)]
    assert reported(*many) == "".join(many)
    assert reported(*many, INCUBATOR) == "".join([*many, INCUBATOR])


def test_pyspark_is_restored_afterwards() -> None:
    gateway: Any = java_gateway
    with launching():
        assert gateway.Popen is not subprocess.Popen
    assert gateway.Popen is subprocess.Popen


SECRETS = {
    "spark.authenticate.secret": "0123 =:#!\\ é€𝄞",
    "spark.hadoop.fs.s3a.access.key": "AK",
    "spark.ssl.keyPassword": "",
}


def submitted(**settings: str) -> list[str]:
    """Return a command line of `spark-submit`."""
    return ["spark-submit", *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")), "x"]


@pytest.mark.contract("OPS-05")
def test_no_secret_setting_is_on_the_command_line(tmp_path: Path) -> None:
    made = without_secrets(submitted(**{"spark.app.name": "a=b", **SECRETS}), tmp_path)
    file = tmp_path / "secrets.properties"
    assert made == [
        *("spark-submit", "--properties-file", str(file), "--load-spark-defaults", "--conf", "spark.app.name=a=b", "x")
    ]
    assert file.stat().st_mode & 0o777 == 0o600
    pairs = (line.partition("=") for line in file.read_text(encoding="ascii").splitlines())
    assert {unescaped(name): unescaped(value) for name, _, value in pairs} == SECRETS


def unescaped(text: str) -> str:
    """Return a text as Java reads it."""
    return text.encode("ascii").decode("unicode_escape").encode("utf-16", "surrogatepass").decode("utf-16")


def test_properties_file_of_the_user_is_kept(tmp_path: Path) -> None:
    command = [*submitted(**SECRETS), "--properties-file", "mine"]
    assert without_secrets(command, tmp_path) == ["spark-submit", "x", "--properties-file", "mine"]
    assert list(tmp_path.iterdir()) == []


def test_command_line_without_secrets_is_unchanged(tmp_path: Path) -> None:
    assert without_secrets(submitted(a="b", c="d"), tmp_path) == submitted(a="b", c="d")


def test_secrets_file_is_removed_after_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gateway: Any = java_gateway
    with launching():
        # Python rejects the options and ends; the file stays until Java would have read it.
        command = [sys.executable, "--conf", "spark.authenticate.secret=abc"]
        gateway.Popen(command, stderr=subprocess.PIPE, preexec_fn=refuse).communicate(timeout=60)
        (folder,) = tmp_path.glob("arcbeam-*/work/spark-*/files")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [file.name for file in folder.iterdir()] == ["secrets.properties"]
    assert list(tmp_path.glob("arcbeam-*/work/*")) == []


def test_java_gets_additional_variables() -> None:
    gateway: Any = java_gateway
    with launching({"ADDED": "1"}):
        code = "import os; print(os.environ['ADDED'])"
        process = gateway.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, preexec_fn=refuse)
        assert process.communicate(timeout=60)[0].strip() == b"1"
