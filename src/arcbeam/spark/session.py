"""Which Spark session a pipeline runs on, and what it must be set to.

Owns finding, building and preparing sessions, classic and Connect alike. Must not know pipelines.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from arcbeam.errors import SetupError

_DEFAULT_MASTER = "local[*,4]"
"""All cores; a task whose worker died is tried again (a plain local[*] tries once)."""

_OWN_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}

_JOB_SETTINGS = {
    # Blobs are up to some 100 KiB each: batches are bounded by bytes, not by rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    "spark.sql.adaptive.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What the user asked for; all None: the active session, else one of our own on all cores."""

    master: str | None = None
    conf: tuple[str, ...] = ()
    remote: str | None = None


def open_session(options: SessionOptions) -> SparkSession:
    """The active session if there is one, else a new one from the options.

    Raises:
        SetupError: a setting is malformed, or Spark cannot start (no Java, an address that does not answer).
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if options.remote:
        builder: Any = SparkSession.builder.remote(options.remote)
    else:
        builder = SparkSession.builder.appName("arcbeam").master(options.master or _DEFAULT_MASTER)
        for key, value in _OWN_SETTINGS.items():
            builder = builder.config(key, value)
    for pair in options.conf:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise SetupError(f"--spark_conf {pair!r} is not of the form key=value")
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as e:
        raise SetupError(f"no Spark session: {type(e).__name__}: {e}", "run `arcbeam doctor`") from e
    return session


@contextlib.contextmanager
def prepared(spark: SparkSession) -> Iterator[None]:
    """Sets what our jobs need, and puts the user's settings back afterwards."""
    before: dict[str, str | None] = {}
    for key, value in _JOB_SETTINGS.items():
        before[key] = spark.conf.get(key, None)
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            with contextlib.suppress(Exception):
                if old is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, old)


_parallelism: dict[int, int] = {}


def default_parallelism(spark: SparkSession) -> int:
    """How many tasks Spark would run at once by default; asked once per session."""
    known = _parallelism.get(id(spark))
    if known is None:
        local = re.fullmatch(r"local\[(\d+|\*)(?:,\s*\d+)?\]", spark.conf.get("spark.master", "") or "")
        if local:
            known = os.cpu_count() or 1 if local[1] == "*" else int(local[1])
        else:
            row = spark.range(0, 1 << 16).select(F.max(F.spark_partition_id())).first()
            known = int(row[0]) + 1 if row is not None else 1
        _parallelism[id(spark)] = known
    return known
