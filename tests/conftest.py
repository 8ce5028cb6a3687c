"""What all tests share: contract markers, and one SparkSession for the whole run."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from arcbeam.spark.session.java import require_java

# Helpers of several modules also assert, so pytest shows the compared values as in tests.
pytest.register_assert_rewrite("tests.engine", "tests.harness", "tests.jobs", "tests.store")

_ROOT = Path(__file__).resolve().parent.parent
_CONTRACTS = _ROOT / "tests" / "contracts.toml"

# The same examples in every run, so that only a change can make a test fail. With a seed, those of the seed.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("of a seed", deadline=None, database=None)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    """Give Spark's Python workers this interpreter, this source tree and the tests' own modules."""
    if _seed(config):
        settings.load_profile("of a seed")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    paths = [str(_ROOT / "src"), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # Sessions of tests live for seconds, or run new code all the time: compiling their code well does not pay.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


def pytest_unconfigure() -> None:
    """Forget the jobs of tests that did not wait for them, so that the process does not wait either."""
    if unawaited := sys.modules.get("arcbeam.runner.unawaited"):
        unawaited.UNAWAITED._jobs.clear()


def pytest_report_header(config: pytest.Config) -> str:
    """Report which random examples are tried."""
    return f"examples of seed {seed}" if (seed := _seed(config)) else "the same random examples as always"


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Report how to try them again."""
    if exitstatus and (seed := _seed(config)):
        terminalreporter.write_line(f"examples of seed {seed}; the same again: --hypothesis-seed={seed}")


def _seed(config: pytest.Config) -> str:
    return config.getoption("--hypothesis-seed") or ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use Spark, and reject markers of contracts that do not exist."""
    areas = tomllib.loads(_CONTRACTS.read_text(encoding="utf-8"))["area"]
    known = {id for area in areas for id in area["contracts"]}
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        for marker in item.iter_markers("contract"):
            unknown = set(marker.args) - known
            if unknown or not marker.args:
                raise pytest.UsageError(f"{item.nodeid}: unknown contract: {sorted(unknown) or 'none named'}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small classic SparkSession, the active one: two task slots, three retries of a lost task, no UI."""
    require_java()
    from pyspark.sql import SparkSession

    local = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("arcbeam tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(local / "local"))
        .config("spark.sql.warehouse.dir", str(local / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.worker.reuse", "true")
        .config("spark.python.daemon.module", "arcbeam.spark.daemon")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
