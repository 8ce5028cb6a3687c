"""Sessions: found, built, prepared and put back, classic and Connect."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from arcbeam.errors import SetupError
from arcbeam.spark.session import sessions as session
from arcbeam.spark.session.sessions import (
    SessionOptions,
    _uninterrupted,
    active_session,
    default_parallelism,
    is_local,
    new_session,
    open_session,
    prepared,
    tagged,
    unheeded,
)

KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.mark.contract("API-01")
def test_active_session_is_used(spark: Any) -> None:
    assert open_session(SessionOptions(master="local[7]")) is spark
    assert default_parallelism(spark) == 2
    assert is_local(spark)


def test_parallelism_of_cluster_is_measured(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_parallelism", {})
    monkeypatch.setattr(session, "_master", lambda _: "spark://somewhere:7077")
    assert default_parallelism(spark) == 2


@pytest.mark.contract("API-01")
def test_session_is_found_from_any_thread(spark: Any) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(active_session()))
    thread.start()
    thread.join()
    assert found[0].sparkContext is spark.sparkContext


@pytest.mark.parametrize("text", ["spark.ui.enabled", "=true", " = "])
def test_malformed_setting_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match=f"--spark_conf {text!r} .* key=value"):
        open_session(SessionOptions(conf=(text,)))


@pytest.mark.contract("API-01")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (SessionOptions(master="spark://127.0.0.1:1"), "at spark://127.0.0.1:1 (127.0.0.1:1: "),
        (SessionOptions(master="spark://127.0.0.1:1,localhost:1"), "localhost:1: "),
        (SessionOptions(master="spark://:x"), "':x'"),
        (SessionOptions(master="nonsense"), "--spark_master 'nonsense'"),
        (SessionOptions(remote="sc://127.0.0.1:1/;token=x"), "(127.0.0.1:1: "),
        (SessionOptions(remote="http://127.0.0.1"), "--spark_remote 'http://127.0.0.1'"),
    ],
)
def test_address_without_spark_is_refused(options: SessionOptions, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SetupError) as caught:
        new_session(options)
    assert named in str(caught.value)
    assert caught.value.remedy


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="JAVA_HOME"):
        new_session(SessionOptions())


SCRIPT = """
from arcbeam.spark.session.sessions import *
from arcbeam.errors import SetupError
try:
    open_session(SessionOptions(master="local[1]", conf=({conf!r},)))
except SetupError as e:
    print("refused", e)
"""


@pytest.mark.parametrize(
    ("conf", "part"),
    [
        ("spark.driver.memory=nonsense", "what to do: check Java's output"),
        pytest.param("spark.shuffle.manager=nonsense", "ClassNotFoundException: nonsense", marks=pytest.mark.long),
    ],
)
def test_setting_that_spark_refuses_is_reported(tmp_path: Path, conf: str, part: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(conf=conf))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=180)
    assert done.stdout.startswith("refused "), done.stderr
    assert "local[1]" in done.stdout
    assert part in done.stdout
    assert "\tat " not in done.stderr


def test_spark_jobs_are_tagged_with_their_job(spark: Any) -> None:
    context = spark.sparkContext

    def shown() -> tuple[str | None, str | None]:
        return tuple(context.getLocalProperty(f"spark.{name}") for name in ("jobGroup.id", "job.description"))

    with tagged(spark, "nightly-1"):
        assert shown() == ("nightly-1", "nightly-1")
        with tagged(spark, "nightly-2", "nightly: micro-batch 3"):
            assert shown() == ("nightly-2", "nightly: micro-batch 3")
        assert shown() == ("nightly-1", "nightly-1")
    assert shown() == (None, None)


def test_options_that_an_existing_session_ignores_are_named(spark: Any) -> None:
    assert unheeded(spark, SessionOptions()) == []
    assert unheeded(spark, SessionOptions("local[2,4]", ("spark.ui.enabled=false",))) == []
    assert unheeded(spark, SessionOptions("yarn", ("spark.ui.enabled=true", "spark.none=1"), "sc://a")) == [
        "--spark_remote=sc://a",
        "--spark_master=yarn",
        "--spark_conf=spark.ui.enabled=true",
        "--spark_conf=spark.none=1",
    ]


@pytest.mark.parametrize("press", [1, 2])
def test_ctrl_c_waits_until_spark_has_started(press: int) -> None:
    reached = []

    def start() -> None:
        with _uninterrupted():
            for _ in range(press):
                signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    # A SparkContext of an earlier test has installed its own handler.
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert reached == (["the end"] if press == 1 else []), "the second Ctrl-C must not be held back"


def test_settings_are_restored_after_last_job(spark: Any) -> None:
    spark.conf.set(KEY, "123")
    adaptive = spark.conf.get("spark.sql.adaptive.enabled")
    try:
        with prepared(spark):
            with prepared(spark):
                assert spark.conf.get(KEY) != "123"
            assert spark.conf.get(KEY) != "123"
        assert spark.conf.get(KEY) == "123"
        assert spark.conf.get("spark.sql.adaptive.enabled") == adaptive
    finally:
        spark.conf.unset(KEY)


CONNECT = """
import sys, time
import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to

def run():
    with beam.Pipeline(argv=["--runner=arcbeam.ArcbeamRunner", "--spark_remote=local[2]", *sys.argv[1:]]) as p:
        pairs = p | beam.Create(range(10)) | beam.Map(lambda x: (x % 2, x))
        side = p | "Side" >> beam.Create([5])
        grouped = pairs | beam.GroupByKey()
        sums = grouped | beam.Map(lambda kv, s: (kv[0], sum(kv[1]) + s), beam.pvalue.AsSingleton(side))
        assert_that(sums, equal_to([(0, 25), (1, 30)]))
    return p.result

def raises():
    from arcbeam.errors import UserCodeError
    try:
        with beam.Pipeline(argv=["--runner=arcbeam.ArcbeamRunner"]) as p:
            p | beam.Create([1]) | "Fail" >> beam.Map(lambda x: 1 // 0)
    except UserCodeError as e:
        return e.step

def cancelled():
    p = beam.Pipeline(argv=["--runner=arcbeam.ArcbeamRunner"])
    p | beam.Create([1]) | beam.Map(lambda x: time.sleep(300))
    result = p.run()
    assert result.wait_until_finish(3000) == "RUNNING"
    started = time.monotonic()
    state = result.cancel()
    assert time.monotonic() - started < 30
    return state

run()
from pyspark.sql import SparkSession
session = SparkSession.active()
assert type(session).__module__.startswith("pyspark.sql.connect"), type(session)
result = run()
print("step", raises(), "state", cancelled(), SparkSession.active() is session, flush=True)
"""


@pytest.mark.long
@pytest.mark.contract("API-01")
def test_pipeline_runs_on_spark_connect(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CONNECT)
    (tmp_path / "data.txt").write_text("x")
    done = subprocess.run(
        [sys.executable, str(script), f"--files_to_stage={tmp_path}/data.txt"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "step Fail state CANCELLED True" in done.stdout, done.stderr[-5000:]
    assert "CANNOT_MODIFY" not in done.stderr


class Fair:
    """A session that schedules fairly, or does not."""

    def __init__(self, mode: str) -> None:
        self.conf = {"spark.scheduler.mode": mode}
        self.sparkContext = self
        self.properties: list[tuple[str, str | None]] = []

    def setLocalProperty(self, name: str, value: str | None) -> None:
        self.properties.append((name, value))

    def addJobTag(self, tag: str) -> None: ...

    def removeJobTag(self, tag: str) -> None: ...

    def getLocalProperty(self, name: str) -> str | None:
        return dict(self.properties).get(name)


def test_concurrent_jobs_have_pools_with_reused_names() -> None:
    spark: Any = Fair("FAIR")

    def pool(job: str) -> str | None:
        spark.properties.clear()
        with session.tagged(spark, job):
            return dict(spark.properties).get("spark.scheduler.pool")

    with session.pooled(spark, "a"):
        with session.pooled(spark, "b"):
            assert (pool("a"), pool("b"), pool("none")) == ("arcbeam-0", "arcbeam-1", None)
        with session.pooled(spark, "c"):
            assert pool("c") == "arcbeam-1"
    assert pool("a") is None
    spark = Fair("FIFO")
    with session.pooled(spark, "a"):
        assert pool("a") is None
