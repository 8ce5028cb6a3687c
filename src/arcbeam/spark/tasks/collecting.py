"""Running a data frame as a Spark job, on the driver: returns its rows, or raises the failure.

Owns stopping the job at the first user error. Must not know what is in the rows.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from arcbeam.model import texts
from arcbeam.spark.session import driver, remote
from arcbeam.spark.session.sessions import interrupt, tagged
from arcbeam.spark.tasks.failure import as_job_failure
from arcbeam.store.jobtemp.location import JobLocation

_LOOKS_SECONDS = 0.1
"""Interval in which the driver checks for a user's error that a task recorded; a folder is cheap to list.

Also the interval for its other waiting.
"""

_REMOTE_LOOKS_SECONDS = 5.0
"""The same for an object store, where each check is a request."""

_DESCRIPTION_CHARACTERS_MAX = 300
"""Maximum characters of a Spark job's description."""


def described(pipeline: str, stages: Iterable[str], micro_batch: int | None = None) -> str:
    """Return a Spark job's description for Spark's UI: pipeline, number of the micro-batch if any, stages."""
    what = pipeline if micro_batch is None else f"{pipeline}: micro-batch {micro_batch}"
    return texts.fit(": ".join(filter(None, (what, "; ".join(stages)))), _DESCRIPTION_CHARACTERS_MAX)


def collected(
    spark: SparkSession,
    frame: DataFrame,
    job: str,
    location: JobLocation,
    running: Iterable[str],
    *,
    about: str = "",
    stage: str = "",
    given_up: threading.Event | None = None,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> list[Any]:
    """Return the rows of a data frame.

    Args:
        spark: the session to run in.
        frame: the data frame to compute.
        job: id of the job, by which its Spark jobs are interrupted.
        location: the job's location, where a user's error is recorded.
        running: names of the stages that run in it.
        about: a description for Spark's UI (default: the job).
        stage: the stage whose recorded errors count; "": all stages.
        given_up: set when the caller does not need the rows any more.
        properties: see `jobproperties`.

    Raises:
        ArcbeamError: the Spark job failed; see `failure.as_job_failure`.
    """
    try:
        with tagged(spark, job, about, properties), _ending_at_first_error(spark, job, location, stage, given_up):
            return frame.collect()
    except Exception as e:
        # These errors already decide whether Spark's own text adds something.
        lost = driver.lost(spark, e) or remote.lost(spark, e)
        raise lost or as_job_failure(e, location, running, stage)  # noqa: B904


def collected_unless(
    spark: SparkSession, frame: DataFrame, tag: str, about: str, is_over: Callable[[], bool]
) -> list[Any]:
    """Return the rows of a data frame whose tasks may hang.

    Args:
        spark: the session to run in.
        frame: the data frame to compute.
        tag: a tag that only its Spark job has.
        about: a description for Spark's UI.
        is_over: whether the caller has stopped waiting; called repeatedly.

    Raises:
        TimeoutError: the caller has stopped waiting. Another thread cancels the Spark job, because that may take as
            long as killing a Python worker.
    """
    rows: Future[list[Any]] = Future()

    def collect() -> None:
        try:
            with tagged(spark, tag, about):
                rows.set_result(frame.collect())
        except BaseException as e:
            rows.set_exception(e)

    def cancel() -> None:
        while not rows.done():
            with contextlib.suppress(Exception):
                interrupt(spark, tag)
            time.sleep(_LOOKS_SECONDS)

    # SUBTLE: daemon threads. A thread of an executor would keep the process from ending.
    threading.Thread(target=collect, name=tag, daemon=True).start()
    while not is_over():
        if rows in wait([rows], _LOOKS_SECONDS).done:
            return rows.result()
    threading.Thread(target=cancel, name=f"{tag}-cancelled", daemon=True).start()
    raise TimeoutError


@contextlib.contextmanager
def _ending_at_first_error(
    spark: SparkSession, job: str, location: JobLocation, stage: str, given_up: threading.Event | None
) -> Iterator[None]:
    """Cancel the Spark job in the block once a task has recorded a user's error, or the caller has given up.

    Spark itself retries a failed task, usually three times, each time in a new worker.
    """
    ended = threading.Event()
    seconds = _LOOKS_SECONDS if location.folder is not None else _REMOTE_LOOKS_SECONDS

    def look() -> None:
        while not ended.wait(seconds):
            with contextlib.suppress(Exception):
                if (given_up is not None and given_up.is_set()) or location.error_names(stage):
                    # Repeatedly until it has ended: the Spark job may just be starting.
                    interrupt(spark, job)

    watch = threading.Thread(target=look, name=f"errors-{job}", daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()
